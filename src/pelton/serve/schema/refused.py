"""Fields that clients know from elsewhere and that are not done here, with the values that ask for nothing.

Those of sampling stand in sampling/refused.py. Invariant: such a field is taken with a neutral value or refused, and
never ignored.
"""

from collections.abc import Mapping, Set

from pelton.core.errors import RequestError
from pelton.sampling.refused import REFUSED, asks_nothing, refuse
from pelton.serve.schema.json_text import Json

# Null, false and what is empty always ask for nothing.
NEUTRAL: Mapping[str, tuple[Json, ...]] = {
    "audio": (),
    "documents": (),
    "function_call": ("none", "auto"),
    "functions": (),
    "grammar": (),
    "guided_choice": (),
    "guided_decoding_backend": (),
    "guided_grammar": (),
    "guided_json": (),
    "guided_regex": (),
    "guided_whitespace_pattern": (),
    "include_reasoning": (True,),
    "json_schema": (),
    "kv_transfer_params": (),
    "logprob_token_ids": (),
    "lora": (),
    "media_io_kwargs": (),
    "mm_processor_kwargs": (),
    "modalities": (["text"],),
    "post_sampling_probs": (),
    "prediction": (),
    "prompt_embeds": (),
    "reasoning_effort": ("none",),
    "repetition_detection": (),
    "response_format": ({"type": "text"},),
    "return_prompt_text": (),
    "return_token_offsets": (),
    "spaces_between_special_tokens": (True,),
    "store": (),
    "stream_interval": (1,),
    "structured_outputs": (),
    "suffix": (),
    "thinking_token_budget": (),
    "tool_choice": ("none", "auto"),
    "tools": (),
    "truncate_prompt_tokens": (),
    "truncation_side": ("left", "right"),
    "verbosity": ("medium",),
    "watermarking": (),
    "web_search_options": (),
}

# Labels: what they ask for is done by whoever keeps the books, not by an engine.
LABELS = frozenset(
    "metadata parallel_tool_calls prompt_cache_key prompt_cache_retention safety_identifier service_tier user".split()
)


def check_refused(body: Mapping[str, Json], known: Set[str]) -> None:
    """RequestError naming the first field of the body that asks for something that is not done.

    `known`: fields that the route does, though others do not.
    """
    refuse({name: value for name, value in body.items() if name not in known or name not in REFUSED})
    for name in sorted((body.keys() & NEUTRAL.keys()) - known):
        value = body[name]
        if not asks_nothing(value, ()) and not any(
            type(value) is type(none) and value == none for none in NEUTRAL[name]
        ):
            raise RequestError(f"{name} is not supported.", "Leave it out.", param=name, code="unsupported_parameter")
