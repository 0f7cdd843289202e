"""Beam search against transformers in fp32, against all continuations there are, and what its beams share."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tests.measure.verify_parts import tiny_talker
from transformers import AutoModelForCausalLM

from pelton import LLM, BeamSearchParams, SamplingParams, beam_search
from pelton.core.errors import RequestError
from pelton.engine.llm import end_tokens
from pelton.search.beam import BeamSequence

pytest.importorskip("pelton.backends.cpu._native")
PROMPTS = [[5, 9, 200, 17, 33], list(range(40, 75)), [101] * 64]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_talker(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def llm(folder: Path) -> Iterator[LLM]:
    with LLM(str(folder), dtype="float32", threads=1, max_num_seqs=8) as opened:
        yield opened


def oracle(folder: Path, prompt: list[int], params: BeamSearchParams, ends: frozenset[int]) -> list[list[int]]:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    made = model.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        num_beams=params.beam_width,
        num_return_sequences=params.beam_width,
        max_new_tokens=params.max_tokens,
        length_penalty=params.length_penalty,
        early_stopping=params.early_stopping,
        eos_token_id=sorted(ends) or None,
        pad_token_id=0,
        do_sample=False,
    )
    return [row[len(prompt) :].tolist() for row in made]


def padded(sequence: BeamSequence, length: int) -> list[int]:
    return [*sequence.tokens, *[0] * (length - len(sequence.tokens))]


@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.parametrize("width", [1, 2, 4])
@pytest.mark.parametrize(("penalty", "early"), [(1.0, False), (0.0, True), (2.0, "never")])
def test_as_transformers(
    llm: LLM, folder: Path, prompt: list[int], width: int, penalty: float, early: bool | str
) -> None:
    params = BeamSearchParams(width, 9, length_penalty=penalty, early_stopping=early)
    (found,) = beam_search(llm, {"prompt_token_ids": prompt}, params)
    want = oracle(folder, prompt, params, end_tokens(llm))
    length = max(map(len, want))
    assert [padded(one, length) for one in found.sequences] == want


def test_the_best_of_all_there_are(llm: LLM) -> None:
    """With as many beams as matter, two steps find the best two tokens of all pairs."""
    prompt = PROMPTS[0]
    params = BeamSearchParams(6, 2, ignore_eos=True)
    (found,) = beam_search(llm, {"prompt_token_ids": prompt}, params)
    ask = SamplingParams(temperature=0, max_tokens=1, logprobs=20, ignore_eos=True)

    def likeliest(ids: list[int]) -> list[tuple[int, float]]:
        (output,) = llm.generate({"prompt_token_ids": ids}, ask, use_tqdm=False)
        told = output.outputs[0].logprobs
        assert told is not None
        return [(token, one.logprob) for token, one in told[0].items()]

    pairs = [(first + second, (a, b)) for a, first in likeliest(prompt) for b, second in likeliest([*prompt, a])]
    best = sorted(pairs, reverse=True)[:6]
    assert [one.tokens for one in found.sequences][:1] == [best[0][1]]
    scores = [one.cum_logprob for one in found.sequences]
    assert scores == sorted(scores, reverse=True)


def test_what_others_ask_changes_nothing(llm: LLM) -> None:
    params = BeamSearchParams(3, 6)
    together = beam_search(llm, [{"prompt_token_ids": prompt} for prompt in PROMPTS], params)
    alone = [beam_search(llm, {"prompt_token_ids": prompt}, params)[0] for prompt in PROMPTS]
    assert together == alone


@pytest.mark.parametrize("length", [5, 31, 32, 33, 64, 70])
@pytest.mark.parametrize("width", [2, 4])
def test_each_beam_computes_one_token_a_step(llm: LLM, width: int, length: int) -> None:
    llm.reset_prefix_cache()
    steps, before = 40, llm.get_metrics()
    params = BeamSearchParams(width, steps, ignore_eos=True)
    beam_search(llm, {"prompt_token_ids": list(range(length, 2 * length))}, params)
    after = llm.get_metrics()
    assert after["computed_tokens_total"] - before["computed_tokens_total"] == length + width * (steps - 1)
    copied = after["copied_blocks_total"] - before["copied_blocks_total"]
    parts = sum((length + step) % 32 > 0 for step in range(steps - 1))
    assert copied == width * parts, "one each, but behind a full block"


def test_one_beam_is_the_greedy_answer(llm: LLM) -> None:
    for prompt in PROMPTS:
        (found,) = beam_search(llm, {"prompt_token_ids": prompt}, BeamSearchParams(1, 7, ignore_eos=True))
        ask = SamplingParams(temperature=0, max_tokens=7, ignore_eos=True)
        (output,) = llm.generate({"prompt_token_ids": prompt}, ask, use_tqdm=False)
        assert list(found.sequences[0].tokens) == output.outputs[0].token_ids


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"beam_width": 0}, "beam_width=0"),
        ({"beam_width": True}, "beam_width=True"),
        ({"beam_width": 2, "max_tokens": 0}, "max_tokens=0"),
        ({"beam_width": 2, "early_stopping": "soon"}, "early_stopping='soon'"),
        ({"beam_width": 2.5}, "whole number"),
        ({"beam_width": 2, "ignore_eos": "no"}, "ignore_eos='no'"),
        ({"beam_width": 2, "length_penalty": "x"}, "length_penalty='x'"),
        ({"beam_width": 2, "length_penalty": float("nan")}, "length_penalty=nan"),
        ({"beam_width": 2, "length_penalty": -1e6}, "length_penalty=-1000000.0"),
    ],
)
def test_what_cannot_be_is_refused(settings: dict[str, object], said: str) -> None:
    with pytest.raises(RequestError, match=said):
        BeamSearchParams(**settings)  # type: ignore[arg-type]


def test_more_beams_than_are_told(llm: LLM) -> None:
    with pytest.raises(RequestError, match="beam_width=11"):
        beam_search(llm, {"prompt_token_ids": [5]}, BeamSearchParams(11))


def test_other_parameters_are_refused(llm: LLM) -> None:
    with pytest.raises(RequestError, match="no parameters of a beam search"):
        beam_search(llm, {"prompt_token_ids": [5]}, SamplingParams())  # type: ignore[arg-type]


def test_bad_prompts_are_refused(llm: LLM) -> None:
    with pytest.raises(RequestError):
        beam_search(llm, {"prompt_token_ids": []}, BeamSearchParams(2))
