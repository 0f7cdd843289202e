"""Speculation: methods that propose tokens, and the one way to verify them. No method exists yet."""

from pelton.core.registry import Registry

SPECULATORS: Registry[type[object]] = Registry("speculator", {})
