"""Bits of an answer do not depend on company: alone = together = in any chunks = preempted, greedy and seeded.

Tokens, finish reasons, text and raw log-probabilities are compared for equality, in the CPU backend's default dtype.
"""

import json
from dataclasses import dataclass
from pathlib import Path

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

    def settings(self) -> dict[str, object]:
        return {
            "max_num_batched_tokens": self.budget,
            "max_num_seqs": self.rows,
            **({} if self.blocks is None else {"num_blocks": self.blocks}),
        }


def params(count: int) -> list[SamplingParams]:
    """Eight different ways to choose."""
    kinds: list[dict[str, object]] = [
        {"temperature": 0, "logprobs": 2},
        {"temperature": 1.0, "seed": 11, "logprobs": 0, "ignore_eos": False},
        {"temperature": 0.7, "top_p": 0.9, "seed": 12, "logprobs": 3},
        {"temperature": 1.3, "top_k": 20, "seed": 13, "max_tokens": count // 2},
        {"temperature": 0},
        {"temperature": 0.9, "min_p": 0.05, "seed": 14},
        {"temperature": 1.5, "seed": 15, "stop": ["e"]},
        {"temperature": 0, "max_tokens": count // 3},
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
        return facts(outputs), engine.scheduler.preemptions


TINY_PROMPTS: list[dict[str, object]] = [
    {"prompt_token_ids": [(7 * n + i * i) % 250 for i in range(length)]}
    for n, length in enumerate((1, 31, 32, 33, 64, 65, 100, 150))
]
TINY_COUNT = 96


@pytest.fixture(scope="module")
def tiny_alone(tiny_model: Path) -> list[object]:
    with LLM(str(tiny_model), **Way().settings()) as llm:
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
]


@pytest.mark.parametrize("way", WAYS, ids=repr)
def test_tiny_model(tiny_model: Path, tiny_alone: list[object], way: Way) -> None:
    found, preemptions = answers(tiny_model, way, TINY_PROMPTS, TINY_COUNT)
    assert found == tiny_alone
    assert (preemptions > 0) == (way.blocks is not None), f"{preemptions} preemptions"


def test_answers_of_the_tiny_model_differ_from_each_other(tiny_alone: list[object]) -> None:
    """Else the comparisons above would compare little."""
    assert len({repr(fact) for fact in tiny_alone}) == len(TINY_PROMPTS)


SMOLLM2_COUNT = 32


def smollm2_prompts(data: Path) -> list[dict[str, object]]:
    lines = (data / "prompts" / "mt_bench.jsonl").read_text(encoding="utf-8").splitlines()
    return [{"prompt": json.loads(line)["turns"][0]} for line in lines[:8]]


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
