"""Find the checkpoint of a flow by its name: a folder below the target's root, and nothing else."""

from collections.abc import Iterable, Sequence

from headrace.clients.storage import FileStore, is_local, local_path
from headrace.errors import ConfigError, RecoveryError, did_you_mean
from headrace.flow.checks.check import FLOW_NAME
from headrace.flow.target import Target
from headrace.runtime.checkpoint.checkpoint import Checkpoint


def find_checkpoint(name: str, target: Target, files: FileStore, declared: Sequence[str] = ()) -> Checkpoint:
    """Return the checkpoint of a declared flow, or of a removed one that still has its folder.

    Raises if no flow has the name, or if a link leads out of the root.
    """
    if not FLOW_NAME.fullmatch(name):
        raise ConfigError(
            f"'{name}' is not the name of a flow.",
            why="A flow's name is a letter, then a-z, 0-9, _ and -, at most 63; it names one folder of the root.",
            state="Nothing was read.",
            remedy="`headrace check` lists the flows.",
            code="HR-321",
        )
    checkpoint = Checkpoint(name, target.flow_folder(name), files)
    _require_below_root(checkpoint, target)
    present = flow_folders(target, files)
    if name not in present and name not in declared:
        known_names = sorted({*declared, *present})
        raise ConfigError(
            f"There is no flow and no checkpoint '{name}'.",
            why=f"The project and {target.checkpoints} have: {', '.join(known_names) or 'none'}."
            f"{did_you_mean(name, known_names)}",
            state="Nothing was read.",
            remedy="Name one of them, or another target with --target.",
            code="HR-321",
        )
    return checkpoint


def flow_folders(target: Target, files: FileStore) -> list[str]:
    """Return the names of the flows that have a folder in the target's root."""
    return [name for name in files.names(target.checkpoints) if FLOW_NAME.fullmatch(name)]


def require_no_links(checkpoint: Checkpoint, paths: Iterable[str]) -> None:
    """Raise if one of the paths below the flow's folder is a link: a copy would have files from elsewhere."""
    folder = local_path(checkpoint.folder)
    for path in paths:
        if (folder / path).is_symlink():
            raise _outside_root(checkpoint, f"{folder / path} is a link to {(folder / path).readlink()}.")


def _require_below_root(checkpoint: Checkpoint, target: Target) -> None:
    if not is_local(checkpoint.folder):
        return
    root, folder = local_path(target.checkpoints).resolve(), local_path(checkpoint.folder)
    for path in (folder, folder / "spark", folder / "headrace"):
        if path.resolve() != root / path.relative_to(local_path(target.checkpoints)):
            raise _outside_root(checkpoint, f"{path} leads to {path.resolve()}.")


def _outside_root(checkpoint: Checkpoint, why: str) -> RecoveryError:
    return RecoveryError(
        f"The checkpoint of flow '{checkpoint.flow}' is outside of its folder.",
        why=f"{why} Tools for checkpoints stay below the target's root.",
        state="Nothing was read and nothing was changed.",
        remedy="Replace the link by the folder itself, or make that folder the root of a target.",
        code="HR-322",
    )
