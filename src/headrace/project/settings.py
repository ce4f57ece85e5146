"""headrace.yml as typed values. Unknown keys are rejected, with the nearest valid key.

name: shop
flows: [flows.py]
default_target: dev
targets:
  dev:
    lake: .headrace/lake
    checkpoints: .headrace/checkpoints
    kafka: {bootstrap.servers: local}
    databases: {shop: {url: local}}
  prod:
    master: spark://spark.example.org:7077
    lake: s3a://shop/lake
    checkpoints: s3a://shop/checkpoints
    kafka:
      bootstrap.servers: ${env:KAFKA}
      security.protocol: SASL_SSL
      sasl.mechanism: SCRAM-SHA-512
      sasl.username: shop
      sasl.password: ${file:/run/secrets/kafka}
    databases:
      shop:
        url: jdbc:postgresql://db.example.org:5432/shop
        user: headrace
        password: ${env:SHOP_PASSWORD}
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from headrace.errors import ConfigError, did_you_mean

FILE = "headrace.yml"

# The value that means a local service: the broker, Kafka Connect, or Postgres.
LOCAL = "local"
# The local databases: value in headrace.yml -> name of the service.
LOCAL_DATABASES = {LOCAL: "postgres", f"{LOCAL}:postgres": "postgres", f"{LOCAL}:mariadb": "mariadb"}


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class DatabaseSettings(_Strict):
    """One database that flows write to or read from."""

    url: str = Field(
        description="Its address as JDBC writes it, such as jdbc:postgresql://db.example.org:5432/shop, without a "
        "login. 'local' is the Postgres of `headrace up --with postgres`, 'local:mariadb' the MariaDB of `headrace up "
        "--with mariadb`; both have their own login."
    )
    user: str = Field("", description="The role that logs in.")
    password: str = Field("", description="Its password, best as a reference: ${env:NAME} or ${file:/path}.")


class ConnectSettings(_Strict):
    """Kafka Connect, which runs captures."""

    url: str = Field(
        LOCAL, description="The address of its REST interface. 'local' is that of `headrace up --with connect`."
    )
    bootstrap: str = Field("", description="The broker as its workers reach it. Default: bootstrap.servers of `kafka`.")
    passwords: dict[str, Annotated[str, Field(pattern=r"^\$\{.+\}$")]] = Field(
        default_factory=dict,
        description="By database: a reference that its workers resolve with their own provider, such as "
        "${vault:shop:password}. Passed unchanged.",
    )


class ServiceSettings(_Strict):
    """A receiver of rows over HTTP."""

    url: str = Field(description="Where it is: https, unless it is private.")
    headers: dict[str, str] = Field(
        default_factory=dict, description="Are sent with every request. Values may be references, as in `kafka`."
    )
    private: bool = Field(False, description="Whether it may be in a private network.")
    ca: str | None = Field(None, description="A file with the certificates to trust, when not the machine's.")


class LeaseSettings(_Strict):
    """How Headrace excludes a second driver from a checkpoint."""

    kind: Literal["lock", "record"] | None = Field(
        None,
        description="lock: a lock of the operating system, for a disk of one machine. record: numbered records, for "
        "storage that several machines reach. Default: lock for a local folder, record for other storage.",
    )
    seconds: float = Field(
        30.0, ge=1.0, description="How long the holder of a record has to be silent before another driver takes over."
    )


class TargetSettings(_Strict):
    """One place to run flows."""

    master: str = Field("local[*]", description="The Spark master, handed to Spark as it is.")
    lake: str = Field(
        ".headrace/lake", description="Root of the tables: a folder, or any URI that Hadoop's filesystems know."
    )
    checkpoints: str = Field(".headrace/checkpoints", description="Root of the checkpoints: a folder or a URI.")
    kafka: dict[str, str] = Field(
        default_factory=lambda: {"bootstrap.servers": LOCAL},
        description="Settings of Kafka clients. 'local' as bootstrap.servers is the broker of `headrace up`. "
        "Values may be references: ${env:NAME} or ${file:/path}.",
    )
    databases: dict[str, DatabaseSettings] = Field(
        default_factory=dict, description="Databases, by the names that flows know them under."
    )
    connect: ConnectSettings = Field(
        default_factory=lambda: ConnectSettings.model_validate({}), description="Where Kafka Connect is, for captures."
    )
    spark: dict[str, str] = Field(default_factory=dict, description="Settings of the Spark application.")
    services: dict[str, ServiceSettings] = Field(
        default_factory=dict, description="Receivers of rows over HTTP, by name, for the sink `Rest`."
    )
    lease: LeaseSettings = Field(
        default_factory=lambda: LeaseSettings.model_validate({}),
        description="How a checkpoint is limited to one driver.",
    )


class ProjectSettings(_Strict):
    """A project: its flows and where they can run."""

    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]*$", description="The name of the project.")]
    flows: list[str] = Field(
        default_factory=lambda: ["flows.py"], description="Python files, relative to headrace.yml, that declare flows."
    )
    default_target: str = Field("dev", description="The target that is used when none is named.")
    targets: dict[str, TargetSettings] = Field(
        default_factory=lambda: {"dev": TargetSettings.model_validate({})}, description="Places to run flows, by name."
    )

    @model_validator(mode="after")
    def _default_exists(self) -> ProjectSettings:
        if self.default_target not in self.targets:
            message = f"default_target '{self.default_target}' is not among the targets {', '.join(self.targets)}"
            raise ValueError(message)
        return self


def read_settings(folder: Path) -> ProjectSettings:
    """Read headrace.yml of a project folder. The error lists all problems of the file."""
    path = folder / FILE
    try:
        text = path.read_text()
    except FileNotFoundError as error:
        raise ConfigError(
            f"There is no {FILE} in {folder.absolute()}.",
            why="The command needs a project.",
            remedy="Go to the folder of a project, name it with --project, or make one with `headrace init NAME`.",
            code="HR-101",
        ) from error
    try:
        content = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise _unusable_settings(path, f"It is not YAML: {' '.join(str(error).split())}.") from error
    if not isinstance(content, dict):
        raise _unusable_settings(path, "It contains no settings.")
    try:
        return ProjectSettings.model_validate(content)
    except ValidationError as error:
        raise _unusable_settings(path, " ".join(_sentence(problem) for problem in error.errors())) from error


def _unusable_settings(path: Path, why: str) -> ConfigError:
    return ConfigError(
        f"{path} cannot be used.",
        why=why,
        remedy="Correct the file. `headrace schema` prints its JSON schema for your editor.",
        code="HR-102",
    )


def _sentence(problem: object) -> str:
    """Describe one pydantic error as a sentence, with the nearest valid key."""
    assert isinstance(problem, dict)  # noqa: S101 - the shape of pydantic's ErrorDetails
    path_of_key = [str(part) for part in problem["loc"]]
    where = ".".join(path_of_key)
    if problem["type"] == "extra_forbidden":
        known_keys = ProjectSettings.model_fields
        if "targets" in path_of_key[:-1]:
            inner: dict[str, type[_Strict]] = {
                "databases": DatabaseSettings,
                "services": ServiceSettings,
                "connect": ConnectSettings,
            }
            section = path_of_key[2] if len(path_of_key) > 3 else ""
            known_keys = inner.get(section, TargetSettings).model_fields
        return f"The key '{where}' is unknown.{did_you_mean(path_of_key[-1], known_keys)}"
    if problem["type"] == "missing":
        return f"The key '{where}' is missing."
    message = str(problem["msg"]).removeprefix("Value error, ")
    return f"{where}: {message}." if where else f"{message}."
