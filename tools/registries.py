"""Find the technique registries by reading the sources; nothing of pelton is imported.

A registry is a module-level `NAME: Registry[...] = Registry("kind", {"name": "module:Class", ...})` in the
`__init__.py` of a folder. The table must be literal: what cannot be read here cannot be checked.
"""

import ast
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class RegistryEntry:
    """One line of a registry: a name and where its technique lives."""

    name: str
    module: str
    first_line: int
    last_line: int


@dataclass(frozen=True)
class FoundRegistry:
    """One registry object: `module.variable` holds it, `path` is its source file."""

    kind: str
    module: str
    variable: str
    path: Path
    entries: tuple[RegistryEntry, ...]


class UnreadableRegistry(Exception):
    """A registry whose kind or table is not literal."""


def find_registries(sources: Path) -> list[FoundRegistry]:
    """All registries below `sources` (the folder that holds the package), in the order of their paths."""
    found = []
    for path in sorted(sources.rglob("__init__.py")):
        module = ".".join(path.relative_to(sources).parent.parts)
        for statement in ast.parse(path.read_text(encoding="utf-8"), str(path)).body:
            registry = _read_statement(statement, module, path)
            if registry is not None:
                found.append(registry)
    return found


def module_path(sources: Path, module: str) -> Path:
    """The file of a module, or the folder of a package."""
    path = sources.joinpath(*module.split("."))
    return path if path.is_dir() else path.with_suffix(".py")


def _read_statement(statement: ast.stmt, module: str, path: Path) -> FoundRegistry | None:
    if isinstance(statement, ast.AnnAssign):
        target: ast.expr = statement.target
    elif isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        target = statement.targets[0]
    else:
        return None
    call = statement.value
    if not isinstance(call, ast.Call) or not isinstance(target, ast.Name) or not _is_registry(call.func):
        return None
    kind, table = _arguments(call)
    place = f"{path}:{statement.lineno}"
    if not isinstance(kind, ast.Constant) or not isinstance(kind.value, str):
        raise UnreadableRegistry(f"{place}: the kind of a Registry must be a literal string")
    if not isinstance(table, ast.Dict):
        raise UnreadableRegistry(f"{place}: the table of a Registry must be a literal dict")
    entries = tuple(_read_entry(key, value, place) for key, value in zip(table.keys, table.values, strict=True))
    return FoundRegistry(kind.value, module, target.id, path, entries)


def _is_registry(function: ast.expr) -> bool:
    if isinstance(function, ast.Subscript):
        function = function.value
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", None)
    return name == "Registry"


def _arguments(call: ast.Call) -> tuple[ast.expr | None, ast.expr | None]:
    named = {keyword.arg: keyword.value for keyword in call.keywords}
    kind = call.args[0] if call.args else named.get("kind")
    table = call.args[1] if len(call.args) > 1 else named.get("entries")
    return kind, table


def _read_entry(key: ast.expr | None, value: ast.expr, place: str) -> RegistryEntry:
    match key, value:
        case ast.Constant(value=str(name), lineno=line), ast.Constant(value=str(target)) if ":" in target:
            return RegistryEntry(name, target.partition(":")[0], line, value.end_lineno or value.lineno)
    raise UnreadableRegistry(f'{place}: every entry of a Registry must read "name": "module:Class"')
