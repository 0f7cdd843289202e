"""Constrained decoding: grammar formats that say which tokens may come next. No format exists yet."""

from pelton.core.registry import Registry

GRAMMARS: Registry[type[object]] = Registry("grammar", {})
