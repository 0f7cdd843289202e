"""A technique's name may occur in its own file and in registry lines, and nowhere else in src/.

What a technique costs is the number of places that know its name. Names are compared as words: `use_eagle`, `EagleTree`
and "eagle" all say eagle; a registered name inside a longer registered one does not count. Comments and docstrings may
speak of anything. `leaks.allow` lists the places that may know a name, each with its reason.
"""

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from registries import UnreadableRegistry, find_registries, module_path

ROOT = Path(__file__).resolve().parents[1]
CPP_SUFFIXES = (".cpp", ".hpp", ".h", ".inl", ".cc", ".cu", ".cuh")
WORD = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+\d*|[A-Z]+\d*|\d+[a-z]*")
CPP_TOKENS = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'|\w+', re.DOTALL)

Words = tuple[str, ...]


@dataclass(frozen=True)
class Allowed:
    """One line of leaks.allow: files that match `glob` may say `name`, or with `@kind` all names of that registry."""

    name: str
    glob: str
    reason: str

    def covers(self, leak: "Leak") -> bool:
        return self.name in (leak.name, f"@{leak.kind}") and fnmatch(leak.file, self.glob)


@dataclass(frozen=True)
class Leak:
    """One place that says a technique's name."""

    kind: str
    name: str
    file: str
    line: int
    text: str


def split_words(text: str) -> Words:
    """`GatedDeltaNet`, `gated_delta_net` and "gated-delta-net" are the same words."""
    return tuple(word.lower() for word in WORD.findall(text))


def read_allowed(path: Path) -> list[Allowed]:
    """Lines of `name glob reason...`; `#` starts a comment line."""
    allowed = []
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        parts = line.split(None, 2)
        if len(parts) < 3:
            raise SystemExit(f"leaks: {path.name}:{number}: expected NAME GLOB REASON")
        allowed.append(Allowed(*parts))
    return allowed


def find_leaks(root: Path) -> list[Leak]:
    """Every place in src/ that says a registered name and is neither its own file nor a registry line."""
    sources = root / "src"
    kinds: dict[str, list[str]] = {}
    homes: dict[str, list[Path]] = {}
    registry_lines: set[tuple[Path, int]] = set()
    for registry in find_registries(sources):
        for entry in registry.entries:
            kinds.setdefault(entry.name, []).append(registry.kind)
            homes.setdefault(entry.name, []).append(module_path(sources, entry.module))
            registry_lines.update((registry.path, line) for line in range(entry.first_line, entry.last_line + 1))

    names = {split_words(name): name for name in kinds}
    leaks = []
    for path in sorted(sources.rglob("*")):
        if path.suffix not in (".py", *CPP_SUFFIXES):
            continue
        for line, text in _code(path):
            if (path, line) in registry_lines:
                continue
            for name in _said(split_words(text), names):
                if not any(path == home or home in path.parents for home in homes[name]):
                    file = str(path.relative_to(root))
                    leaks += [Leak(kind, name, file, line, text.strip()) for kind in kinds[name]]
    return leaks


def _said(words: Words, names: dict[Words, str]) -> set[str]:
    """The registered names in a text; at each word the longest one that starts there, and none inside it."""
    said = set()
    longest = max(map(len, names), default=0)
    start = 0
    while start < len(words):
        for length in range(longest, 0, -1):
            name = names.get(words[start : start + length]) if start + length <= len(words) else None
            if name is not None:
                said.add(name)
                start += length - 1
                break
        start += 1
    return said


def _code(path: Path) -> Iterator[tuple[int, str]]:
    """(line, text) of identifiers and strings; no comments, no docstrings."""
    text = path.read_text(encoding="utf-8")
    return _python_code(text) if path.suffix == ".py" else _cpp_code(text)


def _python_code(text: str) -> Iterator[tuple[int, str]]:
    docstrings = {
        (node.lineno, node.col_offset)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    }
    # FSTRING_MIDDLE is the text of an f-string from Python 3.12 on; before, it is a STRING.
    kinds = (tokenize.NAME, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", -1))
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in kinds and token.start not in docstrings:
            yield token.start[0], token.string


def _cpp_code(text: str) -> Iterator[tuple[int, str]]:
    for match in CPP_TOKENS.finditer(text):
        if not match[0].startswith(("//", "/*")):
            yield text.count("\n", 0, match.start()) + 1, match[0]


def main(root: Path = ROOT) -> int:
    try:
        leaks = find_leaks(root)
    except UnreadableRegistry as error:
        print(f"leaks: {error}")
        return 1
    allowed = read_allowed(root / "tools" / "leaks.allow")
    open_leaks = [leak for leak in leaks if not any(entry.covers(leak) for entry in allowed)]
    for leak in open_leaks:
        print(f"leaks: {leak.file}:{leak.line}: knows {leak.name!r}: {leak.text[:80]}")
    for entry in allowed:
        if not any(entry.covers(leak) for leak in leaks):
            print(f"leaks: note: leaks.allow: {entry.name} {entry.glob} allows nothing any more")
    if open_leaks:
        names = sorted({leak.name for leak in open_leaks})
        print(f"leaks: {len(open_leaks)} places know {', '.join(names)}; ask for what is needed, or add to leaks.allow")
        return 1
    print("leaks: no technique is named outside its own file and its registry line")
    return 0


if __name__ == "__main__":
    sys.exit(main())
