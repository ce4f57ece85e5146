"""Build the jars of Headrace from their Java sources: `make jar`. Needs a JDK; users do not, the jars are in the tree.

Each jar names the sha256 of the source it was built from, and holds no dates: built twice it is the same file.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import pyspark

PACKAGE = Path(__file__).parents[1] / "src/headrace"
# Each source and the jar that is built from it.
JARS = {
    PACKAGE / "ingest/jvm/FlatJson.java": PACKAGE / "ingest/jvm/flat-json.jar",
    PACKAGE / "runtime/jvm/LocalDisk.java": PACKAGE / "runtime/jvm/local-disk.jar",
}
MANIFEST = "META-INF/MANIFEST.MF"


def manifest(source: Path) -> str:
    """Return the manifest of a jar that is built from the source as it is now."""
    return f"Manifest-Version: 1.0\nSource-SHA256: {hashlib.sha256(source.read_bytes()).hexdigest()}\n\n"


def build(source: Path, jar: Path) -> None:
    """Compile one source and write its jar."""
    with tempfile.TemporaryDirectory() as folder:
        classpath = f"{Path(pyspark.__file__).parent / 'jars'}/*"
        command = ["javac", "--release", "17", "-proc:none", "-g:none", "-cp", classpath, "-d", folder, str(source)]
        subprocess.run(command, check=True)  # noqa: S603
        with zipfile.ZipFile(jar, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(zipfile.ZipInfo(MANIFEST), manifest(source))
            for file in sorted(Path(folder).rglob("*.class")):
                entry = zipfile.ZipInfo(str(file.relative_to(folder)))
                entry.compress_type = zipfile.ZIP_DEFLATED
                archive.writestr(entry, file.read_bytes())
    sys.stdout.write(f"{jar} ({jar.stat().st_size} bytes)\n")


if __name__ == "__main__":
    for source, jar in JARS.items():
        build(source, jar)
