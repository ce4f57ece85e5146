"""Run the night's batch over the same files, and compare it with the stream's table row by row.

    python parity.py            # from this folder, after `headrace run`

Exits with 1 when a row differs.
"""

import sys
from pathlib import Path

from flows import KEY, SALE, SALES, TABLE, daily_revenue

from headrace.testing import local_session


def differences(spark, lake):
    """Return the rows of only one side, as (day, region), the stream's row and the batch's."""
    batch = daily_revenue(spark.read.schema(SALE).json(f"{lake}/{SALES}"))
    stream = spark.read.format("delta").load(f"{lake}/{TABLE}")
    by_batch, by_stream = (
        {tuple(row[name] for name in KEY): row.asDict() for row in side.collect()} for side in (batch, stream)
    )
    keys = sorted(by_batch.keys() | by_stream.keys())
    return len(keys), [
        (key, by_stream.get(key), by_batch.get(key)) for key in keys if by_stream.get(key) != by_batch.get(key)
    ]


def main(home=Path(".headrace")):
    """Print what differs; return the exit code."""
    with local_session(home / "parity") as spark:
        rows, differing = differences(spark, (home / "lake").absolute())
    for key, stream, batch in differing:
        print(f"{key}: the stream has {stream}, the batch {batch}")
    print(f"{rows} rows compared, {len(differing)} differ")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
