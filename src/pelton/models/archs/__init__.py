"""Model families, one file each; `pelton.models` is their registry."""
