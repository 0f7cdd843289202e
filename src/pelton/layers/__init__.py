"""Blocks that model families share: functions that add ops to a Program. Holds the registry of rotary scalings."""

from pelton.core.registry import Registry
from pelton.layers.rope import RopeKind

ROPES: Registry[type[RopeKind]] = Registry(
    "rope",
    {
        "default": "pelton.layers.ropes.default:Default",
        "linear": "pelton.layers.ropes.linear:Linear",
        "ntk": "pelton.layers.ropes.ntk:Ntk",
        "dynamic": "pelton.layers.ropes.dynamic:Dynamic",
        "yarn": "pelton.layers.ropes.yarn:Yarn",
        "llama3": "pelton.layers.ropes.llama3:Llama3",
        "longrope": "pelton.layers.ropes.longrope:LongRope",
    },
)
