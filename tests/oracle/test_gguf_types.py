"""A tiny Llama whose matrices are of each GGUF type, and of all of them at once, against transformers; and its bits.

Codes are random, so each model has every code; what they stand for is the gguf package's word.
"""

from collections.abc import Sequence
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from registry_entries import entries
from tests.oracle.driver import Driver
from tests.oracle.test_gguf import gguf_name, paired, write_config
from tests.oracle.tiny import oracle_logits, prompt, tiny_llama, worst
from tests.program.sources import drawn
from transformers import PreTrainedModel

from pelton.backends.cpu import _native
from pelton.checkpoint.checkpoint import open_checkpoint
from pelton.models import build_module
from pelton.program.formats import FORMATS, OF_GGUF
from pelton.program.module import Module
from pelton.program.passes import run_passes

CODED = [name for name in OF_GGUF if FORMATS[name].codes]
SIZES = {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 4, "num_key_value_heads": 2}


def neighbours_apart(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """The reverse of `paired`."""
    return weight.reshape(heads, -1, 2, *weight.shape[1:]).transpose(1, 2).reshape(weight.shape)


def written(path: Path, forms: Sequence[str]) -> PreTrainedModel:
    """A file with matrices of these types in turn, and the model that it holds."""
    model = tiny_llama(**SIZES)
    writer = gguf.GGUFWriter(path, "llama")
    write_config(writer, model.config, "llama")
    heads = {"q_proj": 4, "k_proj": 2}
    matrices = 0
    for name, weight in model.state_dict().items():
        if weight.ndim == 1:
            writer.add_tensor(gguf_name(name, "llama"), weight.numpy().copy())
            continue
        form, part = forms[matrices % len(forms)], name.split(".")[-2]
        kind, matrices = gguf.GGMLQuantizationType[form], matrices + 1
        source = drawn(name, tuple(weight.shape), form, seed=matrices)
        raw = np.frombuffer(source.data, np.uint8).reshape(len(weight), -1)
        values = torch.from_numpy(np.array(gguf.quants.dequantize(raw, kind)))
        weight.copy_(neighbours_apart(values, heads[part]) if part in heads else values)
        writer.add_tensor(gguf_name(name, "llama"), raw, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return model


def built(path: Path) -> Module:
    return run_passes(build_module(open_checkpoint(path)))


def test_pairs_are_put_back() -> None:
    rows = torch.arange(24.0).reshape(12, 2)
    assert torch.equal(neighbours_apart(paired(rows, 2), 2), rows)


@pytest.mark.parametrize("backend", entries("backend"))
@pytest.mark.parametrize("forms", [[form] for form in CODED] + [CODED, CODED[::-1]], ids=lambda forms: "+".join(forms))
def test_every_type_is_the_oracle(tmp_path: Path, forms: list[str], backend: str) -> None:
    model, tokens = written(tmp_path / "m.gguf", forms), prompt(70)
    got = Driver(backend, built(tmp_path / "m.gguf")).logits({"a": tokens})["a"]
    theirs = oracle_logits(model, tokens)
    assert theirs.std() > 0.02
    assert worst(got, theirs) < 1e-4


@pytest.mark.parametrize("exact", [False, True])
def test_bits_of_all_types_at_once(tmp_path: Path, exact: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks and instruction sets change nothing: one row alone takes other kernels than seventy together."""
    written(tmp_path / "m.gguf", CODED[::-1])
    module, tokens = built(tmp_path / "m.gguf"), prompt(70)
    expected = Driver("cpu", module, exact=exact).logits({"a": tokens})["a"].tobytes()
    for isa in _native.instruction_sets():
        monkeypatch.setenv("PELTON_ISA", isa)
        driver = Driver("cpu", module, exact=exact)
        for size in (70, 1, 9, 33):
            assert driver.chunked(tokens, size, f"by {size}").tobytes() == expected, (isa, size)
