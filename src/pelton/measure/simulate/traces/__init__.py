"""Readers of traces, one file each."""
