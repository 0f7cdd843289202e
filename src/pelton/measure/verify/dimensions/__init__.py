"""One file for each thing that must not change an answer."""
