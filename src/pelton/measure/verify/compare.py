"""Compares answers bit by bit, and finds out where a different one parted from what it was alone."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pelton.core.plan import TokenLogprobs
from pelton.core.request import Request
from pelton.measure.verify.play import Answer, play_alone
from pelton.measure.verify.rig import Rig
from pelton.measure.verify.trace import Hashes, first_difference

TOP = 2


@dataclass(frozen=True, slots=True)
class Gap:
    """The first thing that differs. `index`: of the last token that was computed for it, counted from the prompt's."""

    what: str
    position: int
    index: int
    expected: str
    found: str


def first_gap(reference: Answer, found: Answer) -> Gap | None:
    """The first difference of two answers to the same request in tokens, log-probabilities or end; None if equal."""
    prompt = len(found.request.prompt_token_ids)
    failed = found.finished is None or found.finished.reason == "error"
    if failed and _end(reference) != _end(found):
        return Gap("end", len(found.tokens), prompt + len(found.tokens) - 1, _end(reference), _end(found))
    return _score_gap(reference, found) or _token_gap(reference, found, prompt)


def _score_gap(reference: Answer, found: Answer) -> Gap | None:
    for index in sorted(reference.scores.keys() | found.scores.keys()):
        expected, scored = reference.scores.get(index), found.scores.get(index)
        if _bits(expected) != _bits(scored) or index == found.conflict:
            again = ", and another one when computed again" if index == found.conflict else ""
            return Gap("prompt log-probability", index, index - 1, _text(expected), _text(scored) + again)
    return None


def _token_gap(reference: Answer, found: Answer, prompt: int) -> Gap | None:
    for place in range(max(len(reference.tokens), len(found.tokens))):
        index = prompt + place - 1
        if place >= min(len(reference.tokens), len(found.tokens)):
            return Gap("end", place, index, _end(reference), _end(found))
        if reference.tokens[place] != found.tokens[place]:
            return Gap("token", place, index, str(reference.tokens[place]), str(found.tokens[place]))
        expected, given = _at(reference.logprobs, place), _at(found.logprobs, place)
        if _bits(expected) != _bits(given):
            return Gap("log-probability", place, index, _text(expected), _text(given))
    if _end(reference) != _end(found):
        last = len(found.tokens)
        return Gap("end", last, prompt + last - 1, _end(reference), _end(found))
    return None


@dataclass(frozen=True, slots=True)
class Explained:
    """`margin` between the reference's two likeliest tokens at the gap; `first_op` that differed, if any did."""

    margin: float | None
    first_op: str | None


def explain(rig: Rig, request: Request, gap: Gap, hashes: Hashes) -> Explained:
    """Computes the reference once more, with hashes and the likeliest tokens, and lays it beside the `hashes` found."""
    asked = request.params.logprobs
    params = replace(request.params, logprobs=TOP if asked is None else max(TOP, asked))
    reference, expected = play_alone(rig, replace(request, params=params), traced=True)
    likeliest = _at(reference.logprobs, gap.position) if gap.what != "prompt log-probability" else None
    margin = None
    if likeliest is not None and len(likeliest.top_logprobs) >= TOP:
        margin = likeliest.top_logprobs[0] - likeliest.top_logprobs[1]
    parted = first_difference(expected, hashes, rig.executable.labels(), gap.index)
    return Explained(margin, None if parted is None else str(parted))


def _at(logprobs: Sequence[TokenLogprobs], place: int) -> TokenLogprobs | None:
    return logprobs[place] if place < len(logprobs) else None


def _bits(score: TokenLogprobs | None) -> tuple[object, ...] | None:
    """All of it such that equality is equality of bits, also for 0 and -0, and for what is no number."""
    if score is None:
        return None
    return (score.logprob.hex(), score.rank, score.top_ids, tuple(value.hex() for value in score.top_logprobs))


def _text(score: TokenLogprobs | None) -> str:
    if score is None:
        return "none"
    top = "".join(f", {token}: {value!r}" for token, value in zip(score.top_ids, score.top_logprobs, strict=True))
    return f"{score.logprob!r} (rank {score.rank}{top})"


def _end(answer: Answer) -> str:
    """How the answer ended, for comparing and for people."""
    event = answer.finished
    if event is None:
        return "no end"
    stop = "" if event.stop_token is None else f" at token {event.stop_token}"
    return f"{event.reason}{stop} after {len(answer.tokens)} tokens" + (f" ({event.error})" if event.error else "")
