"""The Program: a model as data (ops, values, weights, states), its passes and its costs. Imports nothing heavy."""

from pelton.core.registry import Registry
from pelton.program.op import OpRule

OPS: Registry[type[OpRule]] = Registry(
    "op",
    {
        "embed": "pelton.program.ops.embed:Embed",
        "rms_norm": "pelton.program.ops.norm:RMSNorm",
        "layer_norm": "pelton.program.ops.norm:LayerNorm",
        "linear": "pelton.program.ops.linear:Linear",
        "gated": "pelton.program.ops.elementwise:Gated",
        "activate": "pelton.program.ops.elementwise:Activate",
        "add": "pelton.program.ops.elementwise:Add",
        "rope_table": "pelton.program.ops.rope:RopeTable",
        "rope": "pelton.program.ops.rope:Rope",
        "kv_write": "pelton.program.ops.kv:KVWrite",
        "rope_kv": "pelton.program.ops.kv:RopeKV",
        "attend": "pelton.program.ops.attend:Attend",
        "head": "pelton.program.ops.head:Head",
    },
)
