"""Models whose layers look back a window: alone or beside others, in any chunks, preempted, with prefixes found in the
cache, and with blocks that are freed behind the window, an answer keeps its bits; and the blocks are freed indeed.
"""

from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest
from tests.engine.test_exactness import Way, facts, params
from tests.oracle.toy import randomise
from transformers import Gemma3ForCausalLM, Gemma3TextConfig, MistralConfig, MistralForCausalLM, PreTrainedModel

from pelton.core.params import SamplingParams
from pelton.core.plan import StepPlan
from pelton.engine.llm import LLM

pytest.importorskip("pelton.backends.cpu._native")

WINDOW = 70
COUNT = 24
SIZES = {
    "vocab_size": 272,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 12,
    "max_position_embeddings": 1024,
    "sliding_window": WINDOW,
    "pad_token_id": None,
}
KINDS = ["sliding_attention", "full_attention", "sliding_attention"]
PROMPTS: list[dict[str, object]] = [
    {"prompt_token_ids": [(7 * n + i * i) % 250 for i in range(length)]}
    for n, length in enumerate((1, 31, 32, 69, 70, 71, 96, 150, 2, 230, 301, 40))
]


def model(kind: str) -> PreTrainedModel:
    if kind == "all":
        return MistralForCausalLM(MistralConfig(**SIZES))
    return Gemma3ForCausalLM(Gemma3TextConfig(**SIZES, layer_types=KINDS, query_pre_attn_scalar=12))


@pytest.fixture(scope="module", params=["all", "mixed"])
def windowed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    """A model all of whose layers have a window, and one where a layer between two such has none."""
    made = model(request.param).eval()
    randomise(made)
    folder: Path = tmp_path_factory.mktemp(f"windows_{request.param}")
    made.save_pretrained(folder)
    (folder / "tokenizer.json").write_bytes((tiny_model / "tokenizer.json").read_bytes())
    return folder


def plain(folder: Path, way: Way, prompts: list[dict[str, object]]) -> tuple[list[object], LLM]:
    llm = LLM(str(folder), **way.settings())  # type: ignore[arg-type]
    outputs = llm.generate(prompts, params(COUNT), use_tqdm=False)
    llm._parts.session.engine.check()
    return facts(outputs), llm


@pytest.fixture(scope="module")
def alone(windowed: Path) -> list[object]:
    """Each answer by itself, its prompt in one step, with nothing kept."""
    found, llm = plain(windowed, Way(rows=1, prefixes=False), PROMPTS)
    llm.close()
    return found


@pytest.mark.parametrize(
    "way",
    [Way(), Way(budget=13), Way(budget=64, prefixes=False), Way(budget=33, blocks=14), Way(budget=400, blocks=16)],
    ids=["together", "small chunks", "no prefixes", "few blocks", "few blocks, whole prompts"],
)
def test_answers_keep_their_bits(windowed: Path, alone: list[object], way: Way) -> None:
    found, llm = plain(windowed, way, PROMPTS)
    with llm:
        assert found == alone


def test_preempted_answers_keep_their_bits(windowed: Path, alone: list[object]) -> None:
    """Every fifth step one of the running requests loses its blocks, those far behind its window long gone."""
    with LLM(str(windowed), max_num_batched_tokens=48, max_num_seqs=4) as llm:
        scheduler = llm._parts.session.engine.scheduler
        plan, steps = scheduler.plan, count()

        def preempting(now: float) -> StepPlan | None:
            running = [name for row in range(4) if (name := scheduler.request_at(row)) is not None]
            if running and (step := next(steps)) % 5 == 4:
                scheduler.preempt(running[step % len(running)])
            return plan(now)

        scheduler.plan = preempting  # type: ignore[method-assign]
        assert facts(llm.generate(PROMPTS, params(COUNT), use_tqdm=False)) == alone
        assert llm._parts.session.engine.stats.preemptions_total > 10
        llm._parts.session.engine.check()


@pytest.mark.parametrize("budget", [40, 4096])
def test_prefixes_are_found_beyond_the_window(windowed: Path, budget: int) -> None:
    """A long beginning is shared by requests that come later, together and one by one, and by forks."""
    shared = [(i * i + 3 * i) % 250 for i in range(200)]
    prompts: list[dict[str, object]] = [{"prompt_token_ids": [*shared, *range(10 * n, 10 * n + 5)]} for n in range(12)]
    expected, llm = plain(windowed, Way(rows=1, prefixes=False), prompts)
    llm.close()
    with LLM(str(windowed), max_num_batched_tokens=budget, max_num_seqs=6) as llm:
        found = facts(llm.generate(prompts, params(COUNT), use_tqdm=False))
        stats = llm._parts.session.engine.stats
        assert found == expected
        assert stats.prefix_hits_total >= 11 * 192, "all but the first find all full blocks of the beginning"
        again = facts(llm.generate(prompts[:3], params(COUNT)[:3], use_tqdm=False))
        assert again == expected[:3]
        fork = SamplingParams(temperature=0.9, seed=5, max_tokens=COUNT, ignore_eos=True)
        (several,) = llm.generate(prompts[:1], [replace(fork, n=3)], use_tqdm=False)
        (single,) = llm.generate(prompts[:1], [fork], use_tqdm=False)
        assert several.outputs[0].token_ids == single.outputs[0].token_ids
        assert len({tuple(answer.token_ids) for answer in several.outputs}) == 3
        greedy = replace(fork, temperature=0.0, n=3)
        for prompt in prompts[4:8]:
            (alike,) = llm.generate([prompt], [greedy], use_tqdm=False)
            (single,) = llm.generate([prompt], [replace(greedy, n=1)], use_tqdm=False)
            assert all(answer.token_ids == single.outputs[0].token_ids for answer in alike.outputs)
        llm._parts.session.engine.check()


@pytest.mark.parametrize("steps", [1, 8])
def test_blocks_behind_the_window_are_freed(windowed: Path, steps: int) -> None:
    """A request of 700 tokens holds no more of them at any time than the window and one step fill."""
    step, held = 64, list[int]()
    settings = {"max_num_batched_tokens": step, "max_num_seqs": 1, "max_steps_per_call": steps}
    with LLM(str(windowed), enable_prefix_caching=False, **settings) as llm:  # type: ignore[arg-type]
        scheduler = llm._parts.session.engine.scheduler
        group = next(n for n, group in enumerate(scheduler._blocks.groups) if group.window == WINDOW)
        commit = scheduler.commit

        def counted(*args: object) -> None:
            held.append(scheduler._blocks.held[group])
            commit(*args)  # type: ignore[arg-type]

        scheduler.commit = counted  # type: ignore[method-assign,assignment]
        prompt = [i % 250 for i in range(700)]
        llm.generate([{"prompt_token_ids": prompt}], SamplingParams(max_tokens=40, ignore_eos=True), use_tqdm=False)
    most = (WINDOW - 1 + step + 30) // 32 + 1
    assert len(held) >= 11 + 39 // steps and max(held) <= most
    assert max(held[13:]) <= (WINDOW + steps - 1 + 30) // 32 + 1


def test_a_long_request_needs_little_room_for_windows(windowed: Path) -> None:
    """1,000 tokens are let in with blocks for a fifth of them, where all layers have a window; else they are not."""
    full = "mixed" in windowed.name
    with LLM(str(windowed), num_blocks=7, max_num_batched_tokens=32, enable_prefix_caching=False) as llm:
        assert llm._parts.report.max_model_len == (7 * 32 if full else 1024)
