"""Every technique registry must be looped over by the conformance suite.

For each registry with at least one entry there must be a file in tests/conformance that calls `entries("<kind>")` with
that kind as a literal. That the entries pass is what the suite itself says.
"""

import ast
import sys
from pathlib import Path

from registries import UnreadableRegistry, find_registries

ROOT = Path(__file__).resolve().parents[1]


def collected_kinds(suite: Path) -> dict[str, list[Path]]:
    """Kind -> the test files that call `entries(kind)`."""
    kinds: dict[str, list[Path]] = {}
    for path in sorted(suite.rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
            if isinstance(node, ast.Call) and _called_name(node) == "entries" and node.args:
                argument = node.args[0]
                if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                    kinds.setdefault(argument.value, []).append(path)
    return kinds


def problems(root: Path) -> list[str]:
    """One sentence per registry that no conformance test loops over, and per kind that does not exist."""
    registries = find_registries(root / "src")
    collected = collected_kinds(root / "tests" / "conformance")
    found = []
    for registry in registries:
        if registry.entries and registry.kind not in collected:
            names = ", ".join(entry.name for entry in registry.entries)
            found.append(
                f'{registry.module}.{registry.variable} (kind "{registry.kind}"; {names}): '
                f'no tests/conformance/test_*.py calls entries("{registry.kind}")'
            )
    known = {registry.kind for registry in registries}
    for kind, paths in collected.items():
        if kind not in known:
            found.append(f'{paths[0].relative_to(root)}: entries("{kind}"), but there is no registry of that kind')
    kinds = [registry.kind for registry in registries]
    for kind in sorted(known):
        if kinds.count(kind) > 1:
            found.append(f'"{kind}" is the kind of {kinds.count(kind)} registries; a kind must be unique')
    return found


def _called_name(call: ast.Call) -> str | None:
    function = call.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", None)


def main(root: Path = ROOT) -> int:
    try:
        found = problems(root)
    except UnreadableRegistry as error:
        found = [str(error)]
    for line in found:
        print(f"mirror: {line}")
    if not found:
        registries = [registry for registry in find_registries(root / "src") if registry.entries]
        count = sum(len(registry.entries) for registry in registries)
        print(f"mirror: {count} entries of {len(registries)} registries are looped over by the conformance suite")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
