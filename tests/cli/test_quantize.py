"""`pelton quantize`: the folder that it writes, what it refuses, and that a broken run leaves nothing behind."""

import errno
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from tests.cli.running import invoke
from tests.measure.verify_parts import tiny_talker
from tests.oracle.driver import Driver
from tests.oracle.tiny import TOYS, prompt, save

from pelton.checkpoint.checkpoint import open_checkpoint
from pelton.checkpoint.compressed import write as writing
from pelton.models import build_module
from pelton.program.module import Module
from pelton.program.passes import run_passes
from pelton.quant import method_for, package
from pelton.quant.load import matrices, quantised

SCHEMES = ["int8", "int8:group=32", "int8:group=64", "int4", "int4:group=64", "int4:minimum=true", "int4:head=false"]
REFERENCE = ("--backend", "reference")


@pytest.fixture(scope="module")
def talker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tiny_talker(tmp_path_factory.mktemp("dense"), tie_word_embeddings=True)
    (folder / "README.md").write_text("About it.")
    (folder / "LICENSE").write_text("Anything goes.")
    (folder / "modeling.py").write_text("raise SystemExit")
    (folder / "notes.json").mkdir()
    return folder


def module_of(folder: Path) -> Module:
    return run_passes(build_module(open_checkpoint(folder)))


def logits(module: Module, *, exact: bool, backend: str = "reference") -> np.ndarray:
    return Driver(backend, module, exact=exact).logits({"a": prompt(40)})["a"]


def good(*words: object) -> str:
    result = invoke("quantize", *map(str, words))
    assert result.exit_code == 0, result.stderr
    return result.stdout


def bad(*words: object) -> str:
    result = invoke("quantize", *map(str, words))
    assert result.exit_code != 0
    return result.stderr


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_it_computes_what_quantising_at_load_does(talker: Path, tmp_path: Path, scheme: str, backend: str) -> None:
    """Bytes of every matrix, and with them the logits."""
    out = tmp_path / "out"
    good(talker, out, "--scheme", scheme, "--no-perplexity")
    at_load, _ = quantised(module_of(talker), method_for("quantization", scheme))
    written = module_of(out)
    for storage in matrices(at_load):
        other = written.storages[storage.name]
        assert other.format == storage.format
        assert bytes(other.source.read()) == bytes(storage.source.read()), storage.name
    for exact in (True, False):
        one, other = (logits(module, exact=exact, backend=backend) for module in (at_load, written))
        assert np.array_equal(one, other)


def test_what_is_written(talker: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    told = good(talker, out, "--scheme", "int4:group=64", "--no-perplexity")
    assert re.fullmatch(
        rf"written +{re.escape(str(out))}: [\d.]+ KiB of weights, [\d.]+ bits each; before [\d.]+ KiB\n", told
    )
    assert {path.name for path in out.iterdir()} == {
        "config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "generation_config.json",
        "README.md", "LICENSE",
    }  # fmt: skip
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    before, config = (json.loads((folder / "config.json").read_text()) for folder in (talker, out))
    entry = config.pop("quantization_config")
    assert config == before
    assert (entry["quant_method"], entry["format"], entry["ignore"]) == ("compressed-tensors", "pack-quantized", [])
    kinds = {tuple(group["targets"]): group["weights"] for group in entry["config_groups"].values()}
    assert kinds["model.embed_tokens",]["num_bits"] == 8 and kinds["model.embed_tokens",]["strategy"] == "channel"
    layers = next(targets for targets in kinds if any("q_proj" in target for target in targets))
    assert r"re:model\.layers\.\d+\.self_attn\.q_proj$" in layers
    assert (kinds[layers]["num_bits"], kinds[layers]["group_size"]) == (4, 64)
    assert any(
        any("down_proj" in target for target in targets) and kinds[targets]["group_size"] == 32 for targets in kinds
    )
    with safe_open(out / "model.safetensors", "np") as file:
        assert file.metadata() == {"format": "pt"}
        name = "model.layers.0.self_attn.q_proj"
        assert file.get_tensor(f"{name}.weight_shape").tolist() == [64, 64]
        assert file.get_tensor(f"{name}.weight_packed").shape == (64, 8)
        assert file.get_tensor(f"{name}.weight_scale").dtype == np.float16
        assert file.get_tensor("model.norm.weight").dtype == np.float32


def test_shards(talker: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing.write_weights, "__defaults__", (20_000,))
    out = tmp_path / "out"
    good(talker, out, "--no-perplexity")
    index = json.loads((out / "model.safetensors.index.json").read_text())
    files = sorted(path.name for path in out.glob("*.safetensors"))
    assert len(files) > 2 and files[0] == f"model-00001-of-{len(files):05}.safetensors"
    assert set(index["weight_map"].values()) == set(files)
    at_load, _ = quantised(module_of(talker), method_for("quantization", "int8"))
    assert np.array_equal(logits(at_load, exact=True), logits(module_of(out), exact=True))


@pytest.mark.parametrize("family", ["phi3", "gemma3", "bloom"])
def test_other_families(tmp_path: Path, family: str) -> None:
    """Fused projections, names of their own, ALiBi."""
    folder, out = save(TOYS[family].made(), tmp_path / "in"), tmp_path / "out"
    good(folder, out, "--scheme", "int8", "--no-perplexity")
    at_load, _ = quantised(module_of(folder), method_for("quantization", "int8"))
    assert np.array_equal(logits(at_load, exact=True), logits(module_of(out), exact=True))


def test_perplexity_before_and_after(talker: Path, tmp_path: Path) -> None:
    told = good(talker, tmp_path / "out", *REFERENCE)
    found = re.search(
        r"perplexity +([\d.]+) before, ([\d.]+) after \(([+-][\d.]+)%\); (\d+) tokens of a built-in", told
    )
    assert found, told
    before, after, worse, tokens = map(float, found.groups())
    assert abs(after / before - 1) < 0.02 and worse == pytest.approx((after / before - 1) * 100, abs=0.01)
    assert tokens > 3000
    alike = re.search(r"the same token at ([\d.]+)% of the places", told)
    assert alike and 90 < float(alike[1]) < 100


def test_perplexity_of_a_text_of_ones_own(talker: Path, tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("To be, or not to be. " * 5)
    told = good(talker, tmp_path / "out", "--text", text, "--scheme", "int4", *REFERENCE)
    assert f"104 tokens of {text}" in told
    assert "cannot be read" in bad(talker, tmp_path / "other", "--text", tmp_path / "none")
    assert not (tmp_path / "other").exists()


def test_notes_are_shown(talker: Path, tmp_path: Path) -> None:
    result = invoke("quantize", str(talker), str(tmp_path / "out"), "--scheme", "int4:group=128", "--no-perplexity")
    assert "2 matrices of 96 columns got groups of 32" in result.stderr


def test_a_folder_that_is_there_is_left_alone(talker: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "precious").write_text("mine")
    assert f"{out} exists" in bad(talker, out, "--no-perplexity")
    assert "is no model's folder, so it is not replaced" in bad(talker, out, "--no-perplexity", "--force")
    assert (out / "precious").read_text() == "mine"
    assert "is the model itself" in bad(talker, talker, "--no-perplexity", "--force")
    assert "is no folder" in bad(talker, tmp_path / "a" / "b", "--no-perplexity")


def test_what_perplexity_cannot_work_with_is_told_before_anything_is_written(talker: Path, tmp_path: Path) -> None:
    out, empty = tmp_path / "out", tmp_path / "empty.txt"
    empty.touch()
    for wrong in (("--threads", "-1"), ("--backend", "none"), ("--text", empty), ("--text", tmp_path / "nowhere")):
        bad(talker, out, *wrong)
        assert not out.exists(), wrong


def test_force_replaces_a_model(talker: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    good(talker, out, "--no-perplexity")
    (out / "stale").touch()
    good(talker, out, "--scheme", "int4", "--no-perplexity", "--force")
    assert not (out / "stale").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert "Q4_0" in {storage.format for storage in matrices(module_of(out))}


@pytest.mark.parametrize("force", [False, True])
def test_a_broken_run_leaves_nothing(
    talker: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, force: bool
) -> None:
    """Also with --force what was there stays whole."""
    out = tmp_path / "out"
    if force:
        good(talker, out, "--no-perplexity")
    before = {path.name: path.read_bytes() for path in out.iterdir()} if force else None

    def broken(*_: object) -> None:
        raise OSError(28, "No space left on device")

    for place in ("pelton.checkpoint.compressed.write.os.fsync", "pelton.quant.package.write_json"):
        with monkeypatch.context() as patch:
            patch.setattr(place, broken)
            result = invoke("quantize", str(talker), str(out), "--no-perplexity", *(["--force"] if force else []))
        assert result.exit_code != 0
        assert [path.name for path in tmp_path.iterdir()] == (["out"] if force else [])
    if before is not None:
        assert {path.name: path.read_bytes() for path in out.iterdir()} == before


KILLED = """
import sys
from pathlib import Path
import pelton.quant.package as package
from pelton.checkpoint.checkpoint import open_checkpoint
def stop(folder, written, advance):
    (folder / "model.safetensors").write_bytes(bytes(1000))
    print(folder.name, flush=True)
    sys.stdin.readline()
    raise OSError(5, "ended")
package.write_weights = stop
package.write_package(open_checkpoint(Path(sys.argv[1])), [], Path(sys.argv[2]), print)
"""


def test_what_killed_runs_left_goes_with_the_next_and_what_a_live_one_writes_stays(
    talker: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    others = [
        ".out-short.part",
        ".out-more-abcd1234.part",
        ".other-abcd1234.part",
        ".out-abcd1234.old",
        "out-abcd1234.part",
    ]
    for name in others:
        (tmp_path / name).mkdir()
    (tmp_path / ".out-linked12.part").symlink_to(tmp_path / others[0])
    (tmp_path / ".out-file1234.part").touch()
    command = [sys.executable, "-c", KILLED, str(talker), str(out)]
    kept = {*others, ".out-linked12.part", ".out-file1234.part"}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        part = process.stdout.readline().strip()
        good(talker, out, "--no-perplexity")
        assert {path.name for path in tmp_path.iterdir()} == {"out", part, *kept}
        process.kill()
    assert (tmp_path / part).is_dir()
    good(talker, out, "--no-perplexity", "--force")
    assert {path.name for path in tmp_path.iterdir()} == {"out", *kept}


def test_a_folder_that_is_cleared_away_before_it_is_locked_is_made_again(
    talker: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, made = tmp_path / "out", list[str]()

    def mkdtemp(**given: Any) -> str:
        made.append(tempfile.mkdtemp(**given))
        if len(made) == 1:
            package._clear_left(out)
        return made[-1]

    monkeypatch.setattr(package, "tempfile", SimpleNamespace(mkdtemp=mkdtemp))
    good(talker, out, "--no-perplexity")
    assert len(made) == 2 and [path.name for path in tmp_path.iterdir()] == ["out"]


def test_what_has_no_locks_is_written_and_never_cleared_away(
    talker: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("pelton.quant.package.fcntl.flock", none)
    (tmp_path / ".out-abcd1234.part").mkdir()
    good(talker, tmp_path / "out", "--no-perplexity")
    assert {path.name for path in tmp_path.iterdir()} == {"out", ".out-abcd1234.part"}


@pytest.mark.parametrize("place", ["weights", "settings", "copies"])
def test_a_disk_that_takes_no_more_is_told_with_the_folder(
    talker: Path, tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its errors have no name of themselves, or that of the file that is copied from."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", *(["tokenizer.json"] if place == "copies" else []))

    where = {
        "weights": "pelton.checkpoint.compressed.write.os.fsync",
        "settings": "pelton.quant.package.write_json",
        "copies": "pelton.quant.package.shutil.copyfile",
    }
    monkeypatch.setattr(where[place], full)
    error = invoke("quantize", str(talker), str(tmp_path / "out"), "--no-perplexity").exception
    assert isinstance(error, OSError) and error.filename == str(tmp_path / "out")
    assert f"No space left on device: '{tmp_path / 'out'}'" in str(error)


def test_a_file_that_is_too_large_is_told_with_the_folder(talker: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = [sys.executable, "-m", "pelton", "quantize", str(talker), str(out), "--no-perplexity"]
    limited = "import os, sys; from resource import *; setrlimit(RLIMIT_FSIZE, (5000, 5000))"
    limited += "; os.execv(sys.argv[1], sys.argv[1:])"
    done = subprocess.run([sys.executable, "-c", limited, *command], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == f"error: File too large: '{out}'.\n"
    assert not list(tmp_path.iterdir())


def test_models_that_cannot_be_are_refused(talker: Path, tmp_path: Path, smollm2: Path) -> None:
    out = tmp_path / "out"
    assert "is a GGUF file" in bad(smollm2, out)
    good(talker, out, "--no-perplexity")
    told = bad(out, tmp_path / "again", "--scheme", "int4")
    assert "--scheme int4:group=32 cannot work: the model's weights are quantised already (INT8)" in told
    assert "--scheme='int5' cannot work. There are int4, int8" in bad(talker, tmp_path / "x", "--scheme", "int5")
    assert not (tmp_path / "again").exists() and not (tmp_path / "x").exists()


def test_weights_that_are_no_numbers(tmp_path: Path) -> None:
    model = TOYS["llama"].made()
    model.model.layers[1].mlp.up_proj.weight.data[3, 5] = float("nan")
    folder = save(model, tmp_path / "in")
    told = bad(folder, tmp_path / "out", "--no-perplexity")
    assert "Tensor 'model.layers.1.mlp.up_proj.weight' has weights that are NaN or infinite" in told
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def entry_of(folder: Path) -> dict[str, Any]:
    """quantization_config, as others read it."""
    found: dict[str, Any] = json.loads((folder / "config.json").read_text())["quantization_config"]
    return found


def test_settings_are_what_others_understand(talker: Path, tmp_path: Path) -> None:
    """Whole rows have no group size, and dense matrices are named as left out."""
    good(talker, tmp_path / "rows", "--no-perplexity")
    (group,) = entry_of(tmp_path / "rows")["config_groups"].values()
    assert group["weights"]["group_size"] is None and group["weights"]["strategy"] == "channel"
    good(talker, tmp_path / "dense", "--scheme", "int8:head=false", "--no-perplexity")
    assert entry_of(tmp_path / "dense")["ignore"] == ["model.embed_tokens"]
    assert (tmp_path / "rows").stat().st_mode & 0o777 == 0o755


def test_patterns_name_no_module_of_another_kind() -> None:
    """Layer 0 has other groups than the rest."""

    def unit(layer: int, form: str) -> writing.CodedUnit:
        return writing.CodedUnit(f"model.layers.{layer}.q.weight", (8, 128), form, lambda: iter(()))

    entry = writing.settings_entry([unit(0, "Q4_0"), unit(1, "INT4_64"), unit(2, "INT4_64")], ["model.layers.3.q"])
    targets = [group["targets"] for group in entry["config_groups"].values()]  # type: ignore[attr-defined]
    assert targets == [["model.layers.0.q"], ["model.layers.1.q", "model.layers.2.q"]]
    assert entry["ignore"] == ["model.layers.3.q"]


def test_the_sizes_told_are_those_of_what_is_written(talker: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    told = good(talker, out, "--no-perplexity")
    tensors = open_checkpoint(out).tensors
    with safe_open(out / "model.safetensors", "np") as file:
        size = sum(file.get_tensor(name).nbytes for name in file.keys())
    elements = sum(int(np.prod(source.shape)) for source in tensors.values())
    assert f"{8 * size / elements:.2f} bits each" in told


def test_shards_are_filled_and_their_sum_is_told(talker: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limit = 20_000
    monkeypatch.setattr(writing.write_weights, "__defaults__", (limit,))
    out = tmp_path / "out"
    good(talker, out, "--no-perplexity")
    index = json.loads((out / "model.safetensors.index.json").read_text())
    sizes: dict[str, int] = {}
    for path in out.glob("*.safetensors"):
        with safe_open(path, "np") as file:
            sizes[path.name] = sum(file.get_tensor(name).nbytes for name in file.keys())
    assert index["metadata"]["total_size"] == sum(sizes.values())
    ordered = [sizes[name] for name in sorted(sizes)]
    assert all(one + other > limit for one, other in zip(ordered, ordered[1:], strict=False)), "no shard is half empty"


def test_what_is_copied_and_what_is_not(talker: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An index of the model's shards would name files that are not there."""
    source = tmp_path / "in"
    shutil.copytree(talker, source)
    (source / "pytorch_model.bin.index.json").write_text("{}")
    (source / "large.json").write_text("[" + " " * 5000 + "]")
    monkeypatch.setattr(package, "MOST_COPIED", 4000)
    good(source, tmp_path / "out", "--no-perplexity")
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert {"README.md", "LICENSE"} <= names and not names & {"pytorch_model.bin.index.json", "large.json"}


def test_what_was_there_comes_back_where_the_last_step_fails(
    talker: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    good(talker, out, "--no-perplexity")
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    replaced, calls = os.replace, []

    def second_fails(source: Path, target: Path) -> None:
        calls.append(target)
        if len(calls) == 2:
            raise OSError(5, "Input/output error")
        replaced(source, target)

    monkeypatch.setattr(package.os, "replace", second_fails)
    assert invoke("quantize", str(talker), str(out), "--no-perplexity", "--force").exit_code != 0
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_scheme_that_changes_nothing_is_refused(tmp_path: Path) -> None:
    made = TOYS["llama"].made(hidden_size=60, num_attention_heads=3, num_key_value_heads=1, intermediate_size=70)
    folder = save(made, tmp_path / "in")
    told = bad(folder, tmp_path / "out", "--scheme", "int4:head=false", "--no-perplexity")
    assert "has no effect" in told and not (tmp_path / "out").exists()
