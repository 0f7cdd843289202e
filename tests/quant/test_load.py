"""What settings make of a module's matrices: which are quantised, into what, in which form, and what is refused."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.measure.verify_parts import tiny_talker
from tests.oracle.driver import Driver
from tests.oracle.tiny import TOYS, prompt, save
from tests.program.sources import drawn

from pelton import LLM
from pelton.checkpoint.checkpoint import open_checkpoint
from pelton.core.errors import SettingError, UnknownNameError
from pelton.core.needs import Claim
from pelton.models import build_module
from pelton.program.coordinates import coordinates
from pelton.program.formats import FORMATS
from pelton.program.module import Module
from pelton.program.passes import run_passes
from pelton.program.weights import CODES, VALUES, Storage
from pelton.quant import SCHEMES, method_for, scheme_name
from pelton.quant.load import matrices, quantised, with_form

TABLE, HEAD = "model.embed_tokens.weight", "lm_head.weight"


def opened(tmp_path: Path, family: str = "llama", **changes: object) -> Module:
    return run_passes(build_module(open_checkpoint(save(TOYS[family].made(**changes), tmp_path))))


def with_method(module: Module, text: str) -> tuple[Module, tuple[str, ...]]:
    return quantised(module, method_for("quantization", text))


def formats(module: Module) -> dict[str, str]:
    return {storage.name: storage.format for storage in matrices(module)}


def test_tables_and_the_head_keep_eight_bits(tmp_path: Path) -> None:
    module = opened(tmp_path)
    assert set(formats(with_method(module, "int8")[0]).values()) == {"INT8"}
    four = formats(with_method(module, "int4")[0])
    assert {name for name, form in four.items() if form == "INT8"} == {TABLE, HEAD}
    assert set(four.values()) == {"INT8", "Q4_0"}
    alone = formats(with_method(module, "int4:head=false")[0])
    assert {name for name, form in alone.items() if form == "F32"} == {TABLE, HEAD}
    alone = formats(with_method(module, "int8:head=false")[0])
    assert {name for name, form in alone.items() if form == "F32"} == {TABLE, HEAD}


def test_a_tied_table_is_one(tmp_path: Path) -> None:
    found = formats(with_method(opened(tmp_path, tie_word_embeddings=True), "int4")[0])
    assert found[TABLE] == "INT8" and HEAD not in found


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("int8:group=32", "Q8_0"),
        ("int8:group=64", "INT8_64"),
        ("int4:group=64", "INT4_64"),
        ("int4:minimum=true", "Q4_1"),
        ("int4:minimum=true,group=64", "INT4M_64"),
    ],
)
def test_options_choose_the_format(tmp_path: Path, text: str, form: str) -> None:
    found = formats(with_method(opened(tmp_path, intermediate_size=128), text)[0])
    assert set(found.values()) - {"INT8"} == {form}


def test_groups_that_do_not_divide_are_told(tmp_path: Path) -> None:
    """Widths 64 and 96 (and 100)."""
    module, notes = with_method(opened(tmp_path), "int4:group=128")
    assert set(formats(module).values()) == {"INT8", "INT4_64", "Q4_0"}
    assert notes == (
        "Quantization int4:group=128: 12 matrices of 64 columns got groups of 64.",
        "Quantization int4:group=128: 2 matrices of 96 columns got groups of 32.",
    )
    module, notes = with_method(opened(tmp_path, intermediate_size=100), "int4:group=64")
    assert formats(module)["model.layers.1.mlp.down_proj.weight"] == "F32"
    assert notes == (
        "Quantization int4:group=64: 2 matrices of 100 columns stay as they are: no group divides their rows.",
    )


def test_nothing_to_quantise_is_refused(tmp_path: Path) -> None:
    module = opened(tmp_path, hidden_size=60, num_attention_heads=3, num_key_value_heads=1, intermediate_size=70)
    with pytest.raises(SettingError, match="quantization='int4:group=32,head=false' has no effect"):
        with_method(module, "int4:head=false")


def test_what_is_quantised_already_is_refused(tmp_path: Path) -> None:
    module, _ = with_method(opened(tmp_path), "int4")
    with pytest.raises(SettingError, match=r"quantization='int8' cannot work: .* quantised already \(INT8, Q4_0\)"):
        with_method(module, "int8")


def test_unknown_ways_are_refused() -> None:
    with pytest.raises(
        UnknownNameError, match="quantization='awq' cannot work. There are int4, int8. How a checkpoint"
    ):
        method_for("quantization", "awq")
    with pytest.raises(SettingError, match="group cannot be '48'. It must be one of 32, 64, 128."):
        method_for("quantization", "int4:group=48")


def test_fused_projections_are_quantised_in_their_parts(tmp_path: Path) -> None:
    """One matrix of q, k and v in the file: rows are the same codes, whole or in parts."""
    module, _ = with_method(opened(tmp_path, "phi3"), "int8")
    whole = open_checkpoint(tmp_path).tensors["model.layers.0.self_attn.qkv_proj.weight"]
    numbers = FORMATS["F32"].decode(whole.read(), *whole.shape)
    parts = [module.storages[f"model.layers.0.self_attn.{part}_proj.weight"] for part in "qkv"]
    got = np.concatenate([FORMATS["INT8"].decode(part.source.read(), part.rows, part.cols) for part in parts])
    assert got.shape == numbers.shape
    assert np.abs(got - numbers).max() <= np.abs(numbers).max() / 127


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_answers_stay_near(tmp_path: Path, backend: str) -> None:
    """Logits move by what the codes cost and no more; a wrong scale or order would move them by their own size."""
    module = opened(tmp_path)
    tokens = prompt(40)
    plain = Driver(backend, module).logits({"a": tokens})["a"]
    moved = {}
    for text in ("int8", "int8:group=32", "int4", "int4:minimum=true", "int4:group=128"):
        got = Driver(backend, with_method(module, text)[0]).logits({"a": tokens})["a"]
        moved[text] = float(np.sqrt(np.square(got - plain).mean()) / plain.std())
    assert 0 < moved["int8:group=32"] < moved["int8"] < 0.03
    assert moved["int8"] < moved["int4:minimum=true"] < moved["int4:group=128"] < 0.5
    assert moved["int4"] < 0.4


def test_the_form_is_of_quantised_matrices_alone(tmp_path: Path) -> None:
    module = opened(tmp_path)
    assert with_form(module, CODES) is module
    with pytest.raises(SettingError, match="linear_form='values' has no effect: the model has no quantised matrices"):
        with_form(module, VALUES)
    coded, _ = with_method(module, "int4:head=false")
    changed = with_form(coded, VALUES)
    assert {s.form for s in matrices(changed) if FORMATS[s.format].codes} == {VALUES}
    assert changed.storages[TABLE].form == CODES
    assert coordinates(changed) != coordinates(coded)
    scheme = SCHEMES.get(scheme_name(changed.storages.values()))()
    told = scheme.describe(changed.storages.values(), exact=False).arithmetic
    assert "turned into bf16 weights" in told


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize("text", ["int8", "int4:group=64", "int4:minimum=true"])
def test_values_are_codes_rounded_to_bf16(tmp_path: Path, backend: str, text: str) -> None:
    """Nearly equal in fp32; in the default arithmetic another rounding, and no larger than that."""
    coded, _ = with_method(opened(tmp_path), text)
    changed, tokens = with_form(coded, VALUES), prompt(30)

    def logits(module: Module, exact: bool) -> np.ndarray:
        return Driver(backend, module, exact=exact).logits({"a": tokens})["a"]

    assert np.abs(logits(coded, True) - logits(changed, True)).max() < 1e-4
    one, other = logits(coded, False), logits(changed, False)
    assert 0 < np.abs(one - other).max() < 0.1 * one.std()


def test_values_on_both_backends(tmp_path: Path) -> None:
    coded, _ = with_method(opened(tmp_path), "int4:group=64")
    module, tokens = with_form(coded, VALUES), prompt(30)
    one, other = (Driver(name, module, exact=False).logits({"a": tokens})["a"] for name in ("cpu", "reference"))
    assert np.abs(one - other).max() < 0.03 * one.std()


def test_settings_reach_the_engine(tmp_path: Path) -> None:
    folder = str(tiny_talker(tmp_path))
    settings = {"backend": "reference", "num_blocks": 10}
    with LLM(folder, quantization="int4:group=64", linear_form="values", **settings) as llm:  # type: ignore[arg-type]
        assert "rounded to int4:group=64 at load" in llm.report.weights and "bf16 weights" in llm.report.weights
        assert llm.report.weight_bytes < 110_000
    for bad, words in (
        ({"quantization": "int5"}, "quantization='int5' cannot work"),
        ({"linear_form": "sums"}, "linear_form='sums' cannot work. It must be codes or values"),
        ({"linear_form": "values"}, "has no effect"),
    ):
        with pytest.raises(SettingError, match=words):
            LLM(folder, **settings, **bad)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "text", ["int4:group=32", "int4:group=64,minimum=true", "int4:group=32,head=false", "int8", "int8:group=32"]
)
def test_a_label_is_a_setting_with_all_that_matters(text: str) -> None:
    assert method_for("quantization", text).label() == text


def test_weights_rounded_to_bf16_are_a_claim() -> None:
    """In the values form and the default arithmetic; with fp32 they are as stored."""
    scheme = SCHEMES.get("integer_codes")()
    storages = [Storage("w", 4, 32, drawn("w", (4, 32), "Q8_0"), form=form) for form in (CODES, VALUES)]
    claims = [scheme.describe([storage], exact=exact).needs.claim for storage in storages for exact in (False, True)]
    assert claims == [Claim.EXACT, Claim.EXACT, Claim.LOSSY, Claim.EXACT]
    made = replace(storages[0], made="int8")
    assert scheme.describe([made], exact=True).needs.claim is Claim.LOSSY
