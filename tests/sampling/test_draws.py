"""Draws by the numpy mathematics: their distribution under penalties and filters, and what they depend on."""

import numpy as np
import numpy.typing as npt
from tests.sampling.chi_square import fits

from pelton.core.params import SamplingParams
from pelton.core.request import Request
from pelton.sampling.choose import choose
from pelton.sampling.encode import encode
from pelton.sampling.follow import follow

VOCAB = 12
DRAWS = 1500
LOGITS = np.random.default_rng(8).normal(0, 1.2, VOCAB).astype(np.float32)
PROMPT, ANSWER = (0, 1, 2, 1), (3, 1, 3, 4)


def request(child: int = 0, **asked: object) -> Request:
    params = SamplingParams(**{"seed": 21, "max_tokens": None, **asked})  # type: ignore[arg-type]
    words = ((4, 5), (9,)) if params.bad_words else ()
    return Request("r", PROMPT, params, frozenset({10}), 999, 0.0, bad_word_ids=words, child=child)


def draw(asked: Request, place: int) -> int:
    followed = follow(asked, ANSWER)
    record = encode(asked.params, place, asked.child)
    return choose(LOGITS, record, *(() if followed is None else (followed.records(),)))[0]


def exact(asked: SamplingParams) -> npt.NDArray[np.float64]:
    """The probabilities [VOCAB] by the documented order, in double precision and token by token."""
    scaled = {}
    for token in range(VOCAB):
        x = float(LOGITS[token])
        if asked.allowed_token_ids is not None and token not in asked.allowed_token_ids:
            continue
        if asked.bad_words and token in (5, 9):
            continue
        if asked.min_tokens > len(ANSWER) and token == 10:
            continue
        x += (asked.logit_bias or {}).get(token, 0.0)
        if token in PROMPT + ANSWER:
            x = x * asked.repetition_penalty if x < 0 else x / asked.repetition_penalty
        x -= asked.frequency_penalty * ANSWER.count(token) + asked.presence_penalty * (token in ANSWER)
        scaled[token] = x / asked.temperature
    most = max(scaled.values())
    left = {token: x for token, x in scaled.items() if x >= most + np.log(max(asked.min_p, 1e-30))}
    ranked = sorted(left, key=lambda token: (-left[token], token))[: asked.top_k or None]
    weights = {token: np.exp(left[token] - most) for token in ranked}
    found, mass = np.zeros(VOCAB), 0.0
    for token, weight in weights.items():
        if mass < asked.top_p * sum(weights.values()):
            found[token] = weight
        mass += weight
    return found / found.sum()


CASES: list[dict[str, object]] = [
    {"repetition_penalty": 1.7},
    {"frequency_penalty": 0.8, "presence_penalty": -0.6},
    {"logit_bias": {7: 1.5, 2: -2.0}, "min_tokens": 6},
    {"repetition_penalty": 1.4, "frequency_penalty": 0.5, "presence_penalty": 0.3, "temperature": 1.6, "top_k": 7},
    {"bad_words": ["w"], "repetition_penalty": 0.8, "top_p": 0.85},
    {"allowed_token_ids": [1, 3, 5, 7, 9], "logit_bias": {3: 1.0}, "min_p": 0.05, "bad_words": ["w"]},
    {"presence_penalty": 1.0, "min_p": 0.1, "top_k": 8, "top_p": 0.9, "temperature": 1.3, "min_tokens": 5},
]


def test_draws_follow_the_documented_order() -> None:
    for case in CASES:
        asked = request(**case)
        probabilities = exact(asked.params)
        counts = np.bincount([draw(asked, place) for place in range(DRAWS)], minlength=VOCAB)
        rare = (probabilities > 0) & (probabilities * counts.sum() < 5)
        grouped = [np.append(what[~rare], what[rare].sum()) for what in (counts, probabilities)]
        assert counts[probabilities == 0].sum() == 0, case
        if grouped[1][-1] * counts.sum() < 5:  # too few for a cell of their own
            grouped = [what[:-1] for what in grouped]
        assert fits(*grouped), case


def test_a_rows_draw_does_not_depend_on_its_neighbours() -> None:
    asked = [request(seed=seed, **case) for seed, case in enumerate(CASES)]
    drawn = [draw(one, 5) for one in asked]
    order = np.random.default_rng(0).permutation(len(asked)).tolist()
    assert [draw(asked[row], 5) for row in order] == [drawn[row] for row in order]
    assert [draw(one, 5) for one in asked[2:]] == drawn[2:]


def test_children_depend_on_seed_child_and_place_alone() -> None:
    tokens = {child: [draw(request(child), place) for place in range(40)] for child in range(5)}
    assert len({tuple(answer) for answer in tokens.values()}) == 5
    for child in (4, 0, 2):
        assert [draw(request(child, n=5), place) for place in range(40)] == tokens[child]
    assert [draw(request(3, seed=22), place) for place in range(40)] != tokens[3]


def test_children_are_independent() -> None:
    first, second = ([draw(request(child), place) % 3 for place in range(1500)] for child in (1, 2))
    p = exact(SamplingParams())
    thirds = np.array([p[third::3].sum() for third in range(3)])
    pairs = np.bincount(np.array(first) * 3 + np.array(second), minlength=9)
    assert fits(pairs, np.outer(thirds, thirds).reshape(-1))
