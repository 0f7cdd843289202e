"""What goes wrong between here and the Hub, said as cause and remedy. It retries nothing."""

import errno
from dataclasses import dataclass

from huggingface_hub import errors as hub

from pelton.checkpoint.mapped import quoted
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


def explained(error: Exception, asked: Asked, why: str = "", *, cached: bool = False) -> CheckpointError:
    """The error for the user. Where nobody answers: `why` the cache cannot stand in, or `cached`: it could."""
    page = f"{asked.endpoint}/{asked.repo}"
    if isinstance(error, hub.GatedRepoError):
        who = "the account of the token that was sent has no access" if asked.token else "no token was sent"
        return CheckpointError(
            f"{asked.repo} is gated: its owner grants access, and {who}.",
            f"Ask for access at {page}, then give a token of that account: {HAS_TOKEN}.",
        )
    if isinstance(error, hub.RevisionNotFoundError):
        return CheckpointError(
            f"{asked.repo} has no revision {quoted(asked.revision)}.",
            f"--revision takes a branch, a tag or a commit; {page} lists them.",
        )
    if isinstance(error, hub.RepositoryNotFoundError):
        private = "" if asked.token else f" For a private or gated one give a token: {HAS_TOKEN}."
        return CheckpointError(
            f"{asked.repo} is neither a path here nor a model at {asked.endpoint}.", f"Check the name.{private}"
        )
    if isinstance(error, hub.HfHubHTTPError):
        if error.response.status_code not in DOWN:
            return _status(error, asked, page)
        what = f"is out of order (status {error.response.status_code})"
        remedy = "Try again later, or choose a mirror with --hf-endpoint or HF_ENDPOINT."
        return _unanswered(asked, what, remedy, why, cached)
    if isinstance(error, HTTP_ERROR):
        remedy = (
            "Check the network and proxy settings, choose a mirror with --hf-endpoint or HF_ENDPOINT, or give the path "
            "of a model that is here."
        )
        return _unanswered(asked, f"cannot be reached ({_words(error)})", remedy, why, cached)
    return CheckpointError(f"{asked.repo} cannot be fetched ({_words(error)}).", "Try again.")


def interrupted(error: Exception, asked: Asked, name: str, *, goes_on: bool) -> CheckpointError:
    """The error where a download broke off; `goes_on`: the part that came is kept, and of use."""
    return CheckpointError(
        f"The download of {name} of {asked.repo} broke off ({_words(error)}).",
        "Try again: it goes on from where it stopped." if goes_on else "Try again, or fetch it by other means.",
    )


def _unanswered(asked: Asked, what: str, remedy: str, why: str, cached: bool) -> CheckpointError:
    """The error where the Hub gives no answer, after what there is to say of the cache."""
    if cached:
        cause = f"{asked.endpoint} {what}, and {asked.repo} was to be fetched again."
        return CheckpointError(cause, f"Leave --force out to use what is in the cache. {remedy}")
    told = f", and {asked.repo} cannot be taken from the cache: {why}" if why else ""
    return CheckpointError(f"{asked.endpoint} {what}{told}.", remedy)


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
    remedy = "Check the name and --hf-endpoint."
    return CheckpointError(f"{asked.endpoint} answered {status} to the request for {asked.repo}.", remedy)


def _words(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
