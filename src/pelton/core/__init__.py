"""The words all other folders use: requests, parameters, plans, events, settings, errors.

Holds no tensors, loads no numpy.
"""
