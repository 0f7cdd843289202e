"""Checkpoints of the compressed-tensors format: what their settings mean, their tensors as weights, writing them."""
