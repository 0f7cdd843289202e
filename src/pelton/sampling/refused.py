"""Parameters of sampling that other engines have and this one has not: refused by name unless they ask for nothing.

What a door knows besides sampling is the door's. Invariant: such a parameter is never ignored where it would matter.
"""

from collections.abc import Mapping, Sized
from dataclasses import dataclass
from numbers import Real

from pelton.core.errors import RequestError


@dataclass(frozen=True, slots=True)
class Refusal:
    """`neutral`: values that ask for nothing, beside None, False and what is empty; None: any does, by itself.

    `instead`: what to use in its place.
    """

    neutral: tuple[object, ...] | None
    instead: str


_TAIL = "Use min_p, top_p or top_k to cut the tail of unlikely tokens."
_REPEATS = "Use repetition_penalty, frequency_penalty or presence_penalty against repetition."
_SPREAD = "Use temperature, with min_p against unlikely tokens."
_BEAMS = "Ask for several answers with n, and choose among them by their log-probabilities."
_WORDS = "Use bad_words, logit_bias or allowed_token_ids to ban, favour or allow tokens."
_NONE = Refusal(None, "")  # a detail of a technique that another parameter switches on

REFUSED: Mapping[str, Refusal] = {
    "typical_p": Refusal((1,), _TAIL),
    "typical": Refusal((1,), _TAIL),
    "top_n_sigma": Refusal((-1, 0), _TAIL),
    "top_a": Refusal((0,), _TAIL),
    "top_h": Refusal((0,), _TAIL),
    "tfs": Refusal((1,), _TAIL),
    "tfs_z": Refusal((1,), _TAIL),
    "epsilon_cutoff": Refusal((0,), _TAIL),
    "eta_cutoff": Refusal((0,), _TAIL),
    "dry_multiplier": Refusal((0,), _REPEATS),
    "dry_base": _NONE,
    "dry_allowed_length": _NONE,
    "dry_penalty_last_n": _NONE,
    "dry_range": _NONE,
    "dry_sequence_breakers": _NONE,
    "no_repeat_ngram_size": Refusal((0,), _REPEATS),
    "encoder_repetition_penalty": Refusal((1,), _REPEATS),
    "repeat_penalty": Refusal((1,), "Use repetition_penalty, which is the same under another name."),
    "repeat_last_n": Refusal((0, -1), "Leave it out: repetition_penalty looks at the whole prompt and answer."),
    "penalty_alpha": Refusal((0,), _REPEATS),
    "xtc_probability": Refusal((0,), _SPREAD),
    "xtc_threshold": _NONE,
    "mirostat": Refusal((0,), _SPREAD),
    "mirostat_mode": Refusal((0,), _SPREAD),
    "mirostat_tau": _NONE,
    "mirostat_eta": _NONE,
    "dynatemp_range": Refusal((0,), _SPREAD),
    "dynatemp_exponent": _NONE,
    "smoothing_factor": Refusal((0,), _SPREAD),
    "smoothing_curve": _NONE,
    "guidance_scale": Refusal((1,), "Say in the prompt what is wanted."),
    "use_beam_search": Refusal((), _BEAMS),
    "num_beams": Refusal((1,), _BEAMS),
    "best_of": Refusal((1,), _BEAMS),  # and the request's own n
    "length_penalty": Refusal((1,), "It belongs to beam search; use min_tokens and max_tokens to bound the length."),
    "early_stopping": Refusal((), "It belongs to beam search; use stop or max_tokens to end an answer."),
    "logits_processors": Refusal((), _WORDS),
    "logits_processor": Refusal((), _WORDS),
    "custom_logit_processor": Refusal((), _WORDS),
    "suppress_tokens": Refusal((), _WORDS),
    "extra_args": Refusal((), "Leave it out: there are no added parameters here."),
    "vllm_xargs": Refusal((), "Leave it out: there are no added parameters here."),
}


def asks_nothing(value: object, neutral: tuple[object, ...]) -> bool:
    """Whether a value is neutral: None, False, empty, or one of these (True is no 1)."""
    if value is None or value is False or (isinstance(value, Sized) and not len(value)):
        return True
    return value is not True and isinstance(value, Real) and value in neutral


def refuse(given: Mapping[str, object]) -> dict[str, object]:
    """`given` without the parameters that are not supported, where they ask for nothing; RequestError naming one that
    does ask for something (code "unsupported_parameter").
    """
    for name in sorted(given.keys() & REFUSED.keys()):
        refusal, value = REFUSED[name], given[name]
        if refusal.neutral is None or asks_nothing(value, refusal.neutral):
            continue
        if name == "best_of" and value == given.get("n"):
            continue
        raise RequestError(
            f"{name}={value!r} is not supported.", refusal.instead, param=name, code="unsupported_parameter"
        )
    return {name: value for name, value in given.items() if name not in REFUSED}
