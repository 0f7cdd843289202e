"""Reads a model's config: types checked, old and new spellings, and no value that changes the model goes unnoticed.

A key is read by the family, or known to be harmless, or refused unless its value is neutral, or told in a note.
"""

import math
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
    "exponential_decay_length_penalty suppress_tokens begin_suppress_tokens _commit_hash unsloth_version".split()
)

# Keys that change the mathematics in some family, with the values that change nothing. None is always neutral.
NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "add_cross_attention": (False,),
    "alibi": (False,),
    "attention_multiplier": (),
    "attn_logit_softcapping": (),
    "clip_qkv": (),
    "embedding_multiplier": (1,),
    "final_logit_softcapping": (),
    "is_encoder_decoder": (False,),
    "kv_lora_rank": (),
    "layer_types": (),
    "logit_scale": (1,),
    "logits_scaling": (1,),
    "no_rope_layers": ([],),
    "num_experts": (0,),
    "num_local_experts": (0,),
    "partial_rotary_factor": (1,),
    "per_layer_config": ({},),
    "pretraining_tp": (1,),
    "pruned_heads": ({},),
    "qk_layernorm": (False,),
    "quantization_config": (),
    "query_pre_attn_scalar": (),
    "residual_multiplier": (1,),
    "rope_interleaved": (False,),
    "sliding_window": (),
    "tie_encoder_decoder": (False,),
    "use_qk_norm": (False,),
    "use_sliding_window": (False,),
    "v_head_dim": (),
}

ROPE_SPELLINGS = ("rope_parameters", "rope_scaling")
ORIGINAL_CONTEXT = "original_max_position_embeddings"
ROPE_KEYS = ("rope_type", "type", "rope_theta", "partial_rotary_factor", ORIGINAL_CONTEXT)


def unsupported(field: str, value: object, supported: str) -> UnsupportedModelError:
    """The error for one config field: its name, its value and what would be accepted."""
    text = repr(value)
    shown = text if len(text) <= 80 else text[:77] + "..."
    return UnsupportedModelError(
        f"The model's config has {field}={shown}, which is not supported.", f"Supported: {supported}."
    )


class ConfigReader:
    """One config. Reading notes which keys were used; `notes` then judges the others."""

    def __init__(self, raw: Mapping[str, object]) -> None:
        self._raw = raw
        self._read: set[str] = set()
        self._unknown: list[str] = []

    def integer(self, field: str, default: int | None = None) -> int:
        """A whole number of at least 1."""
        value = self._value(field, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise unsupported(field, value, "a whole number of at least 1")
        return value

    def number(self, field: str, default: float | None = None) -> float:
        """A positive, finite number."""
        return _positive(field, self._value(field, default))

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
        """Rotary parameters from `rope_parameters`, or from `rope_theta` and `rope_scaling`; `rope_type` or `type`."""
        given = [name for name in ROPE_SPELLINGS if self._raw.get(name) is not None]
        field = given[0] if given else ROPE_SPELLINGS[0]
        table = self._value(field, {})
        self._read.update(ROPE_SPELLINGS)
        if not isinstance(table, Mapping):
            raise unsupported(field, table, "a table of rotary parameters")
        kind = table.get("rope_type", table.get("type")) or "default"
        if not isinstance(kind, str) or kind not in ROPES:
            raise unsupported(f"{field}.rope_type", kind, ", ".join(ROPES.names()))
        if table.get("partial_rotary_factor", 1) not in (None, 1):
            raise unsupported(f"{field}.partial_rotary_factor", table["partial_rotary_factor"], "1")

        theta = self.number("rope_theta", default_theta)
        theta = _positive(f"{field}.rope_theta", table.get("rope_theta", theta))
        known = {**table, ORIGINAL_CONTEXT: self._original_context(table, context)}
        options = {name: _positive(f"{field}.{name}", known.get(name)) for name in ROPES.get(kind)().options}
        self._unknown += [f"{field}.{name}" for name in table if name not in (*options, *ROPE_KEYS)]
        return RopeParameters(kind, theta, dim, options)

    def notes(self) -> tuple[str, ...]:
        """Sentences about keys that nobody read and nobody knows; raises UnsupportedModelError for one that matters."""
        left = [name for name in self._raw if name not in self._read and name not in HARMLESS]
        for name in left:
            value = self._raw[name]
            if name in NEUTRAL and value is not None and value not in NEUTRAL[name]:
                neutral = " or ".join(map(repr, NEUTRAL[name])) or "no value"
                raise unsupported(name, value, f"{neutral} in this model family")
        unknown = sorted(self._unknown + [name for name in left if name not in NEUTRAL])
        return tuple(f"The config's {name!r} is unknown and was ignored." for name in unknown)

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
        self._read.add(ORIGINAL_CONTEXT)
        return self._raw.get(ORIGINAL_CONTEXT) or table.get(ORIGINAL_CONTEXT) or context


def _positive(field: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value <= 0:
        raise unsupported(field, value, "a positive number")
    return float(value)
