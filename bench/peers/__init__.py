"""Pelton beside other engines on the same machine, in turns: `python -m bench.peers` from the project's folder."""
