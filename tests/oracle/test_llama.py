"""Tiny random Llama checkpoints against transformers in fp32: batches, blocks, shards and spellings.

What all families have to show is in tests/conformance/test_arch.py and test_arch_fields.py.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from registry_entries import entries
from tests.oracle.driver import Driver
from tests.oracle.tiny import (
    LLAMA3_ROPE,
    LLAMA_VARIANTS,
    llama_config,
    oracle_logits,
    prompt,
    respell,
    save,
    tiny_llama,
    worst,
)
from transformers import LlamaForCausalLM

from pelton.checkpoint.checkpoint import open_checkpoint
from pelton.models import build_module
from pelton.program.module import Module

TOLERANCE = 1e-4

Variant = tuple[LlamaForCausalLM, Module]


@pytest.fixture(scope="module")
def variant(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Variant]:
    """Name of a variant -> transformers' model and our Module of the files it saved; made once."""
    made: dict[str, Variant] = {}

    def make(name: str) -> Variant:
        if name not in made:
            model = tiny_llama(**LLAMA_VARIANTS[name])
            folder = save(model, tmp_path_factory.mktemp(name))
            made[name] = model, build_module(open_checkpoint(folder))
        return made[name]

    return make


@pytest.mark.parametrize("backend", entries("backend"))
@pytest.mark.parametrize("size", [1, 7, 16, 64])
def test_chunked_is_whole(variant: Callable[[str], Variant], size: int, backend: str) -> None:
    model, module = variant("grouped")
    tokens = prompt(140)
    assert worst(Driver(backend, module).chunked(tokens, size), oracle_logits(model, tokens)) < TOLERANCE


@pytest.mark.parametrize("backend", entries("backend"))
def test_batched_is_alone(variant: Callable[[str], Variant], backend: str) -> None:
    """Four sequences at different places of their own share steps of mixed sizes."""
    model, module = variant("llama3")
    prompts = {str(length): prompt(length) for length in (5, 40, 71, 130)}
    sizes = {"5": 1, "40": 13, "71": 30, "130": 64}
    driver = Driver(backend, module)
    got: dict[str, list[NDArray[np.float32]]] = {name: [] for name in prompts}
    at = dict.fromkeys(prompts, 0)
    while any(at[name] < len(tokens) for name, tokens in prompts.items()):
        pieces = {n: t[at[n] : at[n] + sizes[n]] for n, t in prompts.items() if at[n] < len(t)}
        for name, logits in driver.logits(pieces).items():
            got[name].append(logits)
            at[name] += len(logits)
    for name, tokens in prompts.items():
        assert worst(np.concatenate(got[name]), oracle_logits(model, tokens)) < TOLERANCE, name


@pytest.mark.parametrize("backend", entries("backend"))
def test_cached_is_computed(variant: Callable[[str], Variant], backend: str) -> None:
    """A second sequence starts from blocks that the first one filled, through block copies."""
    model, module = variant("multi_query")
    tokens = prompt(80)
    driver = Driver(backend, module)
    driver.logits({"first": tokens[:64]})
    driver.logits({"second": tokens[:1] * 64})
    for source, target in zip(driver.table("first"), driver.table("second"), strict=True):
        driver.executable.blocks().copy(0, source, target)
    got = driver.logits({"second": tokens[64:]})["second"]
    assert worst(got, oracle_logits(model, tokens)[64:]) < TOLERANCE


@pytest.mark.parametrize("backend", entries("backend"))
def test_used_blocks_leave_no_trace(variant: Callable[[str], Variant], backend: str) -> None:
    _, module = variant("grouped")
    fresh = Driver(backend, module, blocks=4).logits({"a": prompt(100)})["a"]
    driver = Driver(backend, module, blocks=4)
    driver.logits({"old": prompt(128, seed=9)})
    driver.drop("old")
    np.testing.assert_array_equal(driver.logits({"a": prompt(100)})["a"], fresh)


def _reference(folder: Path, tokens: list[int]) -> NDArray[np.float32]:
    return Driver("reference", build_module(open_checkpoint(folder))).logits({"a": tokens})["a"]


def test_shards_and_spellings_are_one_model(tmp_path: Path) -> None:
    model, tokens = tiny_llama(rope_parameters=LLAMA3_ROPE), prompt(100)
    whole = _reference(save(model, tmp_path / "whole"), tokens)
    shards = save(model, tmp_path / "shards", shard_size="40KB")
    assert len(list(shards.glob("*.safetensors"))) > 2
    np.testing.assert_array_equal(_reference(shards, tokens), whole)
    respell(shards)
    assert "rope_scaling" in (shards / "config.json").read_text()
    np.testing.assert_array_equal(_reference(shards, tokens), whole)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_files(tmp_path: Path, dtype: str) -> None:
    """Files in 16 bits, multiplied in fp32 on both sides."""
    folder = save(tiny_llama().to(getattr(torch, dtype)), tmp_path)
    assert dtype in (folder / "config.json").read_text()
    model, tokens = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32), prompt(50)
    assert worst(_reference(folder, tokens), oracle_logits(model, tokens)) < TOLERANCE


# Changes that take weights away: (variant it starts from, the change). The conformance suite flips all other fields.
FLIPS: dict[str, tuple[str, dict[str, Any]]] = {
    "num_hidden_layers": ("multi_query", {"num_hidden_layers": 2}),
    "num_attention_heads": ("grouped", {"num_attention_heads": 2, "num_key_value_heads": 1}),
    "tie_word_embeddings": ("grouped", {"tie_word_embeddings": True}),
    "attention_bias": ("attention_bias", {"attention_bias": False}),
    "mlp_bias": ("mlp_bias", {"mlp_bias": False}),
}


@pytest.mark.parametrize("field", FLIPS)
def test_every_field_matters(tmp_path: Path, field: str) -> None:
    """A flipped field moves the oracle by far more than the tolerance, and us with it."""
    name, change = FLIPS[field]
    base = tiny_llama(**LLAMA_VARIANTS[name])
    flipped = LlamaForCausalLM(llama_config(**{**LLAMA_VARIANTS[name], **change})).eval()
    flipped.load_state_dict(base.state_dict(), strict=False)
    flipped.tie_weights()
    tokens = prompt(120)
    theirs = oracle_logits(flipped, tokens)
    assert worst(theirs, oracle_logits(base, tokens)) > 100 * TOLERANCE
    assert worst(_reference(save(flipped, tmp_path), tokens), theirs) < TOLERANCE
