"""Bits of an answer do not depend on company: alone = together = in any chunks = preempted, greedy and seeded.

Tokens, finish reasons, text and raw log-probabilities are compared for equality, in the CPU backend's default dtype.
"""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from pelton.core.params import SamplingParams
from pelton.core.request import RequestOutput
from pelton.engine.llm import LLM

pytest.importorskip("pelton.backends.cpu._native")

UNLIMITED = 4096


@dataclass(frozen=True, slots=True)
class Way:
    """One way of running the same requests; `blocks` None: plenty."""

    budget: int = UNLIMITED
    rows: int = 8
    blocks: int | None = None
    prefixes: bool = True
    steps: int = 8
    mode: str = "recompute"
    depth: int = 1

    def settings(self) -> dict[str, object]:
        return {
            "max_num_batched_tokens": self.budget,
            "max_num_seqs": self.rows,
            "enable_prefix_caching": self.prefixes,
            "max_steps_per_call": self.steps,
            "preemption_mode": self.mode,
            "planning_depth": self.depth,
            **({} if self.blocks is None else {"num_blocks": self.blocks}),
        }


def params(count: int) -> list[SamplingParams]:
    """Twelve different ways to choose, penalties and bans among them."""
    kinds: list[dict[str, object]] = [
        {"temperature": 0, "logprobs": 2},
        {"temperature": 1.0, "seed": 11, "logprobs": 0, "ignore_eos": False},
        {"temperature": 0.7, "top_p": 0.9, "seed": 12, "logprobs": 3},
        {"temperature": 1.3, "top_k": 20, "seed": 13, "max_tokens": count // 2},
        {"temperature": 0},
        {"temperature": 0.9, "min_p": 0.05, "seed": 14},
        {"temperature": 1.5, "seed": 15, "stop": ["e"]},
        {"temperature": 0, "max_tokens": count // 3},
        {"temperature": 0, "repetition_penalty": 1.3, "frequency_penalty": 0.4},
        {"seed": 16, "presence_penalty": 1.5, "logit_bias": {7: 3.0, 9: -100.0}, "min_tokens": count // 2},
        {"temperature": 0, "allowed_token_ids": [*range(60, 110)], "frequency_penalty": 1.0, "logprobs": 4},
        {"seed": 17, "bad_words": ["a", "the", "e"], "repetition_penalty": 0.8, "top_p": 0.8, "ignore_eos": False},
    ]
    given: dict[str, object] = {"max_tokens": count, "logprobs": 1, "ignore_eos": True}
    return [SamplingParams(**{**given, **kind}) for kind in kinds]  # type: ignore[arg-type]


def facts(outputs: list[RequestOutput]) -> list[object]:
    """All that must not change (repr keeps every bit of a float)."""
    return [
        (answer.token_ids, answer.text, answer.finish_reason, answer.stop_reason, repr(answer.logprobs))
        for output in outputs
        for answer in output.outputs
    ]


def answers(model: Path, way: Way, prompts: list[dict[str, object]], count: int) -> tuple[list[object], int]:
    """(facts, preemptions)."""
    with LLM(str(model), **way.settings()) as llm:
        outputs = llm.generate(prompts, params(count), use_tqdm=False)
        engine = llm._parts.session.engine
        engine.check()
        assert (engine.stats.plans_ahead_total > 0) == (way.depth == 2)
        return facts(outputs), engine.stats.preemptions_total


TINY_PROMPTS: list[dict[str, object]] = [
    {"prompt_token_ids": [(7 * n + i * i) % 250 for i in range(length)]}
    for n, length in enumerate((1, 31, 32, 33, 64, 65, 100, 150, 2, 63, 97, 40))
]
TINY_COUNT = 96


@pytest.fixture(scope="module")
def tiny_alone(tiny_model: Path) -> list[object]:
    with LLM(str(tiny_model), **Way(steps=1).settings()) as llm:
        return [
            fact
            for prompt, one in zip(TINY_PROMPTS, params(TINY_COUNT), strict=True)
            for fact in facts(llm.generate(prompt, one, use_tqdm=False))
        ]


WAYS = [
    Way(),
    Way(rows=1),
    Way(budget=1),
    Way(budget=7),
    Way(budget=16, rows=3),
    Way(budget=64),
    Way(budget=50, blocks=18),
    Way(budget=7, blocks=14),
    Way(budget=50, blocks=18, mode="swap"),
    Way(budget=7, blocks=14, mode="swap"),
    Way(depth=2),
    Way(steps=1, depth=2),
    Way(budget=7, rows=3, steps=1, depth=2),
    Way(budget=50, blocks=18, steps=1, depth=2),
    Way(budget=7, blocks=14, mode="swap", depth=2),
]


@pytest.mark.parametrize("way", WAYS, ids=repr)
def test_tiny_model(tiny_model: Path, tiny_alone: list[object], way: Way) -> None:
    found, preemptions = answers(tiny_model, way, TINY_PROMPTS, TINY_COUNT)
    assert found == tiny_alone
    assert (preemptions > 0) == (way.blocks is not None), f"{preemptions} preemptions"


@pytest.mark.parametrize("way", [Way(), Way(steps=3), Way(rows=2, budget=40, blocks=14)], ids=repr)
def test_answers_drawn_several_tokens_at_a_time(tiny_model: Path, tiny_alone: list[object], way: Way) -> None:
    """Each beside one other at most, so that nobody keeps the others to single steps for long; then in series."""
    with LLM(str(tiny_model), **way.settings()) as llm:
        engine = llm._parts.session.engine
        engine.scheduler.series.seconds = float("inf")
        calls = list[int]()
        engine.on_plan = lambda plan: calls.append(plan.repeat)
        found = []
        for prompt, one in zip(TINY_PROMPTS, params(TINY_COUNT), strict=True):
            found += facts(llm.generate(prompt, one, use_tqdm=False))
        assert found == tiny_alone
        assert sum(steps == way.steps for steps in calls) > 20 and max(calls) == way.steps
        calls.clear()
        settled = [place for place, one in enumerate(params(TINY_COUNT)) if place < 8]
        chosen = [params(TINY_COUNT)[place] for place in settled]
        outputs = llm.generate([TINY_PROMPTS[place] for place in settled], chosen, use_tqdm=False)
        assert facts(outputs) == [tiny_alone[place] for place in settled]
        assert sum(steps > 1 for steps in calls) > 3
        engine.check()


def test_answers_of_the_tiny_model_differ_from_each_other(tiny_alone: list[object]) -> None:
    """Else the comparisons above would compare little."""
    assert len({repr(fact) for fact in tiny_alone}) == len(TINY_PROMPTS)


def generate(llm: LLM, prompt: list[int], **params: Any) -> RequestOutput:
    """One greedy request alone, if nothing else is said."""
    chosen = {"temperature": 0, "max_tokens": 8, "ignore_eos": True, **params}
    (output,) = llm.generate({"prompt_token_ids": prompt}, SamplingParams(**chosen), use_tqdm=False)
    return output


def a_prompt(length: int, kind: int = 0) -> list[int]:
    return [(11 * kind + 3 * i * i + 5 * i) % 250 for i in range(length)]


CHUNKS = [1, 7, 64, UNLIMITED]


@pytest.mark.parametrize("seed", [None, 21])
@pytest.mark.parametrize("length", [1, 32, 33, 70])
def test_children_are_what_each_would_be_alone(tiny_model: Path, length: int, seed: int | None) -> None:
    """Whatever n is, in whatever chunks and company, and with no prefixes kept."""
    params: dict[str, Any] = {
        "max_tokens": 40,
        "logprobs": 2,
        "seed": seed or 0,
        "temperature": 0 if seed is None else 1,
    }
    with LLM(str(tiny_model), **Way().settings()) as llm:
        maker, session = llm._parts.requests, llm._parts.session
        lone = [
            replace(
                maker.make({"prompt_token_ids": a_prompt(length)}, SamplingParams(ignore_eos=True, **params)), child=n
            )
            for n in range(5)
        ]
        alone = []
        for request in lone:
            (answer,) = session.start([request])
            while session.unfinished([answer]):
                pass
            alone += facts([answer.output()])
            session.drop([request.request_id])
    assert len({repr(fact) for fact in alone}) == (1 if seed is None else 5)
    for way in (Way(), Way(budget=7), Way(rows=2, budget=33), Way(prefixes=False), Way(budget=20, blocks=14)):
        with LLM(str(tiny_model), **way.settings()) as llm:
            for n in (1, 3, 5):
                assert facts([generate(llm, a_prompt(length), n=n, **params)]) == alone[:n], (way, n)
            prompts = [{"prompt_token_ids": a_prompt(length)}, {"prompt_token_ids": a_prompt(60, kind=1)}] * 2
            chosen = [SamplingParams(n=n, ignore_eos=True, **params) for n in (3, 2, 5, 2)]
            outputs = llm.generate(prompts, chosen, use_tqdm=False)
            assert facts([outputs[0]]) == alone[:3] and facts([outputs[2]]) == alone, way
            llm._parts.session.engine.check()


def test_scores_of_a_prompt_are_what_its_tokens_would_be_drawn_with(tiny_model: Path) -> None:
    """Each against a request that ends before the token and can draw nothing else; bit for bit, in any chunks."""
    prompt = a_prompt(70)
    with LLM(str(tiny_model), **Way(prefixes=False).settings()) as llm:
        wanted = [
            repr(answer.logprobs[0])
            for place in range(1, len(prompt))
            for answer in generate(
                llm, prompt[:place], allowed_token_ids=[prompt[place]], max_tokens=1, logprobs=3
            ).outputs
            if answer.logprobs is not None and answer.token_ids == [prompt[place]]
        ]
        assert len(wanted) == len(prompt) - 1
        answer = facts([generate(llm, prompt)])
    for budget in CHUNKS:
        with LLM(str(tiny_model), **Way(budget=budget).settings()) as llm:
            for most in (0, 8):
                output = generate(llm, prompt, prompt_logprobs=3, max_tokens=most)
                assert output.prompt_logprobs is not None and output.prompt_logprobs[0] is None
                assert [repr(place) for place in output.prompt_logprobs[1:]] == wanted, budget
                assert output.num_cached_tokens == 0 and (most == 0 or facts([output]) == answer), budget
            assert facts([generate(llm, prompt)]) == answer, "by the blocks that the scored one left"


def test_scores_survive_preemption(tiny_model: Path) -> None:
    prompts: list[dict[str, object]] = [{"prompt_token_ids": a_prompt(90, kind)} for kind in range(6)]
    chosen = SamplingParams(temperature=0, max_tokens=120, prompt_logprobs=2, ignore_eos=True)

    def scored(way: Way) -> tuple[list[str], int]:
        with LLM(str(tiny_model), **way.settings()) as llm:
            outputs = llm.generate(prompts, chosen, use_tqdm=False)
            stats = llm._parts.session.engine.stats
            return [repr((output.prompt_logprobs, facts([output]))) for output in outputs], stats.preemptions_total

    wanted, none = scored(Way())
    found, preemptions = scored(Way(budget=40, blocks=16))
    assert found == wanted and preemptions > none == 0


@pytest.mark.parametrize("budget", CHUNKS)
def test_a_hit_is_as_good_as_a_miss(tiny_model: Path, budget: int) -> None:
    """Tokens and log-probabilities behind a prefix that was found, or was being computed, to the bit."""
    prompts = [[*a_prompt(shared), *a_prompt(own, kind=own)] for shared, own in ((96, 5), (64, 40), (32, 1), (90, 7))]
    params = SamplingParams(temperature=0.9, seed=3, max_tokens=24, logprobs=3, ignore_eos=True)
    given: list[dict[str, object]] = [{"prompt_token_ids": prompt} for prompt in prompts]
    with LLM(str(tiny_model), **Way(prefixes=False).settings()) as llm:
        wanted = facts(llm.generate(given, params, use_tqdm=False))
    with LLM(str(tiny_model), **Way(budget=budget).settings()) as llm:
        together = llm.generate(given, params, use_tqdm=False)
        assert facts(together) == wanted and sum(output.num_cached_tokens for output in together) > 0
        again = [output for prompt in given for output in llm.generate(prompt, params, use_tqdm=False)]
        assert facts(again) == wanted
        assert [output.num_cached_tokens for output in again] == [len(prompt) - 1 for prompt in prompts]
        llm.reset_prefix_cache()
        assert llm.generate(given[0], params, use_tqdm=False)[0].num_cached_tokens == 0
        (salted,) = llm.generate(given[0], params, use_tqdm=False, cache_salt="other")
        assert salted.num_cached_tokens == 0 and facts([salted]) == wanted[:1]


SMOLLM2_COUNT = 32


def smollm2_prompts(data: Path) -> list[dict[str, object]]:
    lines = (data / "prompts" / "mt_bench.jsonl").read_text(encoding="utf-8").splitlines()
    return [{"prompt": json.loads(line)["turns"][0]} for line in lines[:12]]


@pytest.fixture(scope="module")
def smollm2_alone(smollm2: Path, data: Path) -> list[object]:
    with LLM(str(smollm2), **Way().settings()) as llm:
        return [
            fact
            for prompt, one in zip(smollm2_prompts(data), params(SMOLLM2_COUNT), strict=True)
            for fact in facts(llm.generate(prompt, one, use_tqdm=False))
        ]


@pytest.mark.slow
@pytest.mark.parametrize("way", [Way(), Way(budget=1), Way(budget=7), Way(budget=16), Way(budget=64)], ids=repr)
def test_smollm2(smollm2: Path, data: Path, smollm2_alone: list[object], way: Way) -> None:
    found, _ = answers(smollm2, way, smollm2_prompts(data), SMOLLM2_COUNT)
    assert found == smollm2_alone
