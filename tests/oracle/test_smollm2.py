"""The default model's real weights on every backend against transformers, both in fp32."""

from pathlib import Path

import numpy as np
import pytest
from registry_entries import entries
from tests.oracle.driver import Driver
from tests.oracle.smollm2 import oracle
from tests.oracle.tiny import oracle_logits, worst
from transformers import LlamaForCausalLM

from pelton.checkpoint.checkpoint import open_checkpoint
from pelton.models import build_module, config_notes

# "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
CHAT = [1, 4093, 198, 1780, 314, 260, 3575, 282, 4649, 47, 2, 198, 1, 520, 9531, 198]
END, PARIS = 2, 7042


@pytest.fixture(scope="module")
def theirs(smollm2: Path) -> LlamaForCausalLM:
    return oracle(smollm2)


def test_config_is_understood(smollm2: Path) -> None:
    assert config_notes(open_checkpoint(smollm2).config) == ()


@pytest.mark.parametrize("backend", entries("backend"))
def test_logits_of_a_chat_turn(smollm2: Path, theirs: LlamaForCausalLM, backend: str) -> None:
    """Our greedy answer is the oracle's; logits of all its steps are within 1e-4 of their spread."""
    driver = Driver(backend, build_module(open_checkpoint(smollm2)))
    logits, answer = [driver.logits({"a": CHAT})["a"]], list[int]()
    while len(answer) < 32 and END not in answer:
        answer.append(int(logits[-1][-1].argmax()))
        logits.append(driver.logits({"a": answer[-1:]})["a"])
    expected = oracle_logits(theirs, CHAT + answer)
    assert worst(np.concatenate(logits), expected) < 1e-4
    np.testing.assert_array_equal(expected[len(CHAT) - 1 : -1].argmax(-1), answer)
    assert PARIS in answer
