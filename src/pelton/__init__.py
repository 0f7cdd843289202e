"""Pelton, an inference and serving engine for language models.

This module only names the public API; it imports nothing, so `import pelton` costs no time.
Each public name is resolved at its first use and stays what its own module defines.
"""

from importlib import import_module

__version__ = "0.1.0"

__all__ = [
    "LLM",
    "BeamSearchParams",
    "CompletionOutput",
    "RequestOutput",
    "SamplingParams",
    "__version__",
    "beam_search",
]

_EXPORTS = {
    "LLM": "pelton.engine.llm:LLM",
    "BeamSearchParams": "pelton.search.beam:BeamSearchParams",
    "beam_search": "pelton.search.beam:beam_search",
    "SamplingParams": "pelton.core.params:SamplingParams",
    "RequestOutput": "pelton.core.request:RequestOutput",
    "CompletionOutput": "pelton.core.request:CompletionOutput",
}


def __getattr__(name: str) -> object:
    target = _EXPORTS.get(name)
    if target is None:
        raise AttributeError(f"module 'pelton' has no attribute {name!r}; public names: {', '.join(__all__)}")
    module, attribute = target.split(":")
    value: object = getattr(import_module(module), attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_EXPORTS})
