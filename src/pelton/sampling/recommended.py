"""What a model's generation_config recommends: SamplingParams for requests without any, and what of it is not done.

Invariant: a field takes effect, or changes nothing, or is told in a note.
"""

from collections.abc import Mapping

from pelton.core.errors import CheckpointError, RequestError
from pelton.core.params import DRAWING, GREEDY, SamplingParams

TAKEN = ("do_sample", "max_new_tokens", *DRAWING)

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
# Values with which a field changes nothing; None, False and what is empty never do.
NEUTRAL: Mapping[str, tuple[float, ...]] = {
    "encoder_no_repeat_ngram_size": (0,),
    "encoder_repetition_penalty": (1,),
    "epsilon_cutoff": (0,),
    "eta_cutoff": (0,),
    "guidance_scale": (1,),
    "min_length": (0,),
    "min_new_tokens": (0,),
    "no_repeat_ngram_size": (0,),
    "num_beam_groups": (1,),
    "num_beams": (1,),
    "num_return_sequences": (1,),
    "penalty_alpha": (0,),
    "repetition_penalty": (1,),
    "typical_p": (1,),
}


def default_params(generation_config: Mapping[str, object]) -> SamplingParams:
    """SamplingParams with what the model recommends; a missing or null key leaves the general default.

    `do_sample` false means the likeliest token always, whatever is said of drawing; `max_new_tokens` is max_tokens.
    Raises CheckpointError for a recommendation that no request could have.
    """
    said = {name: value for name, value in generation_config.items() if value is not None}
    values = {name: said[name] for name in DRAWING if name in said}
    if said.get("do_sample") is False:
        values = {**GREEDY}
    if "max_new_tokens" in said:
        values["max_tokens"] = said["max_new_tokens"]
    try:
        return SamplingParams(**values)  # type: ignore[arg-type]
    except RequestError as error:
        raise CheckpointError(f"generation_config.json: {error.cause}", "Correct it or remove the key.") from error


def recommendation_notes(generation_config: Mapping[str, object]) -> tuple[str, ...]:
    """Sentences about recommendations that have no effect here, with field and value."""
    return tuple(
        f"The model's generation_config recommends {name}={value!r}, which is not supported and was ignored."
        for name, value in sorted(generation_config.items())
        if name not in HARMLESS and name not in TAKEN and value and value not in NEUTRAL.get(name, ())
    )
