"""The default model against transformers at length: greedy answers in fp32, and the distance of the default dtype."""

from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.oracle.driver import Driver
from tests.oracle.real.greedy import check_greedy
from tests.oracle.smollm2 import oracle
from tests.oracle.tiny import oracle_logits

from pelton.checkpoint.checkpoint import open_checkpoint
from pelton.models import build_module
from pelton.program.passes import run_passes
from pelton.tokenize.tokenizer import build_tokenizer

WINDOW, WINDOWS = 500, 8
KL_FACTOR = 1.2


@pytest.mark.slow
def test_greedy_answers_in_fp32_are_the_oracles(smollm2: Path, data: Path) -> None:
    check_greedy(smollm2, oracle(smollm2), data)


def log_softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    wide = logits.astype(np.float64)
    wide -= wide.max(-1, keepdims=True)
    return wide - np.log(np.exp(wide).sum(-1, keepdims=True))


def divergence(reference: NDArray[np.float32], other: NDArray[np.float32]) -> float:
    """Sum over tokens of KL(reference || other) in nats."""
    p, q = log_softmax(reference), log_softmax(other)
    return float((np.exp(p) * (p - q)).sum())


@pytest.mark.slow
def test_the_default_dtype_is_as_close_to_fp32_as_bf16_of_transformers(smollm2: Path, data: Path) -> None:
    checkpoint = open_checkpoint(smollm2)
    text = (data / "ppl" / "wikitext2_raw_test_part1.txt").read_text()[: 10 * WINDOW * WINDOWS]
    tokens = build_tokenizer(checkpoint).encode(text)[: WINDOW * WINDOWS]
    assert len(tokens) == WINDOW * WINDOWS
    driver = Driver("cpu", run_passes(build_module(checkpoint)), exact=False, blocks=160)
    exact, rounded = oracle(smollm2), oracle(smollm2, torch.bfloat16)
    ours = theirs = 0.0
    for start in range(0, len(tokens), WINDOW):
        window = tokens[start : start + WINDOW]
        reference = oracle_logits(exact, window)
        ours += divergence(reference, driver.logits({str(start): window})[str(start)])
        theirs += divergence(reference, oracle_logits(rounded, window))
    print(f"mean KL to fp32: {ours / len(tokens):.3e} here, {theirs / len(tokens):.3e} transformers in bf16")
    assert 0 < ours <= KL_FACTOR * theirs
