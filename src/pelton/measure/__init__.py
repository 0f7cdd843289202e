"""Knowing: what the engine does, checked and measured from outside. Nothing below depends on it."""
