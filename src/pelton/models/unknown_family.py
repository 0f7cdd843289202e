"""Why a model of an unknown family is not supported, as far as its config tells. It decides nothing: only names do.

Invariant: a reason names the config's field that it was seen in.
"""

from collections.abc import Iterator, Mapping

# Fields that tell it, below an architecture's name where GGUF has them, by what they tell of.
_TOLD: Mapping[str, tuple[str, ...]] = {
    "experts": (
        "num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts", "num_moe_experts", "expert_count",
    ),
    "a part for pictures": ("vision_config", "visual", "mm_vision_tower"),
    "a part for sound": ("audio_config",),
    "recurrent layers": (
        "state_size", "ssm_cfg", "ssm_state_size", "mamba_d_state", "linear_conv_kernel_dim", "lru_width",
        "rwkv_version", "ssm.state_size", "wkv.head_size",
    ),
    "an encoder": ("is_encoder_decoder",),
}  # fmt: skip
_LISTS = ("layer_types", "layers_block_type", "block_types")
_RECURRENT = ("linear_attention", "mamba", "recurrent", "rwkv")  # kinds of layers in such lists
_KNOWN = [(what, field) for what, fields in _TOLD.items() for field in fields]
_PARTS = ("text_config", "llm_config", "thinker_config", "language_config")
MOST = 1 << 32  # larger numbers are not shown


def reasons(config: Mapping[str, object]) -> str:
    """What the model has that is not supported, with the fields that tell it; "" where nothing does."""
    found: dict[str, str] = {}
    for what, told in _seen(config, ""):
        found.setdefault(what, f"{what} ({told})")
    return " and ".join(found.values())


def _seen(config: Mapping[str, object], within: str) -> Iterator[tuple[str, str]]:
    for name, value in config.items():
        for what, field in _KNOWN:  # the field's name and not the file's, which may be anything
            if value and field in (name, name.partition(".")[2]):
                yield what, within + (f"{field}={value}" if isinstance(value, int) and value <= MOST else field)
        kinds = value if isinstance(value, list) and name in _LISTS else []
        for kind in _RECURRENT:
            if kind in kinds:
                yield "recurrent layers", f"{within}{name}: {kind}"
        if isinstance(value, Mapping) and name in _PARTS:
            yield from _seen(value, f"{within}{name}.")
