"""The README: what it tells to type works, also against a server; both languages say the same; links lead somewhere."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.serve.process import ServerProcess

ROOT = Path(__file__).resolve().parents[2]
ENGLISH, CHINESE = ROOT / "README.md", ROOT / "README.zh-CN.md"
GUIDES = sorted((ROOT / "docs").glob("*.md"))
PAGES = [ENGLISH, CHINESE, ROOT / "bench" / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SERVER = "http://localhost:8000"  # where the pages suppose that it runs
# Installing is the business of scripts/; placeholders stand for the reader's own files.
NOT_RUN = re.compile(r"activate|scripts/|path/to")
RUN_PELTON = "import sys; sys.argv[0] = 'pelton'; from pelton.cli.main import main; main()"


@dataclass(frozen=True)
class Block:
    """A fenced block of code."""

    language: str
    text: str


def blocks(page: Path) -> list[Block]:
    found = re.findall(r"^```(\w+)\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return [Block(language, text) for language, text in found]


def commands(page: Path) -> list[str]:
    lines = [line for block in blocks(page) if block.language == "console" for line in block.text.splitlines()]
    return [line for line in lines if not NOT_RUN.search(line)]


def command_to_serve(page: Path) -> list[str]:
    """The words behind `pelton serve` in the page's block that starts the server."""
    lines = [line for block in blocks(page) if block.language == "sh" for line in block.text.splitlines()]
    (line,) = [line for line in lines if line.startswith("pelton serve ")]
    return shlex.split(line)[2:]


@pytest.fixture(scope="module")
def server(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of a server that was started as the README says, but for its port."""
    with ServerProcess(tmp_path_factory.mktemp("server"), *command_to_serve(ENGLISH)) as process:
        yield process.url


def environment(tmp_path: Path) -> dict[str, str]:
    """With `pelton` on the path, as after installing."""
    (tmp_path / "pelton").write_text(f'#!/bin/sh\nexec {sys.executable} -c "{RUN_PELTON}" "$@"\n')
    (tmp_path / "pelton").chmod(0o755)
    paths = [str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": os.pathsep.join(paths)}


def placed(text: str, request: pytest.FixtureRequest) -> str:
    """The text with the address of a server that runs, if it speaks of one."""
    return text.replace(SERVER, request.getfixturevalue("server")) if SERVER in text else text


@pytest.mark.parametrize("command", dict.fromkeys([*commands(ENGLISH), *commands(ROOT / "docs" / "bench.md")]))
def test_commands_work(command: str, tmp_path: Path, smollm2: Path, request: pytest.FixtureRequest) -> None:
    """Without a terminal, `pelton chat` sees the end of its input at once."""
    command = placed(command, request)
    if command.startswith("curl ") and shutil.which("curl") is None:
        pytest.skip("there is no curl")
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env=environment(tmp_path),
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() or command == "pelton chat"
    assert not re.search(r'^(data: )?{"error"', done.stdout, re.MULTILINE)  # curl is content with any answer


@pytest.mark.parametrize("place", range(sum(block.language == "python" for block in blocks(ENGLISH))))
def test_python_works(place: int, tmp_path: Path, smollm2: Path, request: pytest.FixtureRequest) -> None:
    code = placed([block.text for block in blocks(ENGLISH) if block.language == "python"][place], request)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, env=environment(tmp_path)
    )
    assert done.returncode == 0, done.stderr
    if "num_cached_tokens" in code:
        first, second = re.findall(r"^(\d+) of (\d+) prompt tokens", done.stdout, re.MULTILINE)
        assert first[0] == "0"
        assert f"{second[0]} of its {second[1]} tokens" in ENGLISH.read_text(encoding="utf-8")
    else:
        assert "Paris" in done.stdout


def test_there_is_something_to_run() -> None:
    shown = " ".join(commands(ENGLISH))
    for name in ("chat", "complete", "verify", "bench", "pull", "program", "collect-env"):
        assert f"pelton {name}" in shown
    assert SERVER in shown and command_to_serve(ENGLISH)
    assert any(SERVER in block.text for block in blocks(ENGLISH) if block.language == "python")
    assert any(block.language == "python" for block in blocks(ENGLISH))


def test_every_command_is_told_of() -> None:
    from pelton.cli.main import COMMANDS

    rows = re.findall(r"^\| `pelton ([a-z-]+)` \|", ENGLISH.read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(rows) == sorted(COMMANDS)


def outline(page: Path) -> dict[str, list[object]]:
    """What must be equal in all languages."""
    text = page.read_text(encoding="utf-8")
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    rows = [line.strip("| ").split("|") for line in prose.splitlines() if line.startswith("|")]
    return {
        "headings": [len(marks) for marks in re.findall(r"^(#+) ", prose, re.MULTILINE)],
        "blocks": list(blocks(page)),
        "tables": [len(row) for row in rows],
        "code in tables": [tuple(re.findall(r"`[^`]+`", cell)) for row in rows for cell in row],
        "items": re.findall(r"^(- |\d+\. )", prose, re.MULTILINE),
        "links": sorted(set(re.findall(r"\]\(([^)]+)\)", prose)) - {ENGLISH.name, CHINESE.name}),
        "numbers in tables": [re.findall(r"\d+(?:\.\d+)?", cell) for row in rows for cell in row],
    }


def test_both_languages_are_one_page() -> None:
    english, chinese = outline(ENGLISH), outline(CHINESE)
    for part, wanted in english.items():
        assert wanted == chinese[part], part
    assert all(english.values())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)", page.read_text(encoding="utf-8")):
        assert "://" in target or (page.parent / target).exists(), target


@pytest.mark.parametrize("page", [*GUIDES, ENGLISH], ids=lambda page: page.name)
def test_named_sources_exist(page: Path) -> None:
    """Paths in code marks: folders end with a slash, files with their suffix; x stands for a name of one's own."""
    text = page.read_text(encoding="utf-8")
    text = "\n".join(line for line in text.splitlines() if "not built yet" not in line)
    named = re.findall(r"`((?:[\w-]+/)+(?:[\w-]+\.(?:py|allow|md))?)`", text)
    assert named or page.stem not in ("README", "architecture", "journey", "add-a-technique")
    for name in named:
        if "/x." not in name and "/x/" not in name:
            assert (ROOT / "src" / "pelton" / name).exists() or (ROOT / name).exists(), name


def test_every_registry_is_in_the_guide() -> None:
    from registries import find_registries

    guide = (ROOT / "docs" / "add-a-technique.md").read_text(encoding="utf-8")
    for registry in find_registries(ROOT / "src"):
        assert f"`{registry.kind}`" in guide, registry.kind
