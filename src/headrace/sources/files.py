"""A watched folder of files as a source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, get_args

from pyspark.errors import AnalysisException
from pyspark.sql import functions as F

from headrace.clients.file_folder import FileFormat, is_pattern
from headrace.errors import nearest
from headrace.flow.source import Bound
from headrace.flow.target import Target
from headrace.sources.arrivals import arriving_files
from headrace.sources.bounds import file_bounds, file_options, require_bounds, undeclarable
from headrace.sources.errors import not_again
from headrace.sources.local_folder import require_readable
from headrace.sources.sink_folder import require_log_honoured, written_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_DEFAULTS = {
    # Spark's own default turns a field that it cannot read into null and says nothing.
    "mode": "FAILFAST",
    # Spark's own default is a week: a file that is older than the newest one by more, for instance because it was
    # moved here with its times kept, would be passed over unsaid. The log of files in the checkpoint never shrinks
    # either way, so ten years cost little.
    "maxFileAge": "3650d",
}
# Options that are fields here; set twice, one of the two would be without effect.
_FIELDS = ("path", "maxFilesPerTrigger", "maxBytesPerTrigger")


@dataclass(frozen=True)
class FileSource:
    """Read each file of a folder once, oldest first, below the lake unless `path` is absolute.

    Each file is read exactly once, while:
      1. files appear whole: write them elsewhere on the same disk, then move them in;
      2. a file never changes and is never replaced under its name. Spark remembers names, not contents;
      3. a file stays until its batch is committed.

    Of a folder that another flow writes with a Files sink, the files of committed batches are read, with the options by
    which rows come back as they were. A pattern, or a folder below it, is refused: Spark would then read the files of
    attempts that never committed.

    Rows carry the fields of the schema, each of which may be null. A line of CSV or JSON that cannot be read as
    declared stops the flow: rows are never skipped unsaid. The option `mode` has it otherwise. An audit can read a
    batch again while its files are there, since the checkpoint names them; a replay cannot.

    | field                 | meaning                                                                          |
    |-----------------------|----------------------------------------------------------------------------------|
    | path                  | the folder; files in folders below it are read when `path` is a pattern (`in/*`) |
    | format                | csv, json, parquet or orc                                                        |
    | schema                | the fields; nothing is guessed from the files                                    |
    | max_files_per_trigger | the most files of one batch                                                      |
    | max_bytes_per_trigger | in its place: the bytes after which a batch takes no further file                |
    | options               | further options of Spark's reader, such as `header` for CSV                      |

    One of the two bounds is required (HRC-110).
    """

    path: str
    format: FileFormat
    schema: StructType
    max_files_per_trigger: int | None = None
    max_bytes_per_trigger: int | None = None
    options: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        formats = get_args(FileFormat)
        if self.format not in formats:
            raise undeclarable(
                f"{self.name} is not a format of files that can be read.",
                f"The formats are {', '.join(formats)}.{nearest(self.format, formats)}",
                "Set format to one of them.",
            )
        require_bounds(self.name, self.bounds, both=False)
        taken = {option.lower() for option in _FIELDS}
        for option in self.options:
            if option.lower() in taken:
                raise undeclarable(f"{self.name} sets the option {option}.", "It is a field.", "Set the field instead.")

    @property
    def name(self) -> str:
        """Return `FORMAT:PATH`."""
        return f"{self.format}:{self.path}"

    @property
    def carries_payload(self) -> bool:
        """Files are read into columns."""
        return False

    @property
    def bounds(self) -> tuple[Bound, ...]:
        """The two bounds of a batch."""
        return file_bounds(self.max_files_per_trigger, self.max_bytes_per_trigger)

    def arrivals(self, target: Target) -> dict[str, float]:
        """Return the files and bytes a second of the last hour, by the times of the files."""
        return arriving_files(target.table(self.path))

    def preflight(self, target: Target) -> None:
        """Prove that a local folder can be listed. A pattern is left to Spark."""
        if not is_pattern(self.path):
            require_readable(target.table(self.path))

    def stream(self, spark: SparkSession, target: Target) -> DataFrame:
        """Return the endless frame of the folder."""
        location = target.table(self.path)
        require_log_honoured(spark, self.name, location)
        reader = spark.readStream.format(self.format).schema(self.schema).options(**self._reading(spark, location))
        bounds = file_options(self.max_files_per_trigger, self.max_bytes_per_trigger)
        rows = reader.options(**bounds).load(location)
        # Spark adds the columns of folders that it finds, and only those that are there at the start.
        return rows if rows.columns == self.schema.names else rows.select(*(F.col(f"`{n}`") for n in self.schema.names))

    def rows_of(self, spark: SparkSession, target: Target, paths: Sequence[str]) -> DataFrame:
        """Return the rows of files that a flow has read, as its stream gave them."""
        location = target.table(self.path)
        reader = spark.read.format(self.format).schema(self.schema).options(**self._reading(spark, location))
        if not is_pattern(location):
            # The columns that folders stand for are told from here on.
            reader = reader.option("basePath", location)
        try:
            return reader.load(list(paths)).select(*(F.col(f"`{name}`") for name in self.schema.names))
        except AnalysisException as error:
            raise not_again(self.name, "A file that was read is not there any more.") from error

    def _reading(self, spark: SparkSession, location: str) -> dict[str, str]:
        """Return the options of Spark's reader: the declared ones, and beside them those of the house."""
        defaults = dict(_DEFAULTS)
        if not is_pattern(location):
            defaults |= written_options(spark, self.name, location, self.format)
        own = {option.lower() for option in self.options}
        return {**{option: value for option, value in defaults.items() if option.lower() not in own}, **self.options}

    def batch(self, spark: SparkSession, target: Target, start: str, end: str) -> DataFrame:
        """Raise: the offset log counts batches of files and does not name them."""
        raise not_again(self.name, "The offset log of a folder counts its batches and does not name their files.")
