"""GGUF files of the gguf package or made byte by byte: tensors bit for bit, metadata, names and config translated."""

from pathlib import Path

import gguf
import numpy as np
import pytest
from tests.checkpoint.gguf_files import (
    ARRAY,
    FLOAT32,
    INT32,
    STRING,
    UINT32,
    Tensor,
    Value,
    array,
    gguf_bytes,
    model_bytes,
    model_tensors,
    model_values,
    typed_tensors,
)

from pelton.checkpoint.checkpoint import Checkpoint, open_checkpoint
from pelton.checkpoint.gguf import read_gguf
from pelton.checkpoint.gguf_translation import shortest, tensor_name
from pelton.core.errors import CheckpointError
from pelton.program.formats import FORMATS, GGUF_TYPES, OF_GGUF

QUANTISED = ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"]


def opened(path: Path, content: bytes) -> Checkpoint:
    path.write_bytes(content)
    return open_checkpoint(path)


def with_values(tmp_path: Path, *values: Value, without: str = "") -> Checkpoint:
    kept = [value for value in model_values() if value[0] != without]
    return opened(tmp_path / "m.gguf", gguf_bytes([*kept, *values], model_tensors()))


@pytest.mark.parametrize("name", QUANTISED)
@pytest.mark.parametrize("alignment", [32, 128])
def test_tensors_of_every_format_are_bit_exact(tmp_path: Path, name: str, alignment: int) -> None:
    kind = gguf.GGMLQuantizationType[name]
    values = np.random.default_rng(3).standard_normal((7, 96)).astype(np.float32) * 3
    values[0, :32] = 0  # a block whose scale is zero
    values[1, 5] = -300
    raw = gguf.quants.quantize(values, kind)
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_custom_alignment(alignment)
    writer.add_tensor("blk.0.attn_norm.weight", np.arange(3, dtype=np.float32))
    writer.add_tensor("blk.0.ffn_up.weight", raw, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    checkpoint = open_checkpoint(tmp_path / "m.gguf")
    tensor = checkpoint.tensors["model.layers.0.mlp.up_proj.weight"]
    assert (tensor.shape, tensor.format, tensor.name) == ((7, 96), name, "blk.0.ffn_up.weight")
    assert bytes(tensor.read()) == raw.tobytes()
    ours = FORMATS[tensor.format].decode(tensor.read(), *tensor.shape)
    theirs = gguf.quants.dequantize(raw, kind)
    assert ours.tobytes() == theirs.astype(np.float32).tobytes()
    tensor.release()
    assert bytes(tensor.read()) == raw.tobytes()
    checkpoint.close()


def test_a_file_with_tensors_of_every_type(tmp_path: Path) -> None:
    checkpoint = opened(tmp_path / "m.gguf", gguf_bytes(model_values(), typed_tensors()))
    reader = gguf.GGUFReader(tmp_path / "m.gguf")
    assert [tensor.format for tensor in checkpoint.tensors.values()] == list(OF_GGUF)
    for ours, theirs in zip(checkpoint.tensors.values(), reader.tensors, strict=True):
        assert (ours.name, ours.format, ours.shape) == (theirs.name, theirs.tensor_type.name, (2, 256))
        assert bytes(ours.read()) == theirs.data.tobytes()


def test_names_of_all_types_are_those_of_the_package() -> None:
    theirs = {int(kind): kind.name for kind in gguf.GGMLQuantizationType}
    assert {number: GGUF_TYPES.get(number) for number in theirs} == theirs


def test_metadata_of_every_type(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_uint8("a.u8", 255)
    writer.add_int8("a.i8", -128)
    writer.add_uint16("a.u16", 65535)
    writer.add_int16("a.i16", -32768)
    writer.add_uint32("a.u32", 2**32 - 1)
    writer.add_int32("a.i32", -(2**31))
    writer.add_uint64("a.u64", 2**64 - 1)
    writer.add_int64("a.i64", -(2**63))
    writer.add_float32("a.f32", 0.5)
    writer.add_float64("a.f64", 0.1)
    writer.add_bool("a.yes", True)
    writer.add_bool("a.no", False)
    writer.add_string("a.text", "Größe 你好")
    writer.add_array("a.texts", ["", "x", "你"])
    writer.add_array("a.ints", [1, -2, 3])
    writer.add_array("a.floats", [0.5, -1.25])
    writer.add_array("a.truths", [True, False])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    found = read_gguf(tmp_path / "m.gguf")
    expected = {
        "general.architecture": "llama", "a.u8": 255, "a.i8": -128, "a.u16": 65535, "a.i16": -32768, "a.u32": 2**32 - 1,
        "a.i32": -(2**31), "a.u64": 2**64 - 1, "a.i64": -(2**63), "a.f32": 0.5, "a.f64": 0.1, "a.yes": True,
        "a.no": False, "a.text": "Größe 你好", "a.texts": ("", "x", "你"), "a.ints": (1, -2, 3),
        "a.floats": (0.5, -1.25), "a.truths": (True, False),
    }  # fmt: skip
    assert found.version == 3
    assert dict(found.metadata) == expected
    assert found.metadata["a.yes"] is True
    assert found.metadata["a.truths"] == (True, False) and found.metadata["a.truths"][0] is True
    assert found.metadata.count("a.texts") == 3
    assert [read_gguf(tmp_path / "m.gguf").metadata.element("a.texts", i) for i in range(3)] == ["", "x", "你"]


def test_a_whole_model_of_version_2(tmp_path: Path) -> None:
    checkpoint = opened(tmp_path / "m.gguf", gguf_bytes(model_values(), model_tensors(), version=2))
    assert checkpoint.layout == "gguf"
    assert checkpoint.config == {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": 1,
        "max_position_embeddings": 64, "hidden_size": 8, "intermediate_size": 12, "num_attention_heads": 2,
        "num_key_value_heads": 1, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "vocab_size": 5,
        "tie_word_embeddings": True, "bos_token_id": 0, "eos_token_id": 1,
    }  # fmt: skip
    assert checkpoint.generation_config == {"bos_token_id": 0, "eos_token_id": 1}
    assert checkpoint.chat_template == "{{ messages }}"
    assert checkpoint.tokenizer_json is None
    tokens = checkpoint.special_tokens
    assert (tokens.bos_token, tokens.bos_id, tokens.eos_token, tokens.eos_id) == ("<s>", 0, "</s>", 1)
    assert (tokens.eos_ids, tokens.add_bos, tokens.pad_id, tokens.pad_token) == ((1,), True, None, None)
    assert set(checkpoint.tensors) == {
        "model.embed_tokens.weight", "model.norm.weight",
        *(f"model.layers.0.{part}.weight" for part in (
            "input_layernorm", "post_attention_layernorm", "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj",
            "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")),
    }  # fmt: skip
    for tensor, written in zip(checkpoint.tensors.values(), model_tensors(), strict=True):
        assert (tensor.name, tensor.shape) == (written.name, written.dims[::-1])
        assert bytes(tensor.read()) == written.data


def test_untied_head(tmp_path: Path) -> None:
    checkpoint = opened(tmp_path / "m.gguf", model_bytes(tied=False))
    assert checkpoint.config["tie_word_embeddings"] is False
    assert checkpoint.tensors["lm_head.weight"].shape == (5, 8)


@pytest.mark.parametrize(
    ("name", "translated"),
    [
        ("blk.12.attn_q.bias", "model.layers.12.self_attn.q_proj.bias"),
        ("blk.0.attn_q_norm.weight", "model.layers.0.self_attn.q_norm.weight"),
        ("blk.0.attn_k_norm.weight", "model.layers.0.self_attn.k_norm.weight"),
        ("output.bias", "lm_head.bias"),
        ("rope_freqs.weight", "rope_freqs.weight"),
        ("blk.0.ffn_gate_inp.weight", "blk.0.ffn_gate_inp.weight"),
        ("blk.x.attn_q.weight", "blk.x.attn_q.weight"),
    ],
)
def test_tensor_names(name: str, translated: str) -> None:
    assert tensor_name(name) == translated


def test_two_tensors_that_become_one_are_refused(tmp_path: Path) -> None:
    extra = Tensor("model.norm.weight", (8,), 0, bytes(32))
    with pytest.raises(CheckpointError, match=r"output_norm.*model\.norm|model\.norm.*output_norm"):
        opened(tmp_path / "m.gguf", gguf_bytes(model_values(), [*model_tensors(), extra]))


def test_rope_scaling_and_head_sizes(tmp_path: Path) -> None:
    checkpoint = with_values(
        tmp_path,
        ("llama.rope.scaling.type", STRING, "yarn"),
        ("llama.rope.scaling.factor", FLOAT32, 0.1),
        ("llama.rope.scaling.original_context_length", UINT32, 32),
        ("llama.rope.scaling.attn_factor", FLOAT32, 1.5),
        ("llama.attention.key_length", UINT32, 6),
        ("llama.attention.value_length", UINT32, 4),
        ("llama.rope.dimension_count", UINT32, 3),
        ("llama.something_new", UINT32, 9),
    )
    assert checkpoint.config["rope_scaling"] == {
        "rope_type": "yarn", "factor": 0.1, "original_max_position_embeddings": 32, "attn_factor": 1.5,
    }  # fmt: skip
    assert checkpoint.config["head_dim"] == 6
    assert checkpoint.config["v_head_dim"] == 4
    assert checkpoint.config["partial_rotary_factor"] == 0.5
    assert checkpoint.config["llama.something_new"] == 9


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (("llama.rope.scale_linear", FLOAT32, 4.0), {"rope_type": "linear", "factor": 4.0}),
        (("llama.rope.scaling.factor", FLOAT32, 8.0), {"rope_type": "linear", "factor": 8.0}),
        (("llama.rope.scaling.type", STRING, "none"), None),
    ],
)
def test_short_forms_of_rope_scaling(tmp_path: Path, value: Value, expected: dict[str, object] | None) -> None:
    assert with_values(tmp_path, value).config.get("rope_scaling") == expected


def test_dimensions_that_say_nothing_new_are_dropped(tmp_path: Path) -> None:
    config = with_values(
        tmp_path, ("llama.attention.value_length", UINT32, 4), ("llama.rope.dimension_count", UINT32, 4)
    ).config
    assert not {"v_head_dim", "partial_rotary_factor"} & set(config)
    assert not [key for key in config if key.startswith("llama.")]


def test_heads_per_layer(tmp_path: Path) -> None:
    key = "llama.attention.head_count_kv"
    assert with_values(tmp_path, (key, ARRAY, array(INT32, [1, 1])), without=key).config["num_key_value_heads"] == 1
    assert with_values(tmp_path, (key, ARRAY, array(INT32, [1, 2])), without=key).config["num_key_value_heads"] == [
        1,
        2,
    ]
    assert with_values(tmp_path, without=key).config["num_key_value_heads"] == 2


def test_tokens_that_end_an_answer(tmp_path: Path) -> None:
    checkpoint = with_values(
        tmp_path,
        ("tokenizer.ggml.eot_token_id", UINT32, 4),
        ("tokenizer.ggml.eom_token_id", UINT32, 1),
    )
    assert checkpoint.generation_config == {"bos_token_id": 0, "eos_token_id": [1, 4]}
    assert checkpoint.special_tokens.eos_ids == (1, 4)
    assert checkpoint.special_tokens.eos_id == 1


def test_special_token_outside_the_vocabulary(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="bos token is 5, but the vocabulary has 5"):
        key = "tokenizer.ggml.bos_token_id"
        with_values(tmp_path, (key, UINT32, 5), without=key)


def test_no_architecture(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no general\.architecture"):
        with_values(tmp_path, without="general.architecture")


@pytest.mark.parametrize("number", [1e-5, 1e-6, 0.1, 1e6, 500000.0, 3.14159, -0.25, 0.0, 1.0, 3.4e38])
def test_fp32_numbers_come_back_as_written(number: float) -> None:
    assert shortest(float(np.float32(number))) == number


@pytest.mark.parametrize("number", [0.1 + 1e-12, 1e300, float("inf")])
def test_other_numbers_stay(number: float) -> None:
    assert shortest(number) == number
    assert np.isnan(shortest(float("nan")))
