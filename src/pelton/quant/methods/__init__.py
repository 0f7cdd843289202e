"""Ways to quantise a dense model, one file each; `pelton.quant` is their registry."""
