"""Reads a model's config: types checked, old and new spellings, and no value that changes the model goes unnoticed.

A key is read by the family, or known to be harmless, or refused unless its value is neutral, or told in a note. Unknown
keys are refused if their name speaks of what models compute (RISKY), so that notes are left for what changes nothing.
"""

from collections.abc import Mapping

from pelton.core.errors import UnsupportedModelError
from pelton.layers import ROPES
from pelton.layers.rope import RopeParameters

# Keys that say nothing about the forward pass of a decoder.
HARMLESS = frozenset(
    "architectures model_type _name_or_path name_or_path transformers_version torch_dtype dtype use_cache "
    "initializer_range bos_token_id eos_token_id pad_token_id sep_token_id unk_token_id decoder_start_token_id "
    "attention_dropout hidden_dropout resid_pdrop embd_pdrop attn_implementation _attn_implementation auto_map "
    "output_attentions output_hidden_states return_dict torchscript use_bfloat16 chunk_size_feed_forward "
    "tokenizer_class prefix task_specific_params problem_type id2label label2id finetuning_task tf_legacy_loss "
    "transformers.js_config max_length min_length do_sample early_stopping num_beams "
    "num_beam_groups diversity_penalty temperature top_k top_p typical_p repetition_penalty length_penalty "
    "no_repeat_ngram_size encoder_no_repeat_ngram_size bad_words_ids num_return_sequences output_scores "
    "return_dict_in_generate forced_bos_token_id forced_eos_token_id remove_invalid_values "
    "exponential_decay_length_penalty suppress_tokens begin_suppress_tokens _commit_hash unsloth_version "
    # dropouts, and ways of computing the same
    "attn_pdrop attention_probs_dropout_prob hidden_dropout_prob residual_dropout embedding_dropout attn_dropout "
    "_attn_implementation_autoset _attn_implementation_internal attention_implementation _flash_attn_2_enabled "
    "flash_attn flash_attention use_flash_attn use_flash_attention use_flash_attention_2 use_flash_attn_2 "
    "gradient_checkpointing is_decoder max_sequence_length model_max_length tokenizer_model_max_length "
    "tokenizer_padding_side neftune_noise_alpha unsloth_fixed".split()
)

# Keys that change the mathematics in some family, with the values that change nothing. None is always neutral.
# Those with a dot are GGUF's, below the architecture's name.
NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "add_cross_attention": (False,),
    "alibi": (False,),
    "attention.causal": (True,),
    "attention.clamp_kqv": (0,),
    "attention.max_alibi_bias": (0,),
    "attention.scale": (0,),
    "attention_multiplier": (),
    "attn_logit_softcapping": (),
    "causal": (True,),
    "clip_qkv": (),
    "dim_model_base": (),
    "embed_scale": (1,),
    "embedding_multiplier": (1,),
    "embedding_scale": (0, 1),
    "final_logit_softcapping": (),
    "hidden_activation": (),
    "is_causal": (True,),
    "is_encoder_decoder": (False,),
    "kv_lora_rank": (),
    "layer_types": (),
    "logit_scale": (0, 1),
    "logits_scaling": (1,),
    "no_rope_layers": ([],),
    "num_experts": (0,),
    "num_experts_per_tok": (0,),
    "num_local_experts": (0,),
    "partial_rotary_factor": (1,),
    "per_layer_config": ({},),
    "position_embedding_type": ("rope",),
    "pretraining_tp": (1,),
    "pruned_heads": ({},),
    "qk_layernorm": (False,),
    "qk_norm": (False,),
    "quantization_config": (),
    "query_pre_attn_scalar": (),
    "residual_multiplier": (1,),
    "residual_scale": (0, 1),
    "rope_interleaved": (False,),
    "rope_is_neox_style": (True,),
    "rope_pct": (1,),
    "rope_ratio": (1,),
    "rotary_dim": (),
    "rotary_pct": (1,),
    "scale_attn_weights": (True,),
    "scale_depth": (),
    "scale_emb": (1,),
    "sliding_window": (),
    "tie_encoder_decoder": (False,),
    "use_causal_mask": (True,),
    "use_qk_norm": (False,),
    "use_rope": (True,),
    "use_sliding_window": (False,),
    "v_head_dim": (),
}

# An unknown key with one of these in its name may change the result, so it may only say that something is off.
RISKY = (
    "rope rotary attn attention norm scale scaling softcap window expert moe bias activation causal position embed "
    "multiplier logit residual clip clamp alibi lora sparse"
).split()
OFF: tuple[object, ...] = (None, False, "", [], {})

# Far above all models there are: a corrupt number must cost neither time nor memory before it is noticed.
LARGEST = {
    "head_dim": 1 << 16,
    "hidden_size": 1 << 20,
    "intermediate_size": 1 << 24,
    "num_attention_heads": 1 << 16,
    "num_hidden_layers": 100_000,
    "num_key_value_heads": 1 << 16,
    "vocab_size": 1 << 24,
}
LARGEST_OTHER = (1 << 31) - 1
# Outside of these, fp32 computes infinities or nothing but rounding.
RANGES = {"rms_norm_eps": (1e-30, 1.0), "rope_theta": (1.0, 1e30)}
OTHER_RANGE = (1e-6, 1e12)

ROPE_SPELLINGS = ("rope_parameters", "rope_scaling")
ORIGINAL_CONTEXT = "original_max_position_embeddings"
ROPE_KEYS = ("rope_type", "type", "rope_theta", ORIGINAL_CONTEXT, "finetuned")
ROPE_NEUTRAL = ("partial_rotary_factor", "attention_factor", "attn_factor", "mscale", "mscale_all_dim")  # 1 is neutral


def unsupported(field: str, value: object, supported: str) -> UnsupportedModelError:
    """The error for one config field: its name, its value and what would be accepted."""
    return UnsupportedModelError(
        f"The model's config has {field}={_shown(value)}, which is not supported.", f"Supported: {supported}."
    )


def unknown_key(field: str, value: object) -> UnsupportedModelError:
    """The error for a field that no family knows but whose name says that it may matter."""
    return UnsupportedModelError(
        f"The model's config has {field}={_shown(value)}, which is unknown.",
        "It may change the result; take it out of the config if you know that it does not.",
    )


class ConfigReader:
    """One config. Reading notes which keys were used; `notes` then judges the others."""

    def __init__(self, raw: Mapping[str, object]) -> None:
        self._raw = raw
        self._read: set[str] = set()

    def integer(self, field: str, default: int | None = None) -> int:
        """A whole number from 1 to what LARGEST says."""
        value, most = self._value(field, default), LARGEST.get(field, LARGEST_OTHER)
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
            raise unsupported(field, value, f"a whole number from 1 to {most}")
        return value

    def number(self, field: str, default: float | None = None) -> float:
        """A positive number within what RANGES says."""
        return _in_range(field, self._value(field, default))

    def flag(self, field: str) -> bool | None:
        """True, false, or None where the config does not say."""
        self._read.add(field)
        value = self._raw.get(field)
        if value is not None and not isinstance(value, bool):
            raise unsupported(field, value, "true or false")
        return value

    def choice(self, field: str, choices: Mapping[str, str], default: str) -> str:
        """What `choices` has for the field's value."""
        value = self._value(field, default)
        if not isinstance(value, str) or value not in choices:
            raise unsupported(field, value, ", ".join(sorted(choices)))
        return choices[value]

    def rope(self, dim: int, context: int, default_theta: float) -> RopeParameters:
        """Rotary parameters from `rope_parameters`, or from `rope_theta` and `rope_scaling`; `rope_type` or `type`.

        Where both tables are given they must say the same: which of them is meant differs between programs.
        """
        theta = self.number("rope_theta", default_theta)
        given = [name for name in ROPE_SPELLINGS if self._raw.get(name)]
        self._read.update((*ROPE_SPELLINGS, ORIGINAL_CONTEXT))
        found = [self._rope_table(field, dim, context, theta) for field in given or ROPE_SPELLINGS[:1]]
        if found[0] != found[-1]:
            raise unsupported(given[-1], self._raw[given[-1]], f"the same as in {given[0]}, or one of the two alone")
        return found[0]

    def notes(self) -> tuple[str, ...]:
        """Sentences about keys that nobody read and nobody knows; raises UnsupportedModelError for one that matters."""
        left = [name for name in self._raw if name not in self._read and name not in HARMLESS]
        unknown = []
        for name in left:
            value = self._raw[name]
            known = name if name in NEUTRAL else name.partition(".")[2]
            if known in NEUTRAL:
                if value is not None and value not in NEUTRAL[known]:
                    neutral = " or ".join(map(repr, NEUTRAL[known])) or "no value"
                    raise unsupported(name, value, f"{neutral} in this model family")
            elif any(word in name.lower() for word in RISKY):
                if value not in OFF or _is_number(value):
                    raise unknown_key(name, value)
            elif value is not None:
                unknown.append(name)
        return tuple(f"The config's {name!r} is unknown and was ignored." for name in sorted(unknown))

    def _rope_table(self, field: str, dim: int, context: int, theta: float) -> RopeParameters:
        table = self._raw.get(field) or {}
        if not isinstance(table, Mapping):
            raise unsupported(field, table, "a table of rotary parameters")
        kind = table.get("rope_type", table.get("type")) or "default"
        if not isinstance(kind, str) or kind not in ROPES:
            raise unsupported(f"{field}.rope_type", kind, ", ".join(ROPES.names()))
        if table.get("type") not in (None, kind):
            raise unsupported(f"{field}.type", table["type"], f"{kind!r}, as rope_type says")
        theta = _in_range(f"{field}.rope_theta", table.get("rope_theta", theta))
        known = {**table, ORIGINAL_CONTEXT: self._original_context(table, context)}
        options = {name: _in_range(f"{field}.{name}", known.get(name)) for name in ROPES.get(kind)().options}
        for name, value in table.items():
            if name in ROPE_NEUTRAL and value not in (None, 1):
                raise unsupported(f"{field}.{name}", value, "1")
            if name not in (*options, *ROPE_KEYS, *ROPE_NEUTRAL) and (value not in OFF or _is_number(value)):
                raise unknown_key(f"{field}.{name}", value)
        return RopeParameters(kind, theta, dim, options)

    def _value(self, field: str, default: object) -> object:
        self._read.add(field)
        value = self._raw.get(field)
        if value is None:
            value = default
        if value is None:
            raise UnsupportedModelError(
                f"The model's config has no {field}.", "The file is incomplete or of another family."
            )
        return value

    def _original_context(self, table: Mapping[str, object], context: int) -> object:
        """The length before scaling: a key of its own wins over the table's; without both, the model's context."""
        return self._raw.get(ORIGINAL_CONTEXT) or table.get(ORIGINAL_CONTEXT) or context


def _in_range(field: str, value: object) -> float:
    least, most = RANGES.get(field.rpartition(".")[2], OTHER_RANGE)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= most:
        raise unsupported(field, value, f"a number from {least:g} to {most:g}")
    return float(value)


def _is_number(value: object) -> bool:
    """Whether an equal of False is meant as a number: 0 turns nothing off."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
