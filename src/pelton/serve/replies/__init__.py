"""Answers of the engine as the JSON of each route. Nothing here waits or sends.

Invariant: the chunks of a stream put together say what the whole answer would have said.
"""
