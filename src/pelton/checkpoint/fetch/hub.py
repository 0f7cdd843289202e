"""Fetches models of the Hugging Face Hub into its own cache folder, through the Hub's library. Imported only when used.

Files come over plain HTTP, so that a download that was stopped goes on where it was. Invariant: a file in a commit's
folder is whole, with the size and the hash that the Hub told; a revision is remembered once all of its files are there.
"""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import quote

import huggingface_hub
import msgspec
from huggingface_hub import constants
from huggingface_hub import errors as hub
from huggingface_hub.file_download import http_get
from huggingface_hub.utils import get_session, hf_raise_for_status  # type: ignore[attr-defined]

from pelton.checkpoint.checksum import remember_digest
from pelton.checkpoint.fetch import hub_files
from pelton.checkpoint.fetch.hub_cache import COMMIT, PART, SHA256, HubCache, HubFile, content_name
from pelton.checkpoint.fetch.hub_errors import HTTP_ERROR, Asked, explained, interrupted, is_full, is_unreachable
from pelton.checkpoint.fetch.progress import MEGABYTE, Progress
from pelton.checkpoint.fetch.sources import HubModel
from pelton.checkpoint.json_files import read_object
from pelton.checkpoint.mapped import quoted
from pelton.checkpoint.quantised import refuse_quantised
from pelton.core.config import FetchSection
from pelton.core.errors import CheckpointError

MAIN = "main"
SECONDS = 10.0  # for the answer to one question
SLACK_BYTES = 16 << 20
NO_SUCH_RANGE = 416  # status: the part is no beginning of the file
OFFLINE = "--offline (or HF_HUB_OFFLINE)"


class _Large(msgspec.Struct):
    sha256: str
    size: int


class _Listed(msgspec.Struct):
    rfilename: str
    size: int | None = None
    blobId: str | None = None
    lfs: _Large | None = None


class _Repository(msgspec.Struct):
    """The Hub's answer about a repository at a revision."""

    sha: str
    siblings: list[_Listed]


@dataclass(frozen=True, slots=True)
class _Hub:
    """One repository at one revision: whom to ask and how, and where things go."""

    asked: Asked
    headers: Mapping[str, str]
    cache: HubCache
    progress: Progress
    force: bool = False
    verify: bool = False


def fetch_hub(
    source: HubModel,
    fetch: FetchSection,
    progress: Progress,
    *,
    force: bool = False,
    verify: bool = False,
    weights: bool = True,
) -> Path:
    """A repository's folder, or its GGUF file (of a split one the first); CheckpointError for what goes wrong.

    Asks the Hub what the revision is now, unless it is a commit that is here. Where nobody answers, what is in the
    cache is taken, with a note. Without `weights` a folder has only its settings and tokenizer.
    """
    here = _hub(source, fetch, progress, force=force, verify=verify)
    revision = here.asked.revision
    offline = fetch.offline or constants.is_offline_mode()
    if offline or (COMMIT.fullmatch(revision) and not force):
        found, why = _cached(source, here, weights) if not force else (None, "it is to be fetched again")
        if found is not None:
            return found
        if offline:
            remedy = "Leave --offline and HF_HUB_OFFLINE out once, or give the path of a model that is here."
            raise CheckpointError(f"{source.repo}: {why}, and {OFFLINE} lets nothing be fetched.", remedy)
    try:
        commit, files = _listing(here)
    except (HTTP_ERROR, hub.OfflineModeIsEnabled) as error:
        # With `force` only to say what is there, for which nothing is read.
        kept = replace(here, verify=here.verify and not force)
        found, why = _cached(source, kept, weights) if is_unreachable(error) else (None, "")
        if found is None or force:
            raise explained(error, here.asked, why, cached=found is not None) from error
        progress.note(f"{here.asked.endpoint} cannot be reached; {source.repo} is taken from the cache.")
        return found
    try:
        return _fetch(source, here, commit, files, weights)
    except OSError as error:
        if is_full(error):
            raise _no_space(here, "no space is left on the disk") from error
        raise CheckpointError(f"{here.cache.folder}: {error}.", "Make the cache writable; HF_HOME moves it.") from error


def _hub(source: HubModel, fetch: FetchSection, progress: Progress, *, force: bool, verify: bool) -> _Hub:
    endpoint = (fetch.hf_endpoint or constants.ENDPOINT).rstrip("/")
    token = fetch.hf_token or (None if constants.HF_HUB_DISABLE_IMPLICIT_TOKEN else huggingface_hub.get_token())
    headers = {"user-agent": f"pelton; hf_hub/{huggingface_hub.__version__}", "accept-encoding": "identity"}
    if token:
        headers["authorization"] = f"Bearer {token}"
    base = Path(fetch.download_dir or constants.HF_HUB_CACHE).expanduser()
    asked = Asked(source.repo, fetch.revision or MAIN, endpoint, token is not None)
    return _Hub(asked, headers, HubCache(base, source.repo), progress, force, verify)


def _listing(here: _Hub) -> tuple[str, dict[str, HubFile]]:
    """The commit that the revision is, and its files by name."""
    asked = here.asked
    url = f"{asked.endpoint}/api/models/{asked.repo}/revision/{quote(asked.revision, safe='')}"
    answer = get_session().get(url, headers=dict(here.headers), params={"blobs": "true"}, timeout=SECONDS)
    hf_raise_for_status(answer)
    try:
        told = msgspec.json.decode(answer.content, type=_Repository)
    except msgspec.DecodeError as error:
        remedy = "Check --hf-endpoint or HF_ENDPOINT."
        raise CheckpointError(f"{asked.endpoint} does not answer like the Hub ({error}).", remedy) from error
    files = {}
    for one in told.siblings:
        etag, size = (one.lfs.sha256, one.lfs.size) if one.lfs is not None else (one.blobId, one.size)
        if etag is not None and size is not None and _is_plain(one.rfilename) and etag.isalnum():
            files[one.rfilename] = HubFile(one.rfilename, size, etag)
    if not COMMIT.fullmatch(told.sha) or (told.siblings and not files):
        cause = f"{asked.endpoint} does not tell the commit or the files of {asked.repo}."
        raise CheckpointError(cause, "Check --hf-endpoint or HF_ENDPOINT.")
    return told.sha, files


def _is_plain(name: str) -> bool:
    """Whether a name stays in its folder, and is one that a file can have and an error can show."""
    stays = not name.startswith("/") and "\\" not in name and not {"", ".", ".."} & set(name.split("/"))
    return stays and name.isprintable()


def _fetch(source: HubModel, here: _Hub, commit: str, files: Mapping[str, HubFile], weights: bool) -> Path:
    """Fetches what is not there of the model's files; its path."""
    choice = hub_files.choose(source.repo, files, source.choice)
    if choice.note:
        here.progress.note(choice.note)
    if choice.gguf is not None:
        first, *others = _get_all(here, commit, [files[name] for name in choice.gguf.files])
        path = first
    else:
        names = hub_files.folder_settings(files)
        _get_all(here, commit, [files[name] for name in names])
        path = here.cache.snapshot(commit)
        if weights:
            refuse_quantised(path, source.repo)
            index = _weight_map(path)
            wanted = hub_files.folder_weights(source.repo, index, files)
            _get_all(here, commit, [files[name] for name in wanted])
    here.cache.remember(here.asked.revision, commit)
    return path


def _weight_map(folder: Path) -> dict[str, str] | None:
    """The index's table of tensors and their files; None for weights in one file, which the reader prefers too."""
    if not (folder / hub_files.INDEX).is_file():
        return None
    table = read_object(folder / hub_files.INDEX).get("weight_map")
    if not isinstance(table, dict) or not all(isinstance(name, str) for name in table.values()):
        raise CheckpointError(f"{folder / hub_files.INDEX}: has no weight_map.", "Choose another revision.")
    return table


def _cached(source: HubModel, here: _Hub, weights: bool) -> tuple[Path | None, str]:
    """The model as it lies in the cache, or why it does not."""
    commit = here.cache.commit(here.asked.revision)
    names = here.cache.names(commit) if commit is not None else []
    if commit is None or not names:
        return None, f"revision {quoted(here.asked.revision)} is not in the cache ({here.cache.base})"
    folder = here.cache.snapshot(commit)
    try:
        if not weights and hub_files.CONFIG in names and source.choice is None:
            return folder, ""
        choice = hub_files.choose(source.repo, names, source.choice)
        if choice.gguf is not None:
            path, files = folder / choice.gguf.files[0], list(choice.gguf.files)
        else:
            refuse_quantised(folder, source.repo)
            path, files = folder, hub_files.folder_weights(source.repo, _weight_map(folder), names)
    except CheckpointError as error:
        return None, f"what is in the cache is not all of it ({error.cause.rstrip('.')})"
    for name in files if here.verify else ():
        _check(folder / name, name, (folder / name).resolve().name, here)
    return path, ""


def _get_all(here: _Hub, commit: str, files: list[HubFile]) -> list[Path]:
    """The files, in place and whole."""
    missing = [file for file in files if here.force or not here.cache.has(commit, file)]
    size = sum(file.size for file in missing)
    _check_space(here, size)
    large = size > MEGABYTE
    if large:
        here.progress.line(f"fetching {here.asked.repo}", size)
    for file in missing:
        _get(here, commit, file)
    if large:
        here.progress.line(f"fetched {here.asked.repo}", None)
    paths = [here.cache.snapshot(commit) / file.name for file in files]
    if here.verify:
        for path, file in zip(paths, files, strict=True):
            if file not in missing:
                _check(path, file.name, file.etag, here)
    return paths


def _check_space(here: _Hub, size: int) -> None:
    here.cache.folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(here.cache.folder).free
    if size and size + SLACK_BYTES > free:
        amounts = f"{here.asked.repo} takes {size / MEGABYTE:.0f} MB, {free / MEGABYTE:.0f} MB are free"
        raise _no_space(here, f"no space is left on the disk: {amounts}")


def _no_space(here: _Hub, what: str) -> CheckpointError:
    return CheckpointError(f"{here.cache.base}: {what}.", "Free some space, or move the cache with HF_HOME.")


def _get(here: _Hub, commit: str, file: HubFile) -> None:
    """One file, from where its part ends, checked and put into place."""
    blob = here.cache.blob(file.etag)
    with here.cache.lock(file.etag):
        if here.force or not blob.is_file() or blob.stat().st_size != file.size:
            blob.parent.mkdir(parents=True, exist_ok=True)
            part = blob.with_name(blob.name + PART)
            if here.force:
                part.unlink(missing_ok=True)
            _download(here, commit, file, part)
            _check(part, file.name, file.etag, here)
            part.replace(blob)
            if SHA256.fullmatch(file.etag):
                remember_digest(blob, file.etag)
        here.cache.link(commit, file)


def _download(here: _Hub, commit: str, file: HubFile, part: Path) -> None:
    """Fetches what a part lacks; one that cannot be gone on from goes away, and everything is fetched once."""
    if _kept(part) > file.size:
        part.unlink()
    try:
        _go_on(here, commit, file, part)
    except hub.HfHubHTTPError as error:
        if error.response.status_code != NO_SUCH_RANGE or not _kept(part):
            raise explained(error, here.asked) from error
        part.unlink()
        try:
            _go_on(here, commit, file, part)
        except hub.HfHubHTTPError as again:
            raise explained(again, here.asked) from again


def _kept(part: Path) -> int:
    """Bytes of a part; 0 where there is none."""
    return part.stat().st_size if part.exists() else 0


def _go_on(here: _Hub, commit: str, file: HubFile, part: Path) -> None:
    """Fetches a file from where its part ends. What the Hub refuses is raised as it is."""
    url = f"{here.asked.endpoint}/{here.asked.repo}/resolve/{commit}/{quote(file.name)}"
    with part.open("ab") as output:
        try:
            http_get(
                url,
                output,
                resume_size=output.tell(),
                headers=dict(here.headers),
                expected_size=file.size,
                displayed_filename=file.name,
                tqdm_class=here.progress.bar_class,  # type: ignore[arg-type]
            )
        except hub.HfHubHTTPError:
            raise
        except (HTTP_ERROR, ValueError, OSError) as error:
            if isinstance(error, OSError) and not isinstance(error, HTTP_ERROR) and error.errno is not None:
                raise  # of this disk
            output.flush()
            raise interrupted(error, here.asked, file.name, goes_on=0 < _kept(part) <= file.size) from error


def _check(path: Path, name: str, etag: str, here: _Hub) -> None:
    """Holds a file against the hash that names its content; a damaged one goes away and is an error."""
    if not (SHA256.fullmatch(etag) or COMMIT.fullmatch(etag)):
        return
    found = content_name(path, etag)
    if found == etag:
        return
    path.resolve().unlink(missing_ok=True)
    raise CheckpointError(
        f"{name} of {here.asked.repo} is damaged: its hash is {found}, not {etag}.",
        "It was removed; fetch it again. If that does not help, the mirror or a proxy changes files.",
    )
