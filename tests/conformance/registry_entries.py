"""The names a conformance test loops over: `@pytest.mark.parametrize("name", entries("speculator"))`.

`tools/mirror.py` looks for these calls, so the kind must be a literal.
"""

from importlib import import_module
from pathlib import Path

from registries import find_registries

SOURCES = Path(__file__).resolve().parents[2] / "src"


def entries(kind: str) -> list[str]:
    """All names registered under `kind`, those of other packages included. An unknown kind is an error."""
    registries = find_registries(SOURCES)
    for registry in registries:
        if registry.kind == kind:
            names: list[str] = getattr(import_module(registry.module), registry.variable).names()
            return names
    known = ", ".join(sorted(registry.kind for registry in registries))
    raise LookupError(f"no registry of kind {kind!r}; known kinds: {known}")
