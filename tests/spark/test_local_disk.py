"""Headrace's classes for local disks do what Hadoop's own do, without starting a process for each file."""

from __future__ import annotations

import os
import runpy
import stat
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from py4j.java_gateway import JavaObject
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

OURS, HADOOPS = "io.headrace.files.LocalDisk$Raw", "org.apache.hadoop.fs.RawLocalFileSystem"
BUILD = runpy.run_path(str(Path(__file__).parents[2] / "tools" / "build_jar.py"))


def jvm(spark: SparkSession) -> Any:
    return spark._jvm


def settings(spark: SparkSession) -> JavaObject:
    return spark._jsc.hadoopConfiguration()


def disk(spark: SparkSession, name: str) -> Any:
    package, _, simple = name.rpartition(".")
    created = getattr(getattr(jvm(spark), package), simple)()
    created.initialize(jvm(spark).java.net.URI("file:///"), settings(spark))
    return created


def path(spark: SparkSession, place: Path) -> Any:
    return jvm(spark).org.apache.hadoop.fs.Path(str(place))


def processes_started(spark: SparkSession, folder: Path, work: Callable[[], object]) -> list[str]:
    """Return the commands of the processes that the JVM starts during the block, from its flight recorder."""
    recording = jvm(spark).jdk.jfr.Recording()
    recording.enable("jdk.ProcessStart").withoutThreshold()
    recording.start()
    work()
    recording.stop()
    file = jvm(spark).java.io.File(str(folder / "recording.jfr")).toPath()
    recording.dump(file)
    recording.close()
    events = jvm(spark).jdk.jfr.consumer.RecordingFile.readAllEvents(file)
    return [event.getString("command") for event in events]


def test_a_session_uses_them_by_both_of_hadoops_doors(spark: SparkSession):
    hadoop = jvm(spark).org.apache.hadoop.fs
    there = jvm(spark).java.net.URI("file:///")
    assert hadoop.FileSystem.get(there, settings(spark)).getRaw().getClass().getName() == OURS
    context = hadoop.FileContext.getFileContext(there, settings(spark)).getDefaultFileSystem()
    assert context.getClass().getName() == "io.headrace.files.LocalDisk$ForContexts"


def test_a_commit_to_a_table_starts_no_process(spark: SparkSession, tmp_path: Path):
    def commit() -> None:
        spark.range(3).write.format("delta").save(str(tmp_path / "table"))

    assert processes_started(spark, tmp_path, commit) == []


def test_hadoops_own_class_starts_one_per_file(spark: SparkSession, tmp_path: Path):
    """Without this, the test above would prove nothing: the recorder could be blind."""

    def create() -> None:
        disk(spark, HADOOPS).create(path(spark, tmp_path / "file"), True).close()

    commands = processes_started(spark, tmp_path, create)
    assert len(commands) == 1
    assert "chmod" in commands[0]


@pytest.mark.parametrize("mode", [0o777, 0o640, 0o400, 0o000, 0o751, 0o1777])
def test_permissions_are_those_that_hadoop_sets(spark: SparkSession, tmp_path: Path, mode: int):
    modes = []
    for number, name in enumerate((OURS, HADOOPS)):
        file, folder = tmp_path / f"file{number}", tmp_path / f"folder{number}"
        files, permission = disk(spark, name), jvm(spark).org.apache.hadoop.fs.permission.FsPermission(f"{mode:04o}")
        files.create(path(spark, file), True).close()
        created = file.stat().st_mode
        files.setPermission(path(spark, file), permission)
        files.mkdirs(path(spark, folder), permission)
        modes.append([created, file.stat().st_mode, folder.stat().st_mode])
    assert modes[0] == modes[1]
    assert stat.S_IMODE(modes[0][1]) == mode


@pytest.mark.parametrize("kind", ["file", "folder", "link", "link to a folder", "dangling link"])
def test_the_status_of_a_path_equals_that_of_hadoop(spark: SparkSession, tmp_path: Path, kind: str):
    (tmp_path / "file").write_text("five\n")
    (tmp_path / "folder").mkdir()
    os.symlink(tmp_path / "file", tmp_path / "link")
    os.symlink(tmp_path / "folder", tmp_path / "link to a folder")
    os.symlink(tmp_path / "missing", tmp_path / "dangling link")

    def status(name: str) -> tuple[object, ...]:
        actual = disk(spark, name).getFileLinkStatus(path(spark, tmp_path / kind))
        target = actual.getSymlink().toString() if actual.isSymlink() else None
        return actual.getPath().toString(), actual.getLen(), actual.isDirectory(), target

    assert status(OURS) == status(HADOOPS)


def test_a_missing_path_is_reported_as_hadoop_reports_it(spark: SparkSession, tmp_path: Path):
    message = []
    for name in (OURS, HADOOPS):
        with pytest.raises(Exception, match="FileNotFoundException") as missing:
            disk(spark, name).getFileLinkStatus(path(spark, tmp_path / "missing"))
        message.append(str(missing.value.java_exception.getMessage()))
    assert message[0] == message[1]


def test_a_rename_refuses_a_name_that_is_taken(spark: SparkSession, tmp_path: Path):
    """Spark's checkpoints and Delta's log rely on it."""
    hadoop = jvm(spark).org.apache.hadoop.fs
    context = hadoop.FileContext.getFileContext(jvm(spark).java.net.URI("file:///"), settings(spark))
    for name in ("new", "taken"):
        (tmp_path / name).write_text(name)
    options = spark._sc._gateway.new_array(jvm(spark).org.apache.hadoop.fs.Options.Rename, 0)  # type: ignore[union-attr]
    with pytest.raises(Exception, match="FileAlreadyExistsException"):
        context.rename(path(spark, tmp_path / "new"), path(spark, tmp_path / "taken"), options)
    assert (tmp_path / "taken").read_text() == "taken"


@pytest.mark.parametrize("source", BUILD["JARS"], ids=lambda source: source.stem)
def test_a_jar_was_built_from_its_source(source: Path):
    with zipfile.ZipFile(BUILD["JARS"][source]) as jar:
        assert jar.read(BUILD["MANIFEST"]).decode() == BUILD["manifest"](source), "Run `make jar`."
