"""compressed-tensors: weights exactly what the description says, in our formats; what is not understood, refused."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from tests.checkpoint.compressed_files import Module, drawn, settings, write

from pelton.checkpoint.checkpoint import Checkpoint, open_checkpoint
from pelton.checkpoint.compressed import tensors as compressed
from pelton.checkpoint.compressed.packing import pack, unpack, words
from pelton.core.errors import CheckpointError
from pelton.program.formats import FORMATS
from pelton.program.weights import TensorSource, identity_of

NAME = "model.layers.0.mlp.up_proj"
PACKED, INTEGERS = "pack-quantized", "int-quantized"


def numbers(source: TensorSource) -> np.ndarray:
    rows, cols = source.shape
    return FORMATS[source.format].decode(source.read(), rows, cols)


def opened(folder: Path, module: Module, form: str = PACKED, **weights: Any) -> Checkpoint:
    return open_checkpoint(write(folder, settings(form, **weights), module.tensors(NAME, form)))


@given(arrays.arrays(np.uint8, st.tuples(st.integers(1, 5), st.integers(1, 70)), elements=st.integers(0, 15)))
def test_packing_comes_back(stored: np.ndarray) -> None:
    for bits in (4, 8):
        there = pack(stored, bits)
        assert there.shape == (len(stored), words(stored.shape[1], bits))
        assert np.array_equal(unpack(there, bits, stored.shape[1]), stored)


SYMMETRIC = [
    # bits, group, dtype of the scale, format
    (4, 32, "F16", "Q4_0"),
    (4, 32, "BF16", "Q4_0"),
    (4, 64, "BF16", "INT4_64"),
    (4, 128, "F16", "INT4_128"),
    (4, 256, "F16", "INT4_128"),
    (4, 96, "F16", "Q4_0"),
    (4, 0, "BF16", "INT8"),
    (8, 32, "BF16", "Q8_0"),
    (8, 64, "F16", "INT8_64"),
    (8, 128, "BF16", "INT8_128"),
    (8, 0, "F32", "INT8"),
    (8, 0, "BF16", "INT8"),
]


def weights_of(bits: int, group: int, **more: Any) -> dict[str, Any]:
    strategy = "group" if group else "channel"
    return {"num_bits": bits, "strategy": strategy, "group_size": group or None, **more}


@pytest.mark.parametrize(("bits", "group", "dtype", "form"), SYMMETRIC)
def test_symmetric_weights_are_exact(
    tmp_path: Path, bits: int, group: int, dtype: str, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = drawn(13, 3 * (group or 40), bits, group, dtype)
    checkpoint = opened(tmp_path, module, **weights_of(bits, group))
    source = checkpoint.tensors[f"{NAME}.weight"]
    assert (source.name, source.shape, source.format) == (f"{NAME}.weight", module.codes.shape, form)
    assert np.array_equal(numbers(source), module.numbers)
    whole = bytes(source.read())
    monkeypatch.setattr(compressed, "PORTION", 2 * module.codes.shape[1])
    assert bytes(source.read()) == whole
    assert set(checkpoint.tensors) == {f"{NAME}.weight", "lm_head.weight"}
    assert "quantization_config" not in checkpoint.config
    assert checkpoint.notes == ()


@pytest.mark.parametrize("form", [INTEGERS, "naive-quantized"])
@pytest.mark.parametrize("shape", [(13, 1), (13,)])
def test_integers_are_exact(tmp_path: Path, form: str, shape: tuple[int, ...]) -> None:
    module = drawn(13, 50, 8, 0, "BF16")
    module.scale = module.scale.reshape(shape)
    source = opened(tmp_path, module, form, **weights_of(8, 0)).tensors[f"{NAME}.weight"]
    assert source.format == "INT8"
    assert np.array_equal(numbers(source), module.numbers)


def test_one_scale_for_a_whole_matrix(tmp_path: Path) -> None:
    module = drawn(1, 50, 8, 0, "F32")
    module.codes, module.scale = np.repeat(module.codes, 7, axis=0), module.scale.reshape(1)
    source = opened(tmp_path, module, INTEGERS, num_bits=8, strategy="tensor", group_size=None).tensors[
        f"{NAME}.weight"
    ]
    assert np.array_equal(numbers(source), module.numbers)


def fitting(module: Module) -> Module:
    """With scales of few bits, so that minima are half-precision numbers."""
    module.scale = torch.exp2(torch.round(torch.log2(module.scale)))
    return module


@pytest.mark.parametrize("rows", [8, 13])
@pytest.mark.parametrize("group", [32, 64, 128])
def test_zero_points_are_exact(tmp_path: Path, rows: int, group: int) -> None:
    """As minima where these are half-precision numbers, else as codes of five bits."""
    few = fitting(drawn(rows, 2 * group, 4, group, "F16", zeros=True))
    source = opened(tmp_path / "few", few, **weights_of(4, group, symmetric=False)).tensors[f"{NAME}.weight"]
    assert source.format == {32: "Q4_1", 64: "INT4M_64", 128: "INT4M_128"}[group]
    assert np.array_equal(numbers(source), few.numbers)
    many = drawn(rows, 2 * group, 4, group, "BF16", zeros=True)
    many.scale[0, 0], many.zero[0, 0] = 255 / 2**15, 7  # times 15, which has twelve bits
    source = opened(tmp_path / "many", many, **weights_of(4, group, symmetric=False)).tensors[f"{NAME}.weight"]
    assert source.format == "Q5_0"
    assert np.array_equal(numbers(source), many.numbers)


def test_zero_points_of_whole_rows(tmp_path: Path) -> None:
    module = drawn(13, 40, 4, 0, "F32", zeros=True)
    source = opened(tmp_path, module, **weights_of(4, 0, symmetric=False)).tensors[f"{NAME}.weight"]
    assert source.format == "INT8"
    assert np.array_equal(numbers(source), module.numbers)


def test_scales_that_no_format_holds_are_refused(tmp_path: Path) -> None:
    module = drawn(3, 64, 4, 32, "F32")
    source = opened(tmp_path, module).tensors[f"{NAME}.weight"]
    with pytest.raises(CheckpointError, match=f"tensor '{NAME}.weight_scale': Q4_0: .* is no half-precision number"):
        source.read()


def test_groups_have_their_own_settings(tmp_path: Path) -> None:
    """By name before class, whatever their order; formats of their own; what is ignored stays dense."""
    entry = settings("mixed-precision", ignore=("lm_head", "re:.*norm"))
    linear = entry["config_groups"]["group_0"] | {"format": PACKED}
    named = {"targets": ["re:.*down_proj$", "model.exact"], "format": INTEGERS, "weights": weights_of(8, 0)}
    entry["config_groups"] = {"group_0": linear, "group_1": named}
    one, other = drawn(4, 64, 4, 32, "F16"), drawn(4, 50, 8, 0, "F32")
    tensors = one.tensors(NAME, PACKED) | other.tensors("model.layers.3.mlp.down_proj", INTEGERS)
    tensors |= other.tensors("model.exact", INTEGERS) | {"model.norm.weight": torch.ones(5)}
    found = open_checkpoint(write(tmp_path, entry, tensors)).tensors
    assert {name: source.format for name, source in found.items()} == {
        f"{NAME}.weight": "Q4_0",
        "model.layers.3.mlp.down_proj.weight": "INT8",
        "model.exact.weight": "INT8",
        "model.norm.weight": "F32",
        "lm_head.weight": "BF16",
    }
    assert np.array_equal(numbers(found["model.exact.weight"]), other.numbers)


def test_activations_that_it_wants_are_told(tmp_path: Path) -> None:
    entry = settings(INTEGERS, **weights_of(8, 0))
    table = entry["config_groups"]["group_0"]
    table["input_activations"] = {"num_bits": 8, "type": "int", "strategy": "token", "dynamic": True}
    module = drawn(4, 50, 8, 0, "F32")
    tensors = module.tensors(NAME, INTEGERS) | {f"{NAME}.input_scale": torch.ones(1)}
    (note,) = open_checkpoint(write(tmp_path, entry, tensors)).notes
    assert "activations of 8 bits per token" in note and "not quantised here" in note


def test_identities_are_of_all_parts(tmp_path: Path) -> None:
    """A changed scale is another weight."""
    module = drawn(4, 64, 4, 32, "F16")
    found = []
    for name, factor in (("a", 1), ("b", 1), ("c", 2)):
        module.scale = module.scale * factor
        source = opened(tmp_path / name, module).tensors[f"{NAME}.weight"]
        found.append(identity_of(source, read=True))
    assert found[0] == found[1] != found[2] and None not in found


REFUSED_SETTINGS: list[tuple[dict[str, Any], str]] = [
    ({"type": "float", "num_bits": 8}, "config_groups.group_0.weights.type is 'float'"),
    ({"num_bits": 3}, "weights.num_bits is 3"),
    ({"strategy": "block"}, "weights.strategy is 'block'"),
    ({"group_size": 48}, "weights.group_size is 48 and no multiple of 32"),
    ({"actorder": "group"}, "weights.actorder is 'group'"),
    ({"symmetric": False, "num_bits": 8}, "zero points with 8 bits per group"),
    ({"symmetric": False, "strategy": "tensor"}, "zero points with 4 bits per tensor"),
    ({"block_structure": "2:4"}, "have 'block_structure': '2:4'"),
    ({"dynamic": True}, "have 'dynamic': True"),
]


@pytest.mark.parametrize(("weights", "words"), REFUSED_SETTINGS)
def test_settings_that_are_not_understood_are_named(tmp_path: Path, weights: dict[str, Any], words: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(write(tmp_path, settings(**weights), drawn(4, 64, 4, 32, "F16").tensors(NAME, PACKED)))
    assert "quantization method 'compressed-tensors' is not supported yet as it is used here" in str(caught.value)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"format": "nvfp4-pack-quantized"}, "the format of config_groups.group_0 is 'nvfp4-pack-quantized'"),
        ({"format": "marlin-24"}, "'marlin-24'"),
        ({"kv_cache_scheme": {"num_bits": 8}}, "the settings have 'kv_cache_scheme'"),
        ({"sparsity_config": {"format": "sparse-24-bitmask"}}, "have 'sparsity_config'"),
        ({"transform_config": {"config_groups": {"u": {}}}}, "have 'transform_config'"),
        ({"config_groups": {}}, "there are no config_groups"),
        ({"config_groups": {"g": 3}}, "config_groups.g is 3"),
        ({"ignore": "lm_head"}, "ignore is 'lm_head'"),
        ({"ignore": ["re:("]}, "ignore has the pattern 're:('"),
    ],
)
def test_whole_settings_that_are_not_understood(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(write(tmp_path, settings() | changes, drawn(4, 64, 4, 32, "F16").tensors(NAME, PACKED)))
    assert words in str(caught.value)


@pytest.mark.parametrize("activations", [3, "dense", []])
def test_activations_that_are_no_object_are_named(tmp_path: Path, activations: object) -> None:
    entry = settings()
    entry["config_groups"]["group_0"]["input_activations"] = activations
    with pytest.raises(CheckpointError, match="config_groups.group_0.input_activations is"):
        open_checkpoint(write(tmp_path, entry, drawn(4, 64, 4, 32, "F16").tensors(NAME, PACKED)))


def test_harmless_settings_are_taken(tmp_path: Path) -> None:
    entry = settings(observer="mse", observer_kwargs={"a": 1}, actorder="static", zp_dtype="torch.int8")
    entry |= {"version": "0.12", "global_compression_ratio": 1.4, "sparsity_config": {}, "transform_config": {}}
    open_checkpoint(write(tmp_path, entry, drawn(4, 64, 4, 32, "F16").tensors(NAME, PACKED)))


def test_tensors_that_contradict_the_settings_are_named(tmp_path: Path) -> None:
    module = drawn(4, 64, 4, 32, "F16")
    good = module.tensors(NAME, PACKED)
    zero = drawn(4, 64, 4, 32, "F16", zeros=True).tensors(NAME, PACKED)[f"{NAME}.weight_zero_point"]
    cases: list[tuple[dict[str, Any], dict[str, torch.Tensor | None], str]] = [
        ({}, {"weight_g_idx": torch.zeros(64, dtype=torch.int32)}, "weight_g_idx' belongs to a module"),
        ({}, {"weight_scale": None}, "stands alone"),
        ({}, {"weight_shape": None}, "has no weight_shape beside it"),
        ({}, {"weight_shape": torch.tensor([4, 72])}, "weight_packed' has shape (4, 8) in I32, not (4, 9)"),
        ({}, {"weight_scale": torch.ones(4, 3)}, "weight_scale' has shape (4, 3) in F32, not (4, 2)"),
        ({}, {"weight_zero_point": zero}, "has zero points, though"),
        ({"symmetric": False}, {}, "has no zero points beside it"),
        ({"group_size": 128}, {}, "has 64 columns, which groups of 128 do not divide"),
        ({"ignore": (NAME,)}, {}, "is quantised, though quantization_config ignores"),
    ]
    for number, (weights, changes, said) in enumerate(cases):
        changed = {name: value for name, value in good.items() if name.rpartition(".")[2] not in changes}
        changed |= {f"{NAME}.{part}": tensor for part, tensor in changes.items() if tensor is not None}
        with pytest.raises(CheckpointError) as caught:
            open_checkpoint(write(tmp_path / str(number), settings(**weights), changed))
        assert said in str(caught.value), said
    entry = settings()
    entry["config_groups"]["group_0"]["targets"] = ["re:nothing"]
    with pytest.raises(CheckpointError, match="no target of quantization_config names its module"):
        open_checkpoint(write(tmp_path / "untargeted", entry, good))
    with pytest.raises(CheckpointError, match="tensor 'odd.weight' has I32 numbers and no scales"):
        open_checkpoint(write(tmp_path / "odd", settings(), {**good, "odd.weight": torch.ones(2, dtype=torch.int32)}))


@pytest.mark.parametrize(("bits", "group", "symmetric"), [(4, 32, True), (4, 64, False), (8, 0, True), (8, 128, True)])
def test_the_packages_own_words(tmp_path: Path, bits: int, group: int, symmetric: bool) -> None:
    """What the package of that name packs reads as what it unpacks."""
    package = pytest.importorskip("compressed_tensors")
    compressor = pytest.importorskip("compressed_tensors.compressors.pack_quantized.base").PackedQuantizationCompressor
    args = package.quantization.QuantizationArgs(
        num_bits=bits,
        type="int",
        symmetric=symmetric,
        strategy="group" if group else "channel",
        group_size=group or None,
    )
    scheme = package.quantization.QuantizationScheme(targets=["Linear"], weights=args)
    generator = torch.Generator().manual_seed(3)
    weight, groups = torch.randn(24, 256, generator=generator), 256 // group if group else 1
    half = 1 << bits - 1
    state = {
        "weight": weight,
        "weight_scale": (torch.rand(24, groups, generator=generator) * 0.3 + 0.2).half().float(),
        "weight_zero_point": torch.randint(-half, half, (24, groups), generator=generator, dtype=torch.int8)
        if not symmetric
        else torch.zeros(24, groups, dtype=torch.int8),
    }
    there = compressor.compress(dict(state), scheme)
    theirs = compressor.decompress(dict(there), scheme)["weight"].float().numpy()
    entry = settings(**weights_of(bits, group, symmetric=symmetric))
    found = open_checkpoint(write(tmp_path, entry, {f"{NAME}.{name}": tensor for name, tensor in there.items()}))
    assert np.array_equal(numbers(found.tensors[f"{NAME}.weight"]), theirs)


def test_identities_are_of_what_the_bytes_mean(tmp_path: Path) -> None:
    """Other zero points are another weight, and so are the same bytes under other settings."""

    def identity(name: str, module: Module, **weights: Any) -> str | None:
        return identity_of(opened(tmp_path / name, module, **weights).tensors[f"{NAME}.weight"], read=True)

    module = fitting(drawn(8, 128, 4, 64, "F16", zeros=True))
    found = [identity("zero", module, **weights_of(4, 64, symmetric=False))]
    assert module.zero is not None
    module.zero[0, 0] = 1 - module.zero[0, 0]
    found.append(identity("other", module, **weights_of(4, 64, symmetric=False)))
    assert len(set(found)) == 2 and None not in found
    plain = drawn(8, 128, 4, 64, "F16")
    source = opened(tmp_path / "plain", plain, **weights_of(4, 64)).tensors[f"{NAME}.weight"]
    assert isinstance(source, compressed.CompressedSource)
    groups = [source.group, replace(source.group, form=INTEGERS), replace(source.group, symmetric=False)]
    assert len({identity_of(replace(source, group=group), read=True) for group in groups}) == 3


def test_scales_of_activations_that_nobody_asked_for_are_named(tmp_path: Path) -> None:
    tensors = drawn(4, 64, 4, 32, "F16").tensors(NAME, PACKED) | {f"{NAME}.input_scale": torch.ones(1)}
    with pytest.raises(CheckpointError, match="input_scale' belongs to a module of pack-quantized weights"):
        open_checkpoint(write(tmp_path, settings(), tensors))


def test_patterns_count_from_the_start_of_a_name(tmp_path: Path) -> None:
    entry = settings()
    entry["config_groups"]["group_0"]["targets"] = ["re:layers"]
    with pytest.raises(CheckpointError, match="no target of quantization_config names its module"):
        open_checkpoint(write(tmp_path, entry, drawn(4, 64, 4, 32, "F16").tensors(NAME, PACKED)))


def test_a_group_of_mixed_ones_has_a_format(tmp_path: Path) -> None:
    entry = settings("mixed-precision")
    with pytest.raises(CheckpointError, match="the format of config_groups.group_0 is None"):
        open_checkpoint(write(tmp_path, entry, drawn(4, 64, 4, 32, "F16").tensors(NAME, PACKED)))
