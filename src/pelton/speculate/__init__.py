"""Speculation: methods that propose tokens, and the one way to verify them. No method exists yet."""

from pelton.core.registry import Registry
from pelton.speculate.method import Speculator

SPECULATORS: Registry[type[Speculator]] = Registry("speculator", {})
