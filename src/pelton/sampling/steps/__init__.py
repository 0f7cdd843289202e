"""Logits steps, one file each."""
