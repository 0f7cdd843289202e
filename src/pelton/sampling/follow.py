"""RowEdits: follows one answer and tells before each draw which logits change. Built anew it tells the same.

Not for requests that want no change: `follow` gives None for those, and they cost nothing.
"""

from collections.abc import Sequence

from pelton.backends.backend import Records
from pelton.core.request import Request
from pelton.sampling import ordered_steps
from pelton.sampling.edits import Edits
from pelton.sampling.step import History, LogitsStep


class RowEdits:
    """The edits of one answer. Invariant: they depend on the tokens so far, not on when they were asked for."""

    def __init__(self, steps: Sequence[LogitsStep], request: Request, output: Sequence[int]) -> None:
        """`steps`: those that the request wants. `output`: what there is of the answer already."""
        assert request.prompt_token_ids, "a request without a prompt has reached the runner"
        self._steps = steps
        self._params = request.params
        self._output = list(output)
        stops = tuple(sorted(request.stop_token_ids))
        self._history = History(request.prompt_token_ids, self._output, stops, request.bad_word_ids)
        self._edits = Edits()
        self._known = 0

    def take(self, token: int) -> None:
        """The answer has one more token."""
        self._output.append(token)

    def records(self) -> Records:
        """The entries [n] of EDIT for the next draw, perhaps none. A view, valid until the next call."""
        edits = self._edits
        edits.lift()
        for step in self._steps:
            step.edit(self._params, self._history, edits, self._known)
        self._known = self._history.known
        return edits.records()


def follow(request: Request, output: Sequence[int] = ()) -> RowEdits | None:
    """The edits of this request's answer, of which `output` is there already; None if it wants none at all."""
    steps = _wanted(request)
    return RowEdits(steps, request, output) if steps else None


def settles(request: Request) -> int | None:
    """From how many tokens of the answer on its edits stay as they are; None: each token may change them."""
    ends = [step.settles(request.params) for step in _wanted(request)]
    known = [end for end in ends if end is not None]
    return max(known, default=0) if len(known) == len(ends) else None


def _wanted(request: Request) -> list[LogitsStep]:
    return [step for step in ordered_steps() if step.moves_argmax and step.wanted(request.params)]
