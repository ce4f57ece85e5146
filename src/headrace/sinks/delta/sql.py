"""How a write to a Delta table is told to Spark: settings of the session, the identity of a batch, names in SQL."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from pyspark.sql import DataFrame, SparkSession

_IDENTITY = ("spark.databricks.delta.write.txnAppId", "spark.databricks.delta.write.txnVersion")


def identity(app_id: str, batch_id: int) -> dict[str, str]:
    """Return the settings under which Delta records a batch with a commit."""
    return dict(zip(_IDENTITY, (app_id, str(batch_id)), strict=True))


def without_identity(rows: DataFrame) -> DataFrame:
    """Return the rows for a write that records no batch, whatever the session says at the moment.

    Delta reads the whole log to find out whether it has a batch already. That is spared where a second write of the
    same rows changes nothing.
    """
    jvm, own = rows.sparkSession._jvm, rows.sparkSession._jsparkSession.cloneSession()
    assert jvm is not None  # noqa: S101 - a classic session always has its JVM
    apart = SparkSession(rows.sparkSession.sparkContext, own)
    for name in _IDENTITY:
        apart.conf.unset(name)
    same = jvm.org.apache.spark.sql.classic.Dataset.ofRows(own, rows._jdf.queryExecution().analyzed())
    return DataFrame(same, apart)


@contextmanager
def settings(session: SparkSession, chosen: Mapping[str, str]) -> Iterator[None]:
    """Set settings of the session, and put them back: the next write of this session may be another sink's."""
    before: dict[str, str | None] = {key: session.conf.get(key, None) for key in chosen}
    for key, value in chosen.items():
        session.conf.set(key, value)
    try:
        yield
    finally:
        for key, old in before.items():
            if old is None:
                session.conf.unset(key)
            else:
                session.conf.set(key, old)


def quoted(name: str) -> str:
    """Return the name of a column as SQL writes it, whatever it holds."""
    return "`" + name.replace("`", "``") + "`"


def text(value: str) -> str:
    """Return a text as SQL writes it, whatever it holds."""
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
