"""OpenRequest: where a request ends, also when one step brings several tokens."""

import pytest
from tests.engine.fakes import make_request

from pelton.core.events import RequestFinished, TokensGenerated
from pelton.core.plan import RowResult, TokenLogprobs
from pelton.engine.open_request import OpenRequest

LOGPROBS = tuple(TokenLogprobs(-float(rank), rank) for rank in range(1, 6))


@pytest.mark.parametrize(("generated", "max_tokens", "max_len", "kept", "end"), [
    (0, 99, 99, (5, 6, 7), RequestFinished("r", "stop", stop_token=7)),
    (0, 3, 99, (5, 6, 7), RequestFinished("r", "stop", stop_token=7)),
    (0, 2, 99, (5, 6), RequestFinished("r", "length")),
    (4, 6, 99, (5, 6), RequestFinished("r", "length")),
    (0, 99, 4, (5, 6), RequestFinished("r", "length")),
    (3, 99, 6, (5,), RequestFinished("r", "length")),
])  # fmt: skip
def test_the_first_end_counts_and_nothing_behind_it(
    generated: int, max_tokens: int, max_len: int, kept: tuple[int, ...], end: RequestFinished
) -> None:
    one = OpenRequest(make_request("r", [1, 2], max_tokens, stops=frozenset({7, 8})), generated)
    events = one.accept(RowResult(0, (5, 6, 7, 8, 9), LOGPROBS), max_len)
    assert events == [TokensGenerated("r", kept, LOGPROBS[: len(kept)]), end]
    assert one.generated == generated + len(kept)


def test_a_row_that_drew_nothing_tells_nothing() -> None:
    assert OpenRequest(make_request("r", [1, 2], 9)).accept(RowResult(0), 99) == []


def test_a_fault_is_an_error() -> None:
    one = OpenRequest(make_request("r", [1, 2], 9))
    assert one.accept(RowResult(0, fault="bad"), 99) == [RequestFinished("r", "error", error="bad")]
