"""Idempotent writes to Delta tables (txnAppId and txnVersion), and table properties."""

from collections.abc import Mapping

from pyspark.sql import DataFrame, SparkSession

from headrace.clients.spark.jvm import analyzed_plan, clone_session, to_dataframe
from headrace.clients.sql import quote_name, string_literal

_SETTING = "spark.databricks.delta.write."


def idempotent_options(app_id: str, batch_id: int) -> dict[str, str]:
    """Return the options of a writer that make its write idempotent for this batch."""
    return {"txnAppId": app_id, "txnVersion": str(batch_id)}


def idempotent_write(app_id: str, batch_id: int) -> dict[str, str]:
    """Return the session settings that make the next Delta write idempotent for this batch.

    MERGE, DELETE and UPDATE take them from the session only.
    """
    return {f"{_SETTING}{name}": value for name, value in idempotent_options(app_id, batch_id).items()}


def without_idempotent_write(rows: DataFrame) -> DataFrame:
    """Return the rows in a session without idempotent-write settings, for a write that records no batch.

    For an idempotent write Delta reads the whole log. That is unnecessary if writing the same rows again has no effect.
    """
    session = clone_session(rows.sparkSession)
    for name in idempotent_write("", 0):
        session.conf.unset(name)
    return to_dataframe(session, analyzed_plan(rows))


def set_table_properties(session: SparkSession, location: str, properties: Mapping[str, str]) -> None:
    """Set properties of an existing table, in a commit of its own."""
    listed = ", ".join(f"{string_literal(name)} = {string_literal(value)}" for name, value in properties.items())
    session.sql(f"ALTER TABLE delta.{quote_name(location)} SET TBLPROPERTIES ({listed})")
