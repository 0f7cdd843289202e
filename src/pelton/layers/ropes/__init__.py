"""Rotary scalings, one file each; `pelton.layers` is their registry."""
