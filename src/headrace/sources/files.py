"""A folder of files as a source."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import get_args

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from headrace.clients.file_sink_log import FileFormat, is_glob
from headrace.clients.sql import column_named
from headrace.errors import did_you_mean
from headrace.flow.source import ReadsFiles
from headrace.flow.target import Target
from headrace.sources.arrival_rates import file_arrival_rates
from headrace.sources.errors import source_not_replayable
from headrace.sources.file_based import FileBasedSource, require_readable
from headrace.sources.sink_folder import require_readable_by_log, sink_read_options
from headrace.sources.validation import invalid_source, require_bounds

_DEFAULTS = {
    # Spark's default silently turns an unreadable field into null.
    "mode": "FAILFAST",
    # Spark's default is a week: it silently ignores a file that is older than the newest one by more than that, for
    # instance because it was moved here with its modification time. The file log in the checkpoint never shrinks
    # anyway, so ten years cost little.
    "maxFileAge": "3650d",
}
# Options that are fields of the source: an option of the same name would be ignored.
_FIELDS = ("path", "maxFilesPerTrigger", "maxBytesPerTrigger")


@dataclass(frozen=True)
class FileSource(FileBasedSource, ReadsFiles):
    """Read each file of a folder once, oldest first, below the lake unless `path` is absolute.

    Each file is read exactly once, while:
      1. files appear atomically: write them elsewhere on the same disk, then move them in;
      2. a file never changes and is never replaced under its name. Spark tracks names, not contents;
      3. a file stays until its batch is committed.

    For a folder that another flow writes with a FileSink, only the files of committed batches are read, with matching
    read options. A glob or a subfolder of it is an error: Spark would read the files of attempts that never committed.

    Rows have the fields of the schema, all nullable. A CSV or JSON line that does not match the schema stops the flow:
    rows are never skipped silently. The option `mode` changes this. An audit can read a batch again while its files
    exist, because the checkpoint lists them; a replay cannot.

    | field                 | meaning                                                                          |
    |-----------------------|----------------------------------------------------------------------------------|
    | path                  | the folder, or a glob; only a glob (`in/*`) reads files in subfolders            |
    | format                | csv, json, parquet or orc                                                        |
    | schema                | the fields; nothing is inferred from the files                                   |
    | max_files_per_trigger | the maximum number of files per batch                                            |
    | max_bytes_per_trigger | instead of that: the soft maximum of bytes per batch                             |
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
            raise invalid_source(
                f"{self.name} is not a format of files that can be read.",
                f"The formats are {', '.join(formats)}.{did_you_mean(self.format, formats)}",
                "Set format to one of them.",
            )
        require_bounds(self.name, self.bounds, both=False)
        fields = {option.lower() for option in _FIELDS}
        for option in self.options:
            if option.lower() in fields:
                raise invalid_source(
                    f"{self.name} sets the option {option}.", "It is a field.", "Set the field instead."
                )

    @property
    def name(self) -> str:
        """Return `FORMAT:PATH`."""
        return f"{self.format}:{self.path}"

    def arrival_rates(self, target: Target) -> dict[str, float]:
        """Return files and bytes per second of the last hour, by file modification times."""
        return file_arrival_rates(target.table(self.path))

    def preflight(self, target: Target) -> None:
        """Check that a local folder can be listed. A glob is not checked."""
        if not is_glob(self.path):
            require_readable(target.table(self.path))

    def stream(self, spark: SparkSession, target: Target) -> DataFrame:
        """Return the streaming DataFrame of the folder."""
        location = target.table(self.path)
        require_readable_by_log(spark, self.name, location)
        reader = spark.readStream.format(self.format).schema(self.schema).options(**self._reading(spark, location))
        rows = reader.options(**self._bound_options()).load(location)
        # Spark adds the partition columns of folders that exist at the start. Drop those that are not declared.
        return rows if rows.columns == self.schema.names else rows.select(*(column_named(n) for n in self.schema.names))

    def read_files(self, spark: SparkSession, target: Target, paths: Sequence[str]) -> DataFrame:
        """Return the rows of files that a flow has read, as its stream returned them."""
        location = target.table(self.path)
        reader = spark.read.format(self.format).schema(self.schema).options(**self._reading(spark, location))
        if not is_glob(location):
            # Spark infers partition columns below the base path.
            reader = reader.option("basePath", location)
        try:
            return reader.load(list(paths)).select(*(column_named(name) for name in self.schema.names))
        except AnalysisException as error:
            raise source_not_replayable(self.name, "A file that was read no longer exists.") from error

    def _reading(self, spark: SparkSession, location: str) -> dict[str, str]:
        """Return the options of Spark's reader: the declared ones and Headrace's defaults."""
        defaults = dict(_DEFAULTS)
        if not is_glob(location):
            defaults |= sink_read_options(spark, self.name, location, self.format)
        own = {option.lower() for option in self.options}
        return {**{option: value for option, value in defaults.items() if option.lower() not in own}, **self.options}

    def batch(self, spark: SparkSession, target: Target, start: str, end: str) -> DataFrame:
        """Raise HR-511: the offset log counts batches and does not name their files."""
        raise source_not_replayable(
            self.name, "The offset log of a folder counts its batches and does not name their files."
        )
