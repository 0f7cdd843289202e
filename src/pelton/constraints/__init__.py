"""Constrained decoding: grammar formats that say which tokens may come next. No format exists yet."""

from pelton.constraints.matcher import Grammar
from pelton.core.registry import Registry

GRAMMARS: Registry[type[Grammar]] = Registry("grammar", {})
