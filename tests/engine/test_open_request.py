"""OpenRequest: where a request ends, also when one step brings several tokens."""

from array import array

import pytest
from tests.engine.fakes import make_request

from pelton.core.events import RequestFinished, TokensGenerated
from pelton.core.plan import RowResult, TokenLogprobs
from pelton.engine.open_request import NO_TOKEN, OpenRequest

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
    one = OpenRequest(make_request("r", [1, 2], max_tokens, stops=frozenset({7, 8})), 4, [1] * generated)
    events = one.accept(RowResult(0, (5, 6, 7, 8, 9), LOGPROBS), max_len)
    assert events == [TokensGenerated("r", kept, LOGPROBS[: len(kept)]), end]
    assert one.generated == [*[1] * generated, *kept]


def test_a_row_that_drew_nothing_tells_nothing() -> None:
    assert OpenRequest(make_request("r", [1, 2], 9), 4).accept(RowResult(0), 99) == []


def test_a_fault_is_an_error() -> None:
    one = OpenRequest(make_request("r", [1, 2], 9), 4)
    assert one.accept(RowResult(0, fault="bad"), 99) == [RequestFinished("r", "error", error="bad")]
    own = one.accept(RowResult(0, fault=NO_TOKEN), 99)
    assert own == [RequestFinished("r", "error", error=NO_TOKEN, code="no_token_left")]


def test_without_room_the_first_token_ends_it_untold() -> None:
    one = OpenRequest(make_request("r", [1, 2], 0), 4)
    assert one.accept(RowResult(0), 99) == [], "a part of the prompt"
    assert one.accept(RowResult(0, (5,)), 99) == [RequestFinished("r", "length")]
    assert one.generated == []


def test_keys_are_the_tokens_of_whole_blocks_and_the_salt_makes_a_namespace() -> None:
    def ids(*tokens: int) -> bytes:
        return b"".join(token.to_bytes(4, "little") for token in tokens)

    one = OpenRequest(make_request("r", [1, 2, 3, 4, 5], 99), 4)
    one.generated += [6, 7, 8, 9, 10, 11, 300]
    assert [one.key(block) for block in range(3)] == [ids(1, 2, 3, 4), ids(5, 6, 7, 8), ids(9, 10, 11, 300)]
    with pytest.raises(AssertionError, match="block 3 of r has 0 known"):
        one.key(3)
    salted = OpenRequest(make_request("s", [1, 2, 3, 4, 5], 99, salt="\u00e9"), 4)
    assert one.namespace == bytes(8) and salted.namespace == bytes(4) + ids(2) + "\u00e9".encode()
    turned = OpenRequest(make_request("t", [1, 2, 3, 4, 5], 99), 4, coordinates=b"yarn")
    assert turned.namespace == ids(4) + b"yarn" + bytes(4) and turned.key(0) == ids(1, 2, 3, 4)
    with pytest.raises(AssertionError, match="block 1 of s has 1 known"):
        salted.key(1)


@pytest.mark.parametrize(("generated", "parts"), [
    (0, [(1, 2, 3, 4), (), ()]),
    (1, [(1, 2, 3, 4), (5,), ()]),
    (3, [(1, 2, 3, 4), (5, 6, 7), ()]),
    (4, [(1, 2, 3, 4), (5, 6, 7, 8), ()]),
    (5, [(1, 2, 3, 4), (5, 6, 7, 8), (9,)]),
])  # fmt: skip
def test_parts_lack_the_last_known_token(generated: int, parts: list[tuple[int, ...]]) -> None:
    one = OpenRequest(make_request("r", [1, 2, 3, 4, 5], 99), 4)
    one.generated += range(6, 6 + generated)
    assert [tuple(array("i", one.part(block))) for block in range(3)] == parts
