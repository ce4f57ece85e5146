"""Build flat-json.jar from FlatJson.java: `make jar`. Needs a JDK; users do not, they get the jar.

The jar names the sha256 of the source it was built from, and holds no dates: built twice it is the same file.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import pyspark

FOLDER = Path(__file__).parents[1] / "src/headrace/transforms/jvm"
SOURCE, JAR = FOLDER / "FlatJson.java", FOLDER / "flat-json.jar"
MANIFEST = "META-INF/MANIFEST.MF"


def manifest() -> str:
    """Return the manifest of a jar that is built from the source as it is now."""
    return f"Manifest-Version: 1.0\nSource-SHA256: {hashlib.sha256(SOURCE.read_bytes()).hexdigest()}\n\n"


def main() -> None:
    """Compile, and write the jar."""
    with tempfile.TemporaryDirectory() as folder:
        classpath = f"{Path(pyspark.__file__).parent / 'jars'}/*"
        command = ["javac", "--release", "17", "-proc:none", "-g:none", "-cp", classpath, "-d", folder, str(SOURCE)]
        subprocess.run(command, check=True)  # noqa: S603
        classes = sorted(Path(folder).rglob("*.class"))
        with zipfile.ZipFile(JAR, "w", zipfile.ZIP_DEFLATED) as jar:
            jar.writestr(zipfile.ZipInfo(MANIFEST), manifest())
            for each in classes:
                entry = zipfile.ZipInfo(str(each.relative_to(folder)))
                entry.compress_type = zipfile.ZIP_DEFLATED
                jar.writestr(entry, each.read_bytes())
    sys.stdout.write(f"{JAR} ({JAR.stat().st_size} bytes)\n")


if __name__ == "__main__":
    main()
