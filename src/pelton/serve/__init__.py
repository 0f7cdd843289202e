"""Station 8, the server: HTTP routes over an AsyncEngine. It computes nothing and holds no weights.

Invariant: what a client asks is checked in full before it reaches the engine.
"""
