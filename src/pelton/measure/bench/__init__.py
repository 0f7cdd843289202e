"""Bench: how fast a model or a server answers, in the words and result keys of vLLM's benchmarks.

It changes nothing it measures. Invariant: every figure comes from times taken outside of the engine.
"""

from pelton.core.registry import Registry
from pelton.measure.bench.workload import Workload

WORKLOADS: Registry[type[Workload]] = Registry(
    "workload",
    {
        "random": "pelton.measure.bench.workloads.random_ids:RandomIds",
        "prefix_repetition": "pelton.measure.bench.workloads.prefix_repetition:PrefixRepetition",
        "custom": "pelton.measure.bench.workloads.custom:Custom",
        "chat": "pelton.measure.bench.workloads.chat:Chat",
        "ide": "pelton.measure.bench.workloads.ide:IDE",
        "rag": "pelton.measure.bench.workloads.rag:RAG",
        "agent": "pelton.measure.bench.workloads.agent:Agent",
        "batch": "pelton.measure.bench.workloads.batch:Batch",
    },
)
