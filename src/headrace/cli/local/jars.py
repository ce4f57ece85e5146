"""`headrace jars`: fetch, verify and name the jars beside PySpark."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headrace import stack
from headrace.cli.output import JsonOption, emit, out
from headrace.cli.progress import shown
from headrace.stack.jars import JarCache, read_lock, resolve_lock

jars_app = typer.Typer(no_args_is_help=True, help="The jars beside PySpark: fetch, verify, name them.")

ConfArgument = Annotated[list[str] | None, typer.Argument(metavar="[CONF]...", help="spark, kafka, ... Default: all.")]
IVY = Path(stack.__file__).parent / "ivy.xml"


@jars_app.command("sync")
def sync(confs: ConfArgument = None, *, json: JsonOption = False) -> None:
    """Fetch the jars that are missing or damaged, and verify them."""
    cache = JarCache()
    with shown(json=json) as show:
        fetched = cache.sync(confs or cache.confs, show.jar)
    if json:
        emit({"ok": True, "fetched": fetched, "root": cache.root})
        return
    out.print(f"{fetched} jar(s) fetched into {cache.root}." if fetched else f"All jars in {cache.root} are good.")


@jars_app.command("verify")
def verify(confs: ConfArgument = None, *, json: JsonOption = False) -> None:
    """Compare every jar with its sha256 in jars.lock. Fetches nothing."""
    cache = JarCache()
    paths = [path for conf in confs or cache.confs for path in cache.verify(conf)]
    if json:
        emit({"ok": True, "verified": len(paths), "root": cache.root})
        return
    out.print(f"{len(paths)} jars in {cache.root} are the ones in jars.lock.")


@jars_app.command("coordinates")
def coordinates(*, json: JsonOption = False) -> None:
    """Print the lines that spark-submit takes: --packages for a cluster, --jars for this machine."""
    cache = JarCache()
    packages = ",".join(cache.packages())
    here = not cache.missing("spark")
    if json:
        emit({"ok": True, "packages": packages, "jars": cache.jars_argument() if here else None})
        return
    out.print("# On a cluster that resolves packages itself:", markup=False)
    out.print(f"--packages {packages}", markup=False)
    out.print("# From this machine's verified jars:", markup=False)
    out.print(f"--jars {cache.jars_argument()}" if here else "# (run `headrace jars sync` first)", markup=False)


@jars_app.command("lock", hidden=True)
def lock(
    *,
    ivy: Annotated[Path, typer.Option(help="The ivy.xml to resolve.")] = IVY,
    json: JsonOption = False,
) -> None:
    """Resolve ivy.xml anew and write jars.lock beside it. For developers, in a source tree."""
    with shown(json=json) as show:
        text = resolve_lock(ivy, JarCache().root, show.jar)
    target = ivy.with_name("jars.lock")
    target.write_text(text)
    count = len(read_lock(text))
    if json:
        emit({"ok": True, "jars": count, "lock": target})
        return
    out.print(f"{count} jars locked in {target}. Commit it together with ivy.xml.")
