"""What a row asks for before each draw: nothing where nothing is wanted, the same whether followed or built anew."""

import numpy as np
import pytest

from pelton.core.params import SamplingParams
from pelton.core.request import Request
from pelton.sampling.follow import RowEdits, follow


def request(
    *, stops: frozenset[int] = frozenset(), words: tuple[tuple[int, ...], ...] = (), **asked: object
) -> Request:
    params = SamplingParams(seed=1, max_tokens=None, bad_words=["w"] if words else None, **asked)  # type: ignore[arg-type]
    return Request("r", (5, 6, 5), params, stops, 99, 0.0, bad_word_ids=words)


def entries(followed: RowEdits | None) -> dict[int, tuple[float, int, int]]:
    assert followed is not None
    return {token: tuple(rest) for token, *rest in followed.records().tolist()}


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"temperature": 0.3, "top_k": 3, "top_p": 0.5, "min_p": 0.1, "logprobs": 3},
        {"repetition_penalty": 1.0, "presence_penalty": 0, "frequency_penalty": 0, "logit_bias": {}, "min_tokens": 0},
        {"bad_words": []},
    ],
)
def test_ordinary_requests_are_not_followed(asked: dict[str, object]) -> None:
    params = SamplingParams(seed=1, **asked)  # type: ignore[arg-type]
    assert follow(Request("r", (5,), params, frozenset({2}), 9, 0.0)) is None


def test_min_tokens_ends() -> None:
    followed = follow(request(min_tokens=2, stops=frozenset({2, 9})))
    for _ in range(2):
        assert entries(followed) == {2: (-np.inf, 0, 0), 9: (-np.inf, 0, 0)}
        assert followed is not None
        followed.take(7)
    assert entries(followed) == {}


def test_asking_twice_changes_nothing() -> None:
    followed = follow(request(repetition_penalty=2.0, frequency_penalty=1.0, logit_bias={3: 1.0}, words=((4,), (7, 8))))
    assert followed is not None
    followed.take(7)
    first = entries(followed)
    assert first == {3: (1, 0, 0), 4: (-np.inf, 0, 0), 5: (0, 0, 1), 6: (0, 0, 1), 7: (0, 1, 1), 8: (-np.inf, 0, 0)}
    assert entries(followed) == first


def test_a_ban_wins_over_the_largest_bias() -> None:
    everything = dict.fromkeys((2, 4, 8), 100.0)
    followed = follow(request(logit_bias=everything, min_tokens=9, stops=frozenset({2}), words=((4,), (7, 8))))
    assert entries(followed) == {2: (-np.inf, 0, 0), 4: (-np.inf, 0, 0), 8: (100.0, 0, 0)}
    assert followed is not None
    followed.take(7)
    assert entries(followed) == dict.fromkeys(everything, (-np.inf, 0, 0))
    followed.take(1)
    assert entries(followed)[8] == (100.0, 0, 0)


def test_a_row_goes_on_from_any_token() -> None:
    """A preempted request is followed anew from what it had; the order of entries has no meaning."""
    asked = request(
        repetition_penalty=1.3, presence_penalty=0.5, min_tokens=4, stops=frozenset({2}), words=((1, 3), (3, 3, 1))
    )
    followed = follow(asked)
    answer = [1, 3, 3, 1, 6, 1, 11]
    for length, token in enumerate(answer):
        assert entries(followed) == entries(follow(asked, answer[:length]))
        assert followed is not None
        followed.take(token)
    assert entries(followed) == entries(follow(asked, answer))
