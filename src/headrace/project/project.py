"""A project: its settings, its targets with secrets resolved, and its flows.

Secrets are references, `${env:NAME}` and `${file:/path}`, resolved when a target is created and never printed.
`create_project` creates a small working project from the `.tmpl` files in `template`.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from types import ModuleType

from headrace.clients.kafka_settings import require_settings
from headrace.clients.storage import is_local
from headrace.errors import ConfigError, did_you_mean
from headrace.flow.flow import Flow
from headrace.flow.secret import Secret, reveal_secret
from headrace.flow.target import Database, HttpEndpoint, KafkaConnect, Lease, Target
from headrace.project.settings import LOCAL, LOCAL_DATABASES, ProjectSettings, TargetSettings, read_settings

_REFERENCE = re.compile(r"^\$\{(env|file):([^}]+)\}$")
_PROJECT_NAME = re.compile(r"^[a-z][a-z0-9_-]*$")
_GITIGNORE = ".headrace/\n__pycache__/\n"


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
        """The folder of local state: services, logs, and by default lake and checkpoints."""
        return self.folder / ".headrace"

    def target(
        self,
        name: str | None,
        local_broker: Callable[[], str | None],
        local_database: Callable[[str], Database | None] = lambda _part: None,
        local_connect: Callable[[], KafkaConnect | None] = lambda: None,
    ) -> Target:
        """Return a target with its secrets resolved. Local services are looked up only if the target says `local`."""
        name = name or self.settings.default_target
        targets = self.settings.targets
        if name not in targets:
            raise ConfigError(
                f"There is no target '{name}'.",
                why=f"headrace.yml has the targets {', '.join(targets)}.{did_you_mean(name, targets)}",
                remedy="Name one of them with --target.",
                code="HR-105",
            )
        target_settings = targets[name]
        kafka: dict[str, str | Secret] = {
            key: resolve_secret(value, f"targets.{name}.kafka.{key}") for key, value in target_settings.kafka.items()
        }
        require_settings(kafka, f"targets.{name}.kafka")
        if kafka.get("bootstrap.servers") == LOCAL:
            address = local_broker()
            if address:
                kafka["bootstrap.servers"] = address
            else:
                del kafka["bootstrap.servers"]

        def plain(key: str, value: str) -> str:
            return reveal_secret(resolve_secret(value, f"targets.{name}.{key}"))

        return Target(
            name=name,
            master=plain("master", target_settings.master),
            lake=self._located(plain("lake", target_settings.lake)),
            checkpoints=self._located(plain("checkpoints", target_settings.checkpoints)),
            kafka=kafka,
            databases=dict(_databases(name, target_settings, local_database)),
            spark={key: plain(f"spark.{key}", value) for key, value in target_settings.spark.items()},
            services={
                service_name: HttpEndpoint(
                    url=plain(f"services.{service_name}.url", service.url),
                    headers={
                        key: resolve_secret(value, f"targets.{name}.services.{service_name}.headers.{key}")
                        for key, value in service.headers.items()
                    },
                    private=service.private,
                    ca=service.ca,
                )
                for service_name, service in target_settings.services.items()
            },
            lease=Lease(target_settings.lease.kind, target_settings.lease.seconds),
            connect=_connect(target_settings, plain("connect.url", target_settings.connect.url), local_connect),
        )

    def flows(self, names: Sequence[str] = ()) -> list[Flow]:
        """Import the project's files and return the flows at their top level, or only those named."""
        flows_by_id: dict[int, Flow] = {}
        for file in self.settings.flows:
            for flow in _flows_of(self.folder, file):
                flows_by_id[id(flow)] = flow
        flows = list(flows_by_id.values())
        flow_names = [flow.name for flow in flows]
        for name in names:
            if name not in flow_names:
                raise ConfigError(
                    f"There is no flow '{name}'.",
                    why=f"The project has {', '.join(flow_names) or 'none'}.{did_you_mean(name, flow_names)}",
                    remedy="`headrace check` lists the flows.",
                    code="HR-106",
                )
        return [flow for flow in flows if not names or flow.name in names]

    def _located(self, root: str) -> str:
        return str((self.folder / root).absolute()) if is_local(root) and not root.startswith("file:") else root


def _databases(
    target: str, target_settings: TargetSettings, local_database: Callable[[str], Database | None]
) -> Iterator[tuple[str, Database]]:
    """Yield the databases of a target. A database that says `local` is left out if it is not running."""
    for name, database in target_settings.databases.items():
        setting = f"targets.{target}.databases.{name}"
        if database.url in LOCAL_DATABASES:
            local = local_database(LOCAL_DATABASES[database.url])
            if local is not None:
                yield name, local
            continue
        password = resolve_secret(database.password, f"{setting}.password")
        if isinstance(password, str):
            # Written out in headrace.yml: not for printing either.
            password = Secret(f"{setting}.password", password)
        url, user = (
            reveal_secret(resolve_secret(text, f"{setting}.{key}"))
            for key, text in (("url", database.url), ("user", database.user))
        )
        yield name, Database(url, user, password if password.reveal() else None)


def _connect(
    target_settings: TargetSettings, url: str, local_connect: Callable[[], KafkaConnect | None]
) -> KafkaConnect | None:
    """Return Kafka Connect of a target, or None if it says `local` and none is running."""
    connect_settings = target_settings.connect
    connect = local_connect() if url == LOCAL else KafkaConnect(url)
    return connect and replace(connect, bootstrap=connect_settings.bootstrap, passwords=connect_settings.passwords)


def _flows_of(folder: Path, file: str) -> Iterator[Flow]:
    path = folder / file
    if not path.is_file() or path.suffix != ".py":
        raise ConfigError(
            f"headrace.yml names the file {file}.",
            why=f"{path} is {'not a Python file' if path.is_file() else 'not there'}.",
            remedy="Correct `flows:` in headrace.yml.",
            code="HR-107",
        )
    # If another file imported this one already, use that module: a second import would create its flows twice.
    module = sys.modules.get(path.stem)
    if module is None or getattr(module, "__file__", None) != str(path):
        module = _import_module(folder, file, path)
    for value in vars(module).values():
        if isinstance(value, Flow):
            yield value
        elif isinstance(value, list | tuple):
            yield from (element for element in value if isinstance(element, Flow))


def _import_module(folder: Path, file: str, path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None  # noqa: S101 - a path that ends in .py always has one
    assert spec.loader is not None  # noqa: S101
    module = importlib.util.module_from_spec(spec)
    # Under its own name, as a test imports it, so that Python workers can unpickle its functions.
    sys.modules[path.stem] = module
    # Lets the files of a project import each other, as Python does for a script.
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[path.stem]
        last = traceback.extract_tb(error.__traceback__)[-1]
        raise ConfigError(
            f"{file} cannot be imported.",
            why=f"{type(error).__name__}: {error} ({last.filename}:{last.lineno}).",
            remedy="Correct the file.",
            code="HR-108",
        ) from error
    return module


def resolve_secret(text: str, setting: str) -> str | Secret:
    """Return the text, or the secret that it refers to. `setting` is its name in error messages."""
    reference = _REFERENCE.match(text.strip())
    if reference is None:
        return text
    kind, name = reference.groups()
    value = os.environ.get(name) if kind == "env" else _from_file(Path(name), setting)
    if value is None:
        raise ConfigError(
            f"{setting} refers to the environment variable {name}.",
            why="The variable is not set.",
            remedy=f"Set {name} for this process.",
            code="HR-103",
        )
    return Secret(text.strip(), value)


def _from_file(path: Path, setting: str) -> str:
    try:
        mode = path.stat().st_mode
        value = path.read_text().rstrip("\n")
    except OSError as error:
        raise ConfigError(
            f"{setting} refers to the file {path}.",
            why=f"It cannot be read: {os.strerror(error.errno or 0)}.",
            remedy="Correct the path, or make the file readable for this user.",
            code="HR-103",
        ) from error
    if mode & 0o077:
        raise ConfigError(
            f"{setting} refers to the file {path}.",
            why="Other users of this machine can read it.",
            remedy=f"Run `chmod 600 {path}`.",
            code="HR-104",
        )
    return value


def create_project(name: str, into: Path) -> Path:
    """Create the folder NAME with a flow, headrace.yml and a test, in one step: complete or not at all."""
    if not _PROJECT_NAME.match(name):
        raise ConfigError(
            f"'{name}' cannot be the name of a project.",
            why="A name starts with a letter and contains only a-z, 0-9, _ and -.",
            state="Nothing was created.",
            remedy="Choose a name like 'orders' or 'web-shop'.",
            code="HR-130",
        )
    folder = into / name
    if folder.exists():
        raise ConfigError(
            f"{folder} exists already.",
            why="A new project is created in a new folder.",
            state="Nothing was changed.",
            remedy="Choose another name, or remove the folder.",
            code="HR-131",
        )
    try:
        staging = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=into))
    except OSError as error:
        raise ConfigError(
            f"{folder} cannot be created.",
            why=f"{into.absolute()}: {os.strerror(error.errno or 0)}.",
            state="Nothing was created.",
            remedy="Make the folder writable, or go to another one.",
            code="HR-132",
        ) from error
    try:
        for file in resources.files("headrace.project").joinpath("template").iterdir():
            (staging / file.name.removesuffix(".tmpl")).write_text(file.read_text().replace("$name", name))
        (staging / ".gitignore").write_text(_GITIGNORE)
        staging.chmod(0o755)
        staging.rename(folder)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise
    return folder
