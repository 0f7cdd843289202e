"""What goes wrong between here and the Hub, said as cause and remedy. It retries nothing."""

import errno
from dataclasses import dataclass

from huggingface_hub import errors as hub

from pelton.core.errors import CheckpointError

HAS_TOKEN = "HF_TOKEN or --hf-token (from Python: hf_token=...)"
DOWN = range(500, 600)
# Base of all that goes wrong in the HTTP library that the Hub's uses; which one that is differs between versions.
HTTP_ERROR: type[Exception] = hub.HTTPError  # type: ignore[attr-defined]


@dataclass(frozen=True, slots=True)
class Asked:
    """What was asked for, for errors. `token`: whether one was sent."""

    repo: str
    revision: str
    endpoint: str
    token: bool


def is_unreachable(error: Exception) -> bool:
    """Whether nobody answered, or the Hub itself is out of order, so that what is cached may stand in."""
    if isinstance(error, hub.HfHubHTTPError):
        return error.response.status_code in DOWN
    return isinstance(error, (HTTP_ERROR, hub.OfflineModeIsEnabled))


def explained(error: Exception, asked: Asked) -> CheckpointError:
    """The error for the user."""
    page = f"{asked.endpoint}/{asked.repo}"
    if isinstance(error, hub.GatedRepoError):
        who = "the account of the token that was sent has no access" if asked.token else "no token was sent"
        return CheckpointError(
            f"{asked.repo} is gated: its owner grants access, and {who}.",
            f"Ask for access at {page}, then give a token of that account: {HAS_TOKEN}.",
        )
    if isinstance(error, hub.RevisionNotFoundError):
        return CheckpointError(
            f"{asked.repo} has no revision {asked.revision!r}.",
            f"--revision takes a branch, a tag or a commit; {page} lists them.",
        )
    if isinstance(error, hub.RepositoryNotFoundError):
        private = "" if asked.token else f" For a private or gated one give a token: {HAS_TOKEN}."
        return CheckpointError(
            f"{asked.repo} is neither a path here nor a model at {asked.endpoint}.", f"Check the name.{private}"
        )
    if isinstance(error, hub.HfHubHTTPError):
        return _status(error, asked, page)
    if isinstance(error, HTTP_ERROR):
        return CheckpointError(
            f"{asked.endpoint} cannot be reached ({_words(error)}), and {asked.repo} is not in the cache.",
            "Check the network and proxy settings, choose a mirror with --hf-endpoint or HF_ENDPOINT, or give the path "
            "of a model that is here.",
        )
    return CheckpointError(f"{asked.repo} cannot be fetched ({_words(error)}).", "Try again.")


def interrupted(error: Exception, asked: Asked, name: str) -> CheckpointError:
    """The error where a download broke off, of which the part that came is kept."""
    if isinstance(error, hub.HfHubHTTPError):
        return explained(error, asked)
    return CheckpointError(
        f"The download of {name} of {asked.repo} broke off ({_words(error)}).",
        "Try again: it goes on from where it stopped.",
    )


def is_full(error: BaseException) -> bool:
    """Whether the disk took no more."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def _status(error: hub.HfHubHTTPError, asked: Asked, page: str) -> CheckpointError:
    status = error.response.status_code
    if status == 401:
        what = "does not accept the token" if asked.token else "asks for a token"
        return CheckpointError(f"{asked.endpoint} {what} for {asked.repo}.", f"Give a valid one: {HAS_TOKEN}.")
    if status == 403:
        remedy = f"Check the token's rights and the conditions at {page}."
        return CheckpointError(f"{asked.endpoint} refuses access to {asked.repo}.", remedy)
    if status == 429:
        remedy = f"Wait a little; with a token more is allowed: {HAS_TOKEN}."
        return CheckpointError(f"{asked.endpoint} takes no more requests at the moment.", remedy)
    if status in DOWN:
        cause = f"{asked.endpoint} is out of order (status {status}), and {asked.repo} is not in the cache."
        return CheckpointError(cause, "Try again later, or choose a mirror with --hf-endpoint or HF_ENDPOINT.")
    remedy = "Check the name and --hf-endpoint."
    return CheckpointError(f"{asked.endpoint} answered {status} to the request for {asked.repo}.", remedy)


def _words(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
