"""A project opened: its targets ready to use, its flows imported."""

from __future__ import annotations

import importlib.util
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType

from headrace.clients.kafka_settings import require_settings
from headrace.clients.storage import is_local
from headrace.errors import ConfigError, did_you_mean
from headrace.flow.flow import Flow
from headrace.flow.secret import Secret, revealed
from headrace.flow.target import Database, KafkaConnect, Lease, Service, Target
from headrace.project.secrets import resolved
from headrace.project.settings import LOCAL, LOCAL_DATABASES, ProjectSettings, TargetSettings, read_settings


@dataclass(frozen=True)
class Project:
    """A folder with a headrace.yml."""

    folder: Path
    settings: ProjectSettings

    @classmethod
    def open(cls, folder: Path) -> Project:
        """Read the settings. Nothing is imported yet."""
        return cls(folder.absolute(), read_settings(folder))

    @property
    def home(self) -> Path:
        """Where the project's local state lies: stack, logs, and by default lake and checkpoints."""
        return self.folder / ".headrace"

    def target(
        self,
        name: str | None,
        local_broker: Callable[[], str | None],
        local_database: Callable[[str], Database | None] = lambda _part: None,
        local_connect: Callable[[], KafkaConnect | None] = lambda: None,
    ) -> Target:
        """Return a target with its secrets resolved. Local parts are asked for only when the target says `local`."""
        name = name or self.settings.default_target
        known = self.settings.targets
        if name not in known:
            raise ConfigError(
                f"There is no target '{name}'.",
                why=f"headrace.yml has the targets {', '.join(known)}.{did_you_mean(name, known)}",
                state="Nothing was started.",
                remedy="Name one of them with --target.",
                code="HR-105",
            )
        chosen = known[name]
        kafka: dict[str, str | Secret] = {
            key: resolved(value, f"targets.{name}.kafka.{key}") for key, value in chosen.kafka.items()
        }
        require_settings(kafka, f"targets.{name}.kafka")
        if kafka.get("bootstrap.servers") == LOCAL:
            address = local_broker()
            if address:
                kafka["bootstrap.servers"] = address
            else:
                del kafka["bootstrap.servers"]

        def plain(key: str, value: str) -> str:
            return revealed(resolved(value, f"targets.{name}.{key}"))

        return Target(
            name=name,
            master=plain("master", chosen.master),
            lake=self._located(plain("lake", chosen.lake)),
            checkpoints=self._located(plain("checkpoints", chosen.checkpoints)),
            kafka=kafka,
            databases=dict(_databases(name, chosen, local_database)),
            spark={key: plain(f"spark.{key}", value) for key, value in chosen.spark.items()},
            services={
                each: Service(
                    url=plain(f"services.{each}.url", given.url),
                    headers={
                        key: resolved(value, f"targets.{name}.services.{each}.headers.{key}")
                        for key, value in given.headers.items()
                    },
                    private=given.private,
                    ca=given.ca,
                )
                for each, given in chosen.services.items()
            },
            lease=Lease(chosen.lease.kind, chosen.lease.seconds),
            connect=_connect(chosen, plain("connect.url", chosen.connect.url), local_connect),
        )

    def flows(self, names: Sequence[str] = ()) -> list[Flow]:
        """Import the project's files and return the flows at their top level, or only those named."""
        found: dict[int, Flow] = {}
        for file in self.settings.flows:
            for flow in _flows_of(self.folder, file):
                found[id(flow)] = flow
        flows = list(found.values())
        known = [flow.name for flow in flows]
        for name in names:
            if name not in known:
                raise ConfigError(
                    f"There is no flow '{name}'.",
                    why=f"The project has {', '.join(known) or 'none'}.{did_you_mean(name, known)}",
                    state="Nothing was started.",
                    remedy="`headrace check` lists the flows.",
                    code="HR-106",
                )
        return [flow for flow in flows if not names or flow.name in names]

    def _located(self, root: str) -> str:
        return str((self.folder / root).absolute()) if is_local(root) and not root.startswith("file:") else root


def _databases(
    target: str, chosen: TargetSettings, local_database: Callable[[str], Database | None]
) -> Iterator[tuple[str, Database]]:
    """Yield the databases of a target, without one that says `local` while none runs."""
    for name, given in chosen.databases.items():
        place = f"targets.{target}.databases.{name}"
        if given.url in LOCAL_DATABASES:
            local = local_database(LOCAL_DATABASES[given.url])
            if local is not None:
                yield name, local
            continue
        password = resolved(given.password, f"{place}.password")
        if isinstance(password, str):
            # Written out in headrace.yml: not for printing either.
            password = Secret(f"{place}.password", password)
        url, user = (
            revealed(resolved(text, f"{place}.{key}")) for key, text in (("url", given.url), ("user", given.user))
        )
        yield name, Database(url, user, password if password.reveal() else None)


def _connect(chosen: TargetSettings, url: str, local_connect: Callable[[], KafkaConnect | None]) -> KafkaConnect | None:
    """Return Kafka Connect as the target names it, or None when it says `local` and none runs."""
    given = chosen.connect
    where = local_connect() if url == LOCAL else KafkaConnect(url)
    return where and replace(where, bootstrap=given.bootstrap, passwords=given.passwords)


def _flows_of(folder: Path, file: str) -> Iterator[Flow]:
    path = folder / file
    if not path.is_file() or path.suffix != ".py":
        raise ConfigError(
            f"headrace.yml names the file {file}.",
            why=f"{path} is {'not a Python file' if path.is_file() else 'not there'}.",
            state="Nothing was started.",
            remedy="Correct `flows:` in headrace.yml.",
            code="HR-107",
        )
    # A file that another one has imported already holds the same flows: a second import would make them twice.
    module = sys.modules.get(path.stem)
    if module is None or getattr(module, "__file__", None) != str(path):
        module = _imported(folder, file, path)
    for value in vars(module).values():
        if isinstance(value, Flow):
            yield value
        elif isinstance(value, list | tuple):
            yield from (each for each in value if isinstance(each, Flow))


def _imported(folder: Path, file: str, path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None  # noqa: S101 - a path that ends in .py always has one
    assert spec.loader is not None  # noqa: S101
    module = importlib.util.module_from_spec(spec)
    # Under its own name, as a test imports it, so that Python workers can unpickle its functions.
    sys.modules[path.stem] = module
    with _importable(folder):
        try:
            spec.loader.exec_module(module)
        except Exception as error:
            del sys.modules[path.stem]
            last = traceback.extract_tb(error.__traceback__)[-1]
            raise ConfigError(
                f"{file} cannot be imported.",
                why=f"{type(error).__name__}: {error} ({last.filename}:{last.lineno}).",
                state="Nothing was started.",
                remedy="Correct the file.",
                code="HR-108",
            ) from error
    return module


@contextmanager
def _importable(folder: Path) -> Iterator[None]:
    """Let the files of a project import each other, as Python does for a script."""
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    yield
