"""Benches that drive an engine themselves, step by step, where neither a server nor `LLM` lets them."""
