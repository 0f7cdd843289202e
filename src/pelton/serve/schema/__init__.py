"""What clients may send and what they get: records of the JSON bodies, and the reading of them.

Invariant: a field that is known and cannot be done is refused by name; one that is unknown is told back by name.
"""
