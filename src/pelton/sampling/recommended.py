"""What a model's generation_config recommends, as SamplingParams' fields, and what of it is not done.

Invariant: a field takes effect, or changes nothing, or is told in a note.
"""

from collections.abc import Mapping

from pelton.core.params import DRAWING, GREEDY, PENALTIES
from pelton.sampling.refused import REFUSED, asks_nothing

# Key -> the field of SamplingParams that it sets.
FIELDS: Mapping[str, str] = {
    **{name: name for name in (*DRAWING, *PENALTIES)},
    "max_new_tokens": "max_tokens",
    "min_new_tokens": "min_tokens",
}
SWITCH = "do_sample"  # false: the likeliest token always, whatever is said of drawing

# Token ids (read with the special tokens), bookkeeping, how beam searches and assistants work, and `max_length`, which
# stands for the context that max_model_len is about.
HARMLESS = frozenset(
    "bos_token_id eos_token_id pad_token_id decoder_start_token_id transformers_version _from_model_config "
    "_commit_hash use_cache cache_implementation cache_config max_cache_len compile_config disable_compile "
    "output_attentions output_hidden_states output_scores output_logits return_dict_in_generate max_length "
    "remove_invalid_values renormalize_logits early_stopping length_penalty diversity_penalty low_memory "
    "prefill_chunk_size use_mtp is_assistant num_assistant_tokens num_assistant_tokens_schedule "
    "assistant_confidence_threshold prompt_lookup_num_tokens max_matching_ngram_size assistant_early_exit "
    "assistant_lookbehind target_lookbehind assistant_ensemble_weight speculation_type "
    "continuous_batching_config".split()
)
# Values with which a key changes nothing; None, False and what is empty never do.
NEUTRAL: Mapping[str, tuple[object, ...]] = {
    **{name: refusal.neutral or () for name, refusal in REFUSED.items()},
    "encoder_no_repeat_ngram_size": (0,),
    "min_length": (0,),
    "num_beam_groups": (1,),
    "num_return_sequences": (1,),
}


def recommended(generation_config: Mapping[str, object]) -> dict[str, object]:
    """SamplingParams' fields with what is recommended, unchecked; a missing or null key leaves the general default."""
    said = {name: value for name, value in generation_config.items() if value is not None}
    values = {field: said[name] for name, field in FIELDS.items() if name in said}
    if said.get(SWITCH) is False:
        values = {**{name: value for name, value in values.items() if name not in DRAWING}, **GREEDY}
    return values


def recommendation_notes(generation_config: Mapping[str, object]) -> tuple[str, ...]:
    """Sentences about recommendations that have no effect here, with field and value."""
    return tuple(
        f"The model's generation_config recommends {name}={value!r}, which is not supported and was ignored."
        for name, value in sorted(generation_config.items())
        if name not in HARMLESS and name not in FIELDS and name != SWITCH
        if not asks_nothing(value, NEUTRAL.get(name, ()))
    )
