"""The paths of the server, one file per family: a body is read and checked, the engine asked, the answer handed back.

Invariant: a route returns or raises; it sends nothing itself.
"""
