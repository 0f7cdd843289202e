"""Scheduling: who computes how many tokens in the next step. Counts tokens and blocks; sees no token and no array."""

from pelton.core.registry import Registry
from pelton.schedule.order import Order

ORDERS: Registry[type[Order]] = Registry(
    "order",
    {
        "cached": "pelton.schedule.orders.cached:CachedFirst",
        "fair": "pelton.schedule.orders.fair:FairShares",
        "fcfs": "pelton.schedule.orders.fcfs:FirstComeFirstServed",
        "priority": "pelton.schedule.orders.priority:Priority",
        "shortest": "pelton.schedule.orders.shortest:ShortestFirst",
    },
)
