"""Orders, one file each."""
