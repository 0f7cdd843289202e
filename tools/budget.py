"""Size budgets: files, functions, classes, parameters, protocols and folders, with the ten largest of each.

Python is measured on its syntax tree, C++ by lines only. Records are exempt where their fields are the interface:
dataclass fields are not parameters, and `[tool.pelton.budget]` in pyproject.toml names the rest.
"""

import ast
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CPP_SUFFIXES = (".cpp", ".hpp", ".h", ".inl", ".cc", ".cu", ".cuh")
FOLDERS = ("src", "tools", "tests", "bench", "examples")

LIMITS = {
    "file lines": 400,
    "native or test file lines": 600,
    "function lines": 60,
    "parameters": 8,
    "class methods": 15,
    "class attributes": 15,
    "protocol methods": 8,
    "files in a folder": 12,
}

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Measure:
    """One measured thing, such as the length of one function."""

    kind: str
    size: int
    place: str

    @property
    def exceeds(self) -> bool:
        return self.size > LIMITS[self.kind]


@dataclass(frozen=True)
class Exemptions:
    """What pyproject.toml exempts by name."""

    parameters: frozenset[str] = field(default_factory=frozenset)
    technique_folders: frozenset[str] = field(default_factory=frozenset)


def read_exemptions(root: Path) -> Exemptions:
    """`[tool.pelton.budget]`; an unknown key is an error."""
    path = root / "pyproject.toml"
    table = tomllib.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    budget = table.get("tool", {}).get("pelton", {}).get("budget", {})
    unknown = set(budget) - {"exempt-parameters", "technique-folders"}
    if unknown:
        raise SystemExit(f"budget: unknown keys in [tool.pelton.budget]: {', '.join(sorted(unknown))}")
    return Exemptions(frozenset(budget.get("exempt-parameters", [])), frozenset(budget.get("technique-folders", [])))


def measure(root: Path) -> list[Measure]:
    """Everything the budgets speak about, below the source folders of `root`."""
    exemptions = read_exemptions(root)
    found: list[Measure] = []
    for path in _source_files(root):
        name = path.relative_to(root)
        text = path.read_text(encoding="utf-8")
        roomy = "native" in name.parts or "tests" in name.parts or path.suffix in CPP_SUFFIXES
        kind = "native or test file lines" if roomy else "file lines"
        found.append(Measure(kind, len(text.splitlines()), str(name)))
        if path.suffix == ".py":
            found += _measure_tree(ast.parse(text, str(path)), str(name), exemptions)
    found += _measure_folders(root, exemptions)
    return found


def _source_files(root: Path) -> Iterator[Path]:
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in (".py", *CPP_SUFFIXES) and path.is_file() and "__pycache__" not in path.parts:
                yield path


def _measure_folders(root: Path, exemptions: Exemptions) -> Iterator[Measure]:
    """Source folders only: tests follow what they test, and technique folders grow by design."""
    counts: dict[Path, int] = {}
    for path in _source_files(root):
        if path.name != "__init__.py" and path.relative_to(root).parts[0] == "src":
            counts[path.parent] = counts.get(path.parent, 0) + 1
    for folder, count in counts.items():
        if folder.name not in exemptions.technique_folders:
            yield Measure("files in a folder", count, str(folder.relative_to(root)))


def _measure_tree(tree: ast.Module, file: str, exemptions: Exemptions) -> Iterator[Measure]:
    for owner, node in _definitions(tree, ()):
        qualified = ".".join((*(outer.name for outer in owner), node.name))
        place = f"{file}:{node.lineno} {qualified}"
        if isinstance(node, ast.ClassDef):
            methods = sum(isinstance(child, Function) and not _is_overload(child) for child in node.body)
            yield Measure("protocol methods" if _is_protocol(node) else "class methods", methods, place)
            yield Measure("class attributes", len(_attributes(node)), place)
            continue
        yield Measure("function lines", (node.end_lineno or node.lineno) - node.lineno + 1, place)
        names = {node.name, qualified, *(outer.name for outer in owner if node.name in ("__init__", "__new__"))}
        if not names & exemptions.parameters and not _is_overload(node):
            in_class = bool(owner) and isinstance(owner[-1], ast.ClassDef)
            yield Measure("parameters", _count_parameters(node, in_class), place)


def _definitions(
    node: ast.AST, owner: tuple[ast.ClassDef | Function, ...]
) -> Iterator[tuple[tuple[ast.ClassDef | Function, ...], ast.ClassDef | Function]]:
    """All classes and functions, each with what encloses it."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef | Function):
            yield owner, child
            yield from _definitions(child, (*owner, child))
        else:
            yield from _definitions(child, owner)


def _count_parameters(node: Function, in_class: bool) -> int:
    positional = [*node.args.posonlyargs, *node.args.args]
    has_self = in_class and bool(positional) and "staticmethod" not in _names(node.decorator_list)
    return len(positional) - has_self + len(node.args.kwonlyargs)


def _is_protocol(node: ast.ClassDef) -> bool:
    return "Protocol" in _names(node.bases)


def _is_overload(node: Function) -> bool:
    return "overload" in _names(node.decorator_list)


def _names(expressions: list[ast.expr]) -> set[str]:
    """The last names of expressions like `Protocol`, `typing.Protocol` and `Protocol[T]`."""
    names = set()
    for expression in expressions:
        while isinstance(expression, ast.Subscript | ast.Call):
            expression = expression.value if isinstance(expression, ast.Subscript) else expression.func
        names.add(expression.attr if isinstance(expression, ast.Attribute) else getattr(expression, "id", ""))
    return names


def _attributes(node: ast.ClassDef) -> set[str]:
    """What the methods set on `self`; the fields of records do not count."""
    return {
        target.attr
        for method in node.body
        if isinstance(method, Function)
        for target in ast.walk(method)
        if isinstance(target, ast.Attribute)
        and isinstance(target.ctx, ast.Store)
        and isinstance(target.value, ast.Name)
        and target.value.id == "self"
    }


def report(measures: list[Measure], top: int = 10) -> list[str]:
    """The `top` largest of each kind, one line per kind."""
    lines = []
    for kind, limit in LIMITS.items():
        largest = sorted((m for m in measures if m.kind == kind), key=lambda m: (-m.size, m.place))[:top]
        lines.append(f"{kind} (at most {limit})")
        lines += [f"  {m.size:5d}  {m.place}" for m in largest]
    return lines


def main(root: Path = ROOT) -> int:
    measures = measure(root)
    print("\n".join(report(measures)))
    exceeded = sorted((m for m in measures if m.exceeds), key=lambda m: (m.kind, m.place))
    for m in exceeded:
        print(f"budget: {m.place}: {m.size} {m.kind}, at most {LIMITS[m.kind]}")
    return 1 if exceeded else 0


if __name__ == "__main__":
    sys.exit(main())
