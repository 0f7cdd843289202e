"""Attention kinds, one file each; `pelton.attention` is their registry."""
