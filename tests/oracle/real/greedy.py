"""Greedy answers to real prompts in fp32, held against an oracle's token by token."""

import json
from pathlib import Path

import numpy as np
from tests.oracle.tiny import oracle_logits
from transformers import PreTrainedModel

from pelton import LLM, SamplingParams

PROMPTS, ANSWER = 20, 64
MARGIN = 1e-4  # below this lead of the first over the second logit the oracle itself has no clear answer


def real_prompts(data: Path) -> list[str]:
    """Twenty prompts from five files: English and Chinese, chat, mathematics and code."""
    found = []
    for name, key in (
        ("mt_bench", "turns"),
        ("gsm8k_test", "question"),
        ("humaneval", "prompt"),
        ("belle_eval_zh", "question"),
        ("arena_hard", "prompt"),
    ):
        lines = (data / "prompts" / f"{name}.jsonl").read_text().splitlines()[: PROMPTS // 5]
        values = [json.loads(line)[key] for line in lines]
        found += [value[0] if isinstance(value, list) else value for value in values]
    return found


def check_greedy(model: Path, theirs: PreTrainedModel, data: Path) -> None:
    """All tokens are the oracle's, but for what follows a tie within MARGIN."""
    ask = SamplingParams(temperature=0, max_tokens=ANSWER, ignore_eos=True)
    with LLM(str(model), dtype="float32") as llm:
        outputs = llm.generate(real_prompts(data), ask, use_tqdm=False)
    assert len(outputs) == PROMPTS
    compared = 0
    for output in outputs:
        answer = list(output.outputs[0].token_ids)
        assert len(answer) == ANSWER
        logits = oracle_logits(theirs, list(output.prompt_token_ids) + answer)[-ANSWER - 1 : -1]
        differs = np.flatnonzero(logits.argmax(-1) != answer)
        if len(differs):
            first, second = np.sort(logits[differs[0]])[[-1, -2]]
            assert first - second < MARGIN, f"token {differs[0]} of {output.prompt!r}"
        compared += ANSWER if not len(differs) else int(differs[0])
    print(f"{compared} of {PROMPTS * ANSWER} greedy tokens equal")
    assert compared > 0.95 * PROMPTS * ANSWER
