"""Make an archive of the classes that Spark loads, for the JVMs of a test run: they start with half of the work.

    python tests/class_archive.py FILE

The JVM writes the archive as it ends, so a Spark is started here, has a taste of the usual work, and is stopped.
An archive of the same JVM, jars and program is used again.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pyspark

from headrace.flow.target import Target
from headrace.runtime.session import open_session
from headrace.stack.jars import JarCache
from headrace.stack.java import find_java


def archive(file: Path) -> bool:
    """Write the archive unless it is there, and say whether it is."""
    fingerprint, fingerprint_file = _fingerprint(), file.with_suffix(".made-of")
    if file.exists() and fingerprint_file.exists() and fingerprint_file.read_text() == fingerprint:
        return True
    fingerprint_file.unlink(missing_ok=True)
    file.unlink(missing_ok=True)
    # Not a word about each class that it cannot keep.
    own = f"-XX:ArchiveClassesAtExit={file} -Xlog:cds=off"
    os.environ["SPARK_SUBMIT_OPTS"] = f"{os.environ.get('SPARK_SUBMIT_OPTS', '')} {own}"
    with tempfile.TemporaryDirectory(prefix="headrace-classes-") as folder:
        target = Target("classes", lake=f"{folder}/lake", checkpoints=f"{folder}/checkpoints")
        spark = open_session(target, JarCache().verify("spark"), log=Path(folder) / "jvm.log")
        table, counts = f"{folder}/table", f"{folder}/counts"
        for _ in range(2):
            spark.range(100).selectExpr("id % 5 AS key", "current_timestamp() AS at").write.format("delta").mode(
                "append"
            ).save(table)
        counted = spark.readStream.format("delta").load(table).withWatermark("at", "1 minute").groupBy("key").count()
        query = (
            counted.writeStream.foreachBatch(lambda rows, _: rows.write.format("delta").mode("overwrite").save(counts))
            .outputMode("complete")
            .trigger(availableNow=True)
            .option("checkpointLocation", f"{folder}/checkpoint")
            .start()
        )
        query.awaitTermination()
        spark.read.format("delta").load(counts).collect()
        gateway = spark.sparkContext._gateway
        spark.stop()
        assert gateway is not None
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait(120)
    if file.exists():
        fingerprint_file.write_text(fingerprint)
    return file.exists()


def _fingerprint() -> str:
    """Return a digest of what the archive depends on: the JVM, its options, the jars and this program."""
    java = subprocess.run([find_java().binary, "-version"], capture_output=True, check=True).stderr
    jars = [*sorted(Path(pyspark.__file__).parent.glob("jars/*.jar")), *JarCache().verify("spark")]
    jar_list = "\n".join(f"{jar} {jar.stat().st_size} {jar.stat().st_mtime_ns}" for jar in jars)
    options = os.environ.get("SPARK_SUBMIT_OPTS", "")
    return hashlib.sha256(
        b"\n".join([java, jar_list.encode(), options.encode(), Path(__file__).read_bytes()])
    ).hexdigest()


if __name__ == "__main__":
    sys.exit(0 if archive(Path(sys.argv[1])) else 1)
