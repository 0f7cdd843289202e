"""Baselines: what the engine does, done without one of its techniques, so that each gain is a figure of this machine.

Nothing here serves anybody. Invariant: a baseline changes when or how often something is computed, never an answer.
"""
