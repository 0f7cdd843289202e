"""Reads a model's config: types checked, old and new spellings, and no value that changes the model goes unnoticed.

A key is read by the family, or known to be harmless, or refused unless its value is neutral, or told in a note. Unknown
keys are refused if their name speaks of what models compute (RISKY), so that notes are left for what changes nothing.
"""

from collections.abc import Mapping
from typing import TypeVar

from pelton.layers.rope import ORIGINAL_CONTEXT, RopeParameters
from pelton.models.checks import LARGEST_OTHER, OFF, in_range, is_number, missing, unknown_key
from pelton.models.checks import unsupported as unsupported  # families take it from here
from pelton.models.rope_config import SPELLINGS, RopeWanted, read_partial, read_rope

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
    "full_attn_mod": (1,),
    "hidden_activation": (),
    "interpolate_factor": (1,),
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
V = TypeVar("V")


class ConfigReader:
    """One config. Reading notes which keys were used; `notes` then judges the others."""

    def __init__(self, raw: Mapping[str, object]) -> None:
        self._raw = raw
        self._read: set[str] = set()
        self._partial: dict[str | None, float] = {}

    def integer(self, field: str, default: int | None = None, least: int = 1) -> int:
        """A whole number from `least` to what LARGEST says."""
        value, most = self._value(field, default), LARGEST.get(field, LARGEST_OTHER)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise unsupported(field, value, f"a whole number from {least} to {most}")
        return value

    def number(self, field: str, default: float | None = None) -> float:
        """A positive number within what RANGES says."""
        return in_range(field, self._value(field, default))

    def flag(self, field: str) -> bool | None:
        """True, false, or None where the config does not say."""
        self._read.add(field)
        value = self._raw.get(field)
        if value is not None and not isinstance(value, bool):
            raise unsupported(field, value, "true or false")
        return value

    def unused(self, *fields: str) -> None:
        """Keys that the family's files have although its mathematics does not, whatever they say."""
        self._read.update(fields)

    def optional(self, field: str, absent: int | None = None) -> int | None:
        """A whole number as `integer` takes it, None where the config says null, and `absent` where it says nothing."""
        self._read.add(field)
        if field not in self._raw:
            return absent
        return None if self._raw[field] is None else self.integer(field)

    def by_layer(self, field: str, choices: Mapping[str, V], layers: int) -> tuple[V, ...] | None:
        """What `choices` has for each entry, a text or a number, of a list with one per layer; None without a list."""
        self._read.add(field)
        listed = self._raw.get(field)
        if listed is None:
            return None
        if not isinstance(listed, list) or len(listed) != layers:
            raise unsupported(field, listed, f"a list of num_hidden_layers={layers} entries")
        for entry in listed:
            if str(entry) not in choices:
                raise unsupported(field, entry, f"a list of {' and '.join(choices)}")
        return tuple(choices[str(entry)] for entry in listed)

    def choice(self, field: str, choices: Mapping[str, str], default: str) -> str:
        """What `choices` has for the field's value."""
        value = self._value(field, default)
        if not isinstance(value, str) or value not in choices:
            raise unsupported(field, value, ", ".join(sorted(choices)))
        return choices[value]

    def rotated(self, head_dim: int, default: float = 1.0, layer_type: str | None = None) -> int:
        """How many numbers of a head are rotated, by `partial_rotary_factor`; `default` is the share without it."""
        self._read.add("partial_rotary_factor")
        share = self._partial[layer_type] = read_partial(self._raw, default, layer_type)
        if int(head_dim * share) % 2 or not int(head_dim * share):
            raise unsupported("partial_rotary_factor", share, f"a share of head_dim={head_dim} that makes pairs")
        return int(head_dim * share)

    def rope(
        self,
        dim: int,
        context: int,
        default_theta: float,
        layer_type: str | None = None,
        theta_field: str = "rope_theta",
        scaled: bool = True,
    ) -> RopeParameters:
        """Rotary parameters from `rope_parameters`, or from `rope_theta` and `rope_scaling`.

        `dim` rotated numbers of a head, `context` the config's max_position_embeddings. `layer_type`: whose table is
        read where `rope_parameters` has one for each. For layers that have rules of their own in files with one table:
        `theta_field` has their base, and if not `scaled`, that one table is not theirs.
        """
        theta = self.number(theta_field, default_theta)
        self._read.update((*SPELLINGS, ORIGINAL_CONTEXT))
        partial = self._partial.get(layer_type, self._partial.get(None, 1.0))
        return read_rope(self._raw, RopeWanted(dim, context, theta, layer_type, partial, scaled))

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
                if value not in OFF or is_number(value):
                    raise unknown_key(name, value)
            elif value is not None:
                unknown.append(name)
        return tuple(f"The config's {name!r} is unknown and was ignored." for name in sorted(unknown))

    def _value(self, field: str, default: object) -> object:
        self._read.add(field)
        value = self._raw.get(field)
        if value is None:
            value = default
        if value is None:
            raise missing(field)
        return value
