"""Errors of an erasure. No message contains a value of the row."""

from collections.abc import Sequence
from pathlib import Path

from headrace.errors import ConfigError, DataError, did_you_mean

_UNCHANGED = "Nothing was erased."


def still_in_source(table: str, database: str) -> DataError:
    """Return the error for a row that is still in its database."""
    return DataError(
        f"The row is still in table {table} of database '{database}'.",
        why="What is erased downstream comes back with the row's next change, a new snapshot or a reconciliation.",
        state=_UNCHANGED,
        remedy=f"Delete the row in '{database}', let the flow that captures it read the delete, then run this again.",
        code="HR-530",
    )


def not_read_yet(path: str, flow: str) -> DataError:
    """Return the error for a mirror with a row that its source has deleted."""
    return DataError(
        f"The source has deleted the row, but the mirror {path} still contains it.",
        why=f"Flow '{flow}' has not read the delete yet. Changes of the row before it would insert the row again.",
        state=_UNCHANGED,
        remedy=f"Start `headrace run {flow}` until it has read everything, or repair the mirror with `headrace "
        "reconcile cdc`; then run this again.",
        code="HR-531",
    )


def change_pending(path: str, flow: str) -> DataError:
    """Return the error for a change of the row that was read and may still be applied."""
    return DataError(
        f"A change of the row is pending in {path}.",
        why=f"Flow '{flow}' applies complete transactions only. Without this change its transaction would never be "
        "complete, and nothing after it would be applied.",
        state=_UNCHANGED,
        remedy=f"Start `headrace run {flow}` until it has read everything; then run this again.",
        code="HR-531",
    )


def no_key(table: str, why: str) -> ConfigError:
    """Return the error for a key whose column is unknown."""
    return ConfigError(
        f"The column of '{table}' that contains the key is unknown.",
        why=why,
        state=_UNCHANGED,
        remedy="Name it: `--key COLUMN=VALUE`, once for each column of the key.",
        code="HR-136",
    )


def no_such_table(table: str, table_names: Sequence[str]) -> DataError:
    """Return the error for an unknown table: the report for a typing error would look like a success."""
    return DataError(
        f"There is no table '{table}'.",
        why="No Delta table of the lake has this name, none has a column that is named after it, and no capture of the "
        f"project captures it.{did_you_mean(table, table_names)}",
        state=_UNCHANGED,
        remedy="Correct `--table`, name another target, or name the column of its key with `--column PATH=COLUMN`.",
        code="HR-532",
    )


def no_such_column(path: str, column: str, column_names: Sequence[str]) -> ConfigError:
    """Return the error for a `--column` that does not exist."""
    return ConfigError(
        f"'{path}={column}' names no column of a table.",
        why=f"There is no Delta table {path} below the lake, or it has no column '{column}'."
        f"{did_you_mean(column, column_names)}",
        state=_UNCHANGED,
        remedy="Write the table's path below the lake and its column: `--column gold/orders=buyer`.",
        code="HR-137",
    )


def delta_refuses(path: str, error: Exception) -> DataError:
    """Return the error for a table that cannot be changed."""
    line = next(iter(str(error).strip().splitlines()), type(error).__name__)
    return DataError(
        f"The subject cannot be erased from {path}.",
        why=f"Delta says: {line[:300]}",
        state="Tables before this one are finished. This one may be partly erased; its current rows are correct.",
        remedy="Remove the cause (a table that is append-only: `delta.appendOnly`), and run the same command again.",
        code="HR-535",
    )


def delta_checkpoint_missing(location: str, end: int) -> DataError:
    """Return the error for a log that could not be truncated."""
    return DataError(
        f"The log of {location} cannot be truncated.",
        why=f"Delta has not made a checkpoint of version {end}: without it the older entries are still needed.",
        state="The rows and the files of old versions are deleted. The log is unchanged.",
        remedy="Run the same command again; Spark's log says why the checkpoint failed.",
        code="HR-536",
    )


def not_a_report(path: Path, why: str) -> ConfigError:
    """Return the error for a file that is not a report."""
    return ConfigError(
        f"{path} is not a report of an erasure.",
        why=why,
        state="Nothing was changed.",
        remedy="Name the .json file that `headrace erase` wrote; its .sha256 has to be in the same folder.",
        code="HR-138",
    )
