"""Model families: from a checkpoint's config and tensors to a Module. Holds their registry."""

from collections.abc import Mapping

from pelton.checkpoint.mapped import quoted
from pelton.core.errors import UnsupportedModelError
from pelton.core.registry import Registry
from pelton.models.arch import Arch, Config, ModelSource
from pelton.models.unknown_family import reasons
from pelton.program.module import Module

ARCHS: Registry[type[Arch[Config]]] = Registry(
    "arch",
    {
        "bloom": "pelton.models.archs.bloom:Bloom",
        "gemma2": "pelton.models.archs.gemma2:Gemma2",
        "gemma3": "pelton.models.archs.gemma3:Gemma3",
        "glm4": "pelton.models.archs.glm4:Glm4",
        "llama": "pelton.models.archs.llama:Llama",
        "mistral": "pelton.models.archs.mistral:Mistral",
        "olmo2": "pelton.models.archs.olmo2:Olmo2",
        "phi3": "pelton.models.archs.phi3:Phi3",
        "qwen2": "pelton.models.archs.qwen2:Qwen2",
        "qwen3": "pelton.models.archs.qwen3:Qwen3",
        "smollm3": "pelton.models.archs.smollm3:SmolLM3",
    },
)


def arch_for(config: Mapping[str, object]) -> Arch[Config]:
    """The family that claims the config's `architectures` or, without them, its `model_type`."""
    given = config.get("architectures")
    asked = given if isinstance(given, list) and given else [config.get("model_type")]
    for name in ARCHS:
        arch = ARCHS.get(name)()
        if asked[0] in arch.names:
            return arch
    why = reasons(config)
    raise UnsupportedModelError(
        f"The model is of the family {quoted(asked[0])}, which is not supported{why and ': it has '}{why}.",
        f"Families that are: {', '.join(ARCHS.names())}; docs/families.md says which models they have.",
    )


def build_module(source: ModelSource, length: int | None = None) -> Module:
    """The Module of a checkpoint for requests of at most `length` tokens (None: as many as its config says).

    Refuses what the family does not implement, naming the config's field.
    """
    arch = arch_for(source.config)
    return arch.build(arch.config(source.config), source, length)


def config_notes(config: Mapping[str, object]) -> tuple[str, ...]:
    """What the user should know about the config although the model loads, as sentences."""
    return arch_for(config).config(config).notes
