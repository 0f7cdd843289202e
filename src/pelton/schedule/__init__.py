"""Scheduling: who computes how many tokens in the next step. Counts tokens and blocks; sees no token and no array."""

from pelton.core.registry import Registry
from pelton.schedule.order import Order

ORDERS: Registry[type[Order]] = Registry(
    "order",
    {
        "fair": "pelton.schedule.orders.fair:FairShares",
        "fcfs": "pelton.schedule.orders.fcfs:FirstComeFirstServed",
        "lpm": "pelton.schedule.orders.lpm:LongestPrefixMatch",
        "priority": "pelton.schedule.orders.priority:Priority",
        "sjf": "pelton.schedule.orders.sjf:ShortestJobFirst",
    },
)
