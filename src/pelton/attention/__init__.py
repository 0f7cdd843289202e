"""Attention kinds: what of the past a layer keeps and how its tokens look at it. Holds their registry."""

from pelton.attention.kind import AttentionKind
from pelton.core.registry import Registry

ATTENTION: Registry[type[AttentionKind]] = Registry(
    "attention_kind",
    {
        "full": "pelton.attention.kinds.full:FullAttention",
    },
)
