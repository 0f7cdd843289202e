"""Small files in the cache folder: what was measured once, and is read at later starts."""
