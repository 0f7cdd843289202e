"""Weight schemes, one file each; `pelton.quant` is their registry."""
