"""The real weights of Gemma 3 270M against transformers, both in fp32: windows, two rotary bases, K-quants."""

from pathlib import Path

import pytest
from registry_entries import entries
from tests.oracle.driver import Driver
from tests.oracle.real.gemma3 import oracle
from tests.oracle.real.greedy import check_greedy
from tests.oracle.tiny import oracle_logits, worst
from transformers import Gemma3ForCausalLM

from pelton.checkpoint.checkpoint import open_checkpoint
from pelton.models import build_module, config_notes
from pelton.tokenize.tokenizer import build_tokenizer

LONG = 640  # tokens: more than the window of 512


@pytest.fixture(scope="module")
def theirs(gemma3: Path) -> Gemma3ForCausalLM:
    return oracle(gemma3)


@pytest.mark.slow
def test_config_is_understood(gemma3: Path) -> None:
    checkpoint = open_checkpoint(gemma3)
    assert config_notes(checkpoint.config) == ()
    states = build_module(checkpoint).states.values()
    assert {state.spec.window: state.layers for state in states} == {512: 15, None: 3}


@pytest.mark.slow
@pytest.mark.parametrize("backend", entries("backend"))
def test_logits_of_a_text_longer_than_the_window(
    gemma3: Path, theirs: Gemma3ForCausalLM, data: Path, backend: str
) -> None:
    checkpoint = open_checkpoint(gemma3)
    text = (data / "ppl" / "wikitext2_raw_test_part1.txt").read_text()[: 10 * LONG]
    tokens = build_tokenizer(checkpoint).encode(text)[:LONG]
    assert len(tokens) == LONG
    got = Driver(backend, build_module(checkpoint)).chunked(tokens, 200)
    expected = oracle_logits(theirs, tokens)
    assert worst(got, expected) < 1e-4
    assert (got.argmax(-1) == expected.argmax(-1)).mean() > 0.99


@pytest.mark.slow
def test_greedy_answers_in_fp32_are_the_oracles(gemma3: Path, theirs: Gemma3ForCausalLM, data: Path) -> None:
    check_greedy(gemma3, theirs, data)
