"""Spark sessions of commands: started on first use, stopped when the command ends."""

from contextlib import ExitStack

from pyspark.sql import SparkSession

from headrace.cli.progress import progress_reporter
from headrace.flow.target import Target
from headrace.project.project import Project
from headrace.runtime.session import open_session
from headrace.stack.jars import JarCache


class LazySession:
    """A Spark session that is started by the first call and returned by every later call."""

    def __init__(self, part: str, project: Project, target: Target, stack: ExitStack, *, json: bool) -> None:
        self._part, self._project, self._target, self._stack, self._json = part, project, target, stack, json
        self._session: SparkSession | None = None

    def __call__(self) -> SparkSession:
        """Return the session."""
        if self._session is None:
            self._session = start_session(self._part, self._project, self._target, self._stack, json=self._json)
        return self._session


def start_session(part: str, project: Project, target: Target, stack: ExitStack, *, json: bool) -> SparkSession:
    """Start Spark, and stop it when the stack is closed. `part` is the label of the progress line.

    In a process that runs Spark already the command gets a new session there, and Spark is not stopped.
    """
    active = SparkSession.getActiveSession()
    if active is not None:
        return active.newSession()
    jars = JarCache()
    with progress_reporter(json=json) as reporter:
        jars.sync(("spark",), reporter.jar)
        reporter.event(part, "starting Spark")
        spark = open_session(target, jars.verify("spark"), log=project.home / "logs" / "spark.log")
    stack.callback(spark.stop)
    return spark
