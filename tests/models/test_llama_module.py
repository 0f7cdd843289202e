"""The Module of a Llama: sizes against published models, the op list, and the files' row order."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from tests.models.test_config import PLAIN
from tests.oracle.driver import Driver
from tests.oracle.tiny import prompt, worst
from tests.program.sources import ArraySource, ShapeSource, dense, drawn

from pelton.attention.kinds import full
from pelton.core.errors import CheckpointError, UnsupportedModelError
from pelton.models import build_module, standard
from pelton.program import OPS
from pelton.program.module import Module
from pelton.program.op import Cost
from pelton.program.values import StepShape
from pelton.program.weights import TensorSource


@dataclass(frozen=True)
class Source:
    config: Mapping[str, Any]
    tensors: Mapping[str, TensorSource]
    layout: str = "hf"


def shapes(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """All tensors of a Llama without biases, by name."""
    hidden, inner, heads = config["hidden_size"], config["intermediate_size"], config["num_attention_heads"]
    head_dim = config.get("head_dim") or hidden // heads
    q, kv = heads * head_dim, config.get("num_key_value_heads", heads) * head_dim
    found: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (config["vocab_size"], hidden),
        "model.norm.weight": (hidden,),
    }
    if not config.get("tie_word_embeddings"):
        found["lm_head.weight"] = (config["vocab_size"], hidden)
    for layer in range(config["num_hidden_layers"]):
        parts = {
            "self_attn.q_proj": (q, hidden),
            "self_attn.k_proj": (kv, hidden),
            "self_attn.v_proj": (kv, hidden),
            "self_attn.o_proj": (hidden, q),
            "mlp.gate_proj": (inner, hidden),
            "mlp.up_proj": (inner, hidden),
            "mlp.down_proj": (hidden, inner),
            "input_layernorm": (hidden,),
            "post_attention_layernorm": (hidden,),
        }
        found |= {f"model.layers.{layer}.{name}.weight": shape for name, shape in parts.items()}
    return found


def hollow(**changes: Any) -> Module:
    """A Module of these sizes without any numbers."""
    config = {**PLAIN, **changes}
    return build_module(Source(config, {n: ShapeSource(n, s) for n, s in shapes(config).items()}))


LLAMA3_8B = dict(  # noqa: C408
    hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=8,
    vocab_size=128256, rope_theta=5e5,
)  # fmt: skip
LLAMA2_7B = dict(  # noqa: C408
    hidden_size=4096, intermediate_size=11008, num_hidden_layers=32, num_attention_heads=32, vocab_size=32000,
)  # fmt: skip
LLAMA3_70B = dict(  # noqa: C408
    hidden_size=8192, intermediate_size=28672, num_hidden_layers=80, num_attention_heads=64, num_key_value_heads=8,
    vocab_size=128256, rope_theta=5e5,
)  # fmt: skip


@pytest.mark.parametrize(
    ("config", "parameters", "kv_bytes"),
    [(LLAMA3_8B, 8.03e9, 131_072), (LLAMA2_7B, 6.74e9, 524_288), (LLAMA3_70B, 70.55e9, 327_680)],
)
def test_sizes_of_published_models(config: dict[str, Any], parameters: float, kv_bytes: int) -> None:
    module = hollow(**config)
    assert module.weight_bytes / 2 == pytest.approx(parameters, rel=1e-3)
    assert module.kv_token_bytes(2) == kv_bytes
    assert len(module.states) == 1


def cost(module: Module, step: StepShape) -> Cost:
    tables = module.tables("target")
    total = Cost()
    for op in module.entries["target"].ops:
        total += OPS.get(op.kind)().cost(op, tables, step)
    return total


def test_a_token_costs_two_flops_per_parameter_and_reads_them_once() -> None:
    """Decoding one token: 2 P FLOPs (P without the embedding, of which one row is read) and P x 2 bytes, within 1 %."""
    module = hollow(**LLAMA3_8B)
    embedding = 128256 * 4096
    parameters = module.weight_bytes // 2 - embedding
    one = cost(module, StepShape.of(1, 0))
    assert one.flops == pytest.approx(2 * parameters, rel=0.01)
    assert one.read == pytest.approx(2 * parameters, rel=0.01)


def test_attention_costs_grow_with_the_context() -> None:
    """4 heads x head_dim x layers FLOPs and the KV bytes of each cached token (algorithms: FLOPs of decoding)."""
    module = hollow(**LLAMA3_8B)
    near, far = cost(module, StepShape.of(1, 1023)), cost(module, StepShape.of(1, 9215))
    # The softmax itself adds a few operations per score, 20 of 532 here.
    assert far.flops - near.flops == pytest.approx(8192 * 32 * 32 * (4 * 128 + 20), rel=1e-9)
    assert far.read - near.read == 8192 * 131_072


def test_op_list_of_a_layer() -> None:
    module = hollow(num_key_value_heads=2)
    kinds = [op.kind for op in module.entries["target"].ops]
    layer = (
        "rms_norm linear linear linear rope rope kv_write attend linear add rms_norm linear linear gated linear add"
    ).split()
    assert kinds == ["rope_table", "embed", *layer, *layer, "rms_norm", "head"]
    assert module.entries["target"].inputs == ("ids", "positions")
    assert module.vocab == 128
    assert module.context == 2048
    assert [op.attrs["layer"] for op in module.entries["target"].ops if op.kind == "attend"] == [0, 1]


def test_tied_head_is_a_view_of_the_embedding() -> None:
    module = hollow(tie_word_embeddings=True)
    head = module.entries["target"].ops[-1]
    assert module.weights[head.weights[0]].storage == "model.embed_tokens.weight"
    assert "lm_head.weight" not in module.storages


def test_a_tied_model_with_a_head_of_its_own_keeps_it() -> None:
    config = {**PLAIN, "tie_word_embeddings": True}
    named = {**shapes(config), "lm_head.weight": (128, 64)}
    module = build_module(Source(config, {n: ShapeSource(n, s) for n, s in named.items()}))
    assert module.weights[module.entries["target"].ops[-1].weights[0]].storage == "lm_head.weight"


def tensors(**changes: tuple[int, ...] | None) -> dict[str, TensorSource]:
    """PLAIN's tensors with some added, of another shape, or (None) left out. Dots are written as two underscores."""
    named: dict[str, tuple[int, ...] | None] = {**shapes(PLAIN)}
    named |= {name.replace("__", "."): shape for name, shape in changes.items()}
    return {name: ShapeSource(name, shape) for name, shape in named.items() if shape is not None}


def test_unknown_tensors_are_refused() -> None:
    odd = "model.layers.0.self_attn.q_norm.weight"
    with pytest.raises(UnsupportedModelError, match="1 tensors.*q_norm"):
        build_module(Source(PLAIN, {**tensors(), odd: ShapeSource(odd, (16,))}))


def test_missing_tensors_and_wrong_shapes_are_named() -> None:
    with pytest.raises(CheckpointError, match="no tensor 'lm_head.weight'"):
        build_module(Source(PLAIN, tensors(lm_head__weight=None)))
    with pytest.raises(CheckpointError, match=r"'model.norm.weight' has shape \(63,\)"):
        build_module(Source(PLAIN, tensors(model__norm__weight=(63,))))


@pytest.mark.timeout(10)
@pytest.mark.parametrize(
    ("changes", "tensor"),
    [
        ({"head_dim": 65536}, "self_attn.q_proj"),
        ({"num_attention_heads": 65536, "num_key_value_heads": 1, "head_dim": 65536}, "self_attn.q_proj"),
        ({"hidden_size": 2**20, "head_dim": 16}, "model.embed_tokens"),
        ({"vocab_size": 2**24}, "model.embed_tokens"),
        ({"num_key_value_heads": 2}, "self_attn.k_proj"),
    ],
)
def test_sizes_are_held_against_tensors_before_tables_are_made(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], tensor: str
) -> None:
    def too_early(*_: object) -> None:
        raise AssertionError("a table was made from a size that no tensor has")

    monkeypatch.setattr(standard, "rotation_of", too_early)
    monkeypatch.setattr(full, "half_split_rows", too_early)
    with pytest.raises(CheckpointError, match=f"{tensor}.weight' has shape .* but the config asks for"):
        build_module(Source({**PLAIN, **changes}, tensors(), "gguf"))


def test_buffers_of_old_files_are_ignored() -> None:
    extra = {f"model.layers.{i}.self_attn.rotary_emb.inv_freq": (8,) for i in range(2)}
    build_module(Source(PLAIN, tensors(**{n.replace(".", "__"): s for n, s in extra.items()})))


def biased(*parts: str) -> dict[str, TensorSource]:
    """PLAIN's tensors with biases on these projections of every layer."""
    sizes = {name.removesuffix(".weight"): shape[0] for name, shape in shapes(PLAIN).items()}
    names = [name for name in sizes if name.endswith(tuple(f".{part}_proj" for part in parts))]
    return {**tensors(), **{f"{n}.bias": ShapeSource(f"{n}.bias", (sizes[n],)) for n in names}}


def biases(module: Module) -> set[str]:
    return {name for name in module.storages if name.endswith(".bias")}


def test_biases_follow_the_flags_and_without_flags_the_tensors() -> None:
    assert len(biases(build_module(Source({**PLAIN, "attention_bias": True}, biased("q", "k", "v", "o"))))) == 8
    assert len(biases(build_module(Source({**PLAIN, "mlp_bias": True}, biased("gate", "up", "down"))))) == 6
    assert len(biases(build_module(Source(PLAIN, biased("q", "k", "v"))))) == 6
    with pytest.raises(CheckpointError, match="no tensor 'model.layers.0.self_attn.o_proj.bias'"):
        build_module(Source({**PLAIN, "attention_bias": True}, biased("q", "k", "v")))
    with pytest.raises(UnsupportedModelError, match="bias"):
        build_module(Source({**PLAIN, "attention_bias": False}, biased("q", "k", "v")))


def interleaved(source: ArraySource, heads: int) -> ArraySource:
    """The tensor as GGUF files of this family keep it: each head's halves turned into adjacent pairs of rows."""
    numbers = source.numbers
    stored = numbers.reshape(heads, 2, -1, *numbers.shape[1:]).swapaxes(1, 2).reshape(numbers.shape)
    return dense(source.name, stored)


def test_gguf_rows_and_biases_give_the_same_numbers() -> None:
    config = {**PLAIN, "num_key_value_heads": 2, "attention_bias": True}
    plain = {name: drawn(name, shape) for name, shape in shapes(config).items()}
    plain |= {f"{n}.bias": drawn(f"{n}.bias", (plain[f"{n}.weight"].shape[0],)) for n in _projections(plain)}
    stored = {
        name: interleaved(source, 4 if ".q_proj" in name else 2) if ".q_proj" in name or ".k_proj" in name else source
        for name, source in plain.items()
    }
    tokens = prompt(70)
    hf = Driver("reference", build_module(Source(config, plain))).logits({"a": tokens})["a"]
    gguf = Driver("reference", build_module(Source(config, stored, "gguf"))).logits({"a": tokens})["a"]
    np.testing.assert_array_equal(gguf, hf)
    unordered = Driver("reference", build_module(Source(config, stored))).logits({"a": tokens})["a"]
    assert worst(unordered, hf) > 0.01


def _projections(tensors: Mapping[str, ArraySource]) -> list[str]:
    return [name.removesuffix(".weight") for name in tensors if "self_attn" in name]


def test_gguf_frequency_divisors_are_applied() -> None:
    """GGUF writes scaled frequencies as divisors of the plain ones."""
    divisors = dense("rope_freqs.weight", np.array([1, 1, 2, 4, 8, 8, 8, 8], np.float32))
    module = build_module(Source(PLAIN, {**tensors(), divisors.name: divisors}, "gguf"))
    plain = hollow().entries["target"].ops[0].attrs["inverse_frequencies"]
    scaled = module.entries["target"].ops[0].attrs["inverse_frequencies"]
    assert isinstance(plain, tuple) and isinstance(scaled, tuple)
    assert [float(a) / float(b) for a, b in zip(plain, scaled, strict=True)] == [1, 1, 2, 4, 8, 8, 8, 8]


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        (np.zeros(8), "holds 0 at place 0"),
        ([1, 1, 1, -2, 1, 1, 1, 1], "holds -2 at place 3"),
        ([1, 1, 1, 1, 1, 1, 1, np.nan], "holds nan at place 7"),
        ([1, np.inf, 1, 1, 1, 1, 1, 1], "holds inf at place 1"),
        ([1, 1, 1e-30, 1, 1, 1, 1, 1], "holds 1e-30 at place 2"),
        (np.ones(7), r"has shape \(7,\), but the config asks for \(8,\)"),
        (np.ones(9), r"has shape \(9,\)"),
        (np.ones(0), r"has shape \(0,\)"),
        (np.ones((8, 1)), r"has shape \(8, 1\)"),
        (np.ones((1, 8)), r"has shape \(1, 8\)"),
        (np.array(1.0), r"has shape \(\)"),
    ],
)
def test_damaged_frequency_divisors_are_refused(numbers: Any, words: str) -> None:
    divisors = dense("rope_freqs.weight", np.asarray(numbers, np.float32))
    with pytest.raises(CheckpointError, match=f"'rope_freqs.weight' {words}"):
        build_module(Source(PLAIN, {**tensors(), divisors.name: divisors}, "gguf"))
