"""`headrace jars`: download, verify and list the jars that Headrace adds to PySpark."""

from pathlib import Path
from typing import Annotated

import typer

from headrace import stack
from headrace.cli.output import JsonOption, emit, out
from headrace.cli.progress import progress_reporter
from headrace.stack.jars import JarCache, read_lock, resolve_lock

jars_app = typer.Typer(no_args_is_help=True, help="Download, verify and list the jars that Headrace adds to PySpark.")

ConfArgument = Annotated[list[str] | None, typer.Argument(metavar="[CONF]...", help="spark, kafka, ... Default: all.")]
IVY = Path(stack.__file__).parent / "ivy.xml"


@jars_app.command("sync")
def sync(confs: ConfArgument = None, *, json: JsonOption = False) -> None:
    """Download jars that are missing or damaged, and verify them."""
    cache = JarCache()
    with progress_reporter(json=json) as reporter:
        fetched = cache.sync(confs or cache.confs, reporter.jar)
    if json:
        emit({"ok": True, "fetched": fetched, "root": cache.root})
        return
    out.print(f"{fetched} jar(s) downloaded to {cache.root}." if fetched else f"All jars in {cache.root} are valid.")


@jars_app.command("verify")
def verify(confs: ConfArgument = None, *, json: JsonOption = False) -> None:
    """Compare every jar with its sha256 in jars.lock. Downloads nothing."""
    cache = JarCache()
    paths = [path for conf in confs or cache.confs for path in cache.verify(conf)]
    if json:
        emit({"ok": True, "verified": len(paths), "root": cache.root})
        return
    out.print(f"{len(paths)} jars in {cache.root} match jars.lock.")


@jars_app.command("coordinates")
def coordinates(*, json: JsonOption = False) -> None:
    """Print options for spark-submit: --packages for a cluster, --jars for this machine."""
    cache = JarCache()
    packages = ",".join(cache.packages())
    complete = not cache.missing("spark")
    if json:
        emit({"ok": True, "packages": packages, "jars": cache.jars_argument() if complete else None})
        return
    out.print("# On a cluster that resolves packages:", markup=False)
    out.print(f"--packages {packages}", markup=False)
    out.print("# With the verified jars of this machine:", markup=False)
    out.print(f"--jars {cache.jars_argument()}" if complete else "# (run `headrace jars sync` first)", markup=False)


@jars_app.command("lock", hidden=True)
def lock(*, ivy: Annotated[Path, typer.Option(help="The ivy.xml to resolve.")] = IVY, json: JsonOption = False) -> None:
    """Resolve ivy.xml again and write jars.lock next to it. For developers, in a source tree."""
    with progress_reporter(json=json) as reporter:
        text = resolve_lock(ivy, JarCache().root, reporter.jar)
    target = ivy.with_name("jars.lock")
    target.write_text(text)
    count = len(read_lock(text))
    if json:
        emit({"ok": True, "jars": count, "lock": target})
        return
    out.print(f"{count} jars locked in {target}. Commit it together with ivy.xml.")
