"""Flags that several commands share: the model, sampling, the engine's settings. It parses; it starts nothing.

Names and meanings are those of SamplingParams and of the config sections, so that the command line, Python and the
documentation say the same. Invariant: a flag that is not given leaves the setting to its own default.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, fields
from importlib import import_module
from pathlib import Path
from typing import TypeVar

import click

from pelton.checkpoint.fetch.sources import DEFAULT_MODEL, HUB_NAME, PYPI, SHORT_NAMES
from pelton.core.config import (
    ACTIVATIONS,
    DTYPES,
    LINEAR_FORMS,
    PREEMPTION,
    BackendSection,
    CacheSection,
    FetchSection,
    ModelSection,
    ScheduleSection,
)
from pelton.core.environment import API_KEY
from pelton.core.errors import CheckpointError, PeltonError, RequestError, UnsupportedModelError
from pelton.core.params import GRANULARITIES, MAX_LOGPROBS

F = TypeVar("F", bound=Callable[..., object])
Flags = Mapping[str, object]

_DEBUG = "pelton.debug"
_WRITTEN = "pelton.written"  # size -> how it was written
_PATH_LIKE = re.compile(r"(/|\./|\.\./|~/)\S*|\S+\.(gguf|safetensors)")
_MODEL_LIKE = re.compile(r"(?=.*[A-Za-z].*/.*[A-Za-z])(?=.*[\d:_-])")  # beyond the form of a name of the Hub
MOST_BYTES = 2**63
_THOUSANDS = {"k": 1000, "K": 1024}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?", re.IGNORECASE)


def parse_length(text: str) -> object:
    """A number of tokens, as 4096, 4k (4000) or 4K (4096), or "auto"."""
    text = text.strip()
    if text in ("auto", "-1"):
        return "auto"
    times = _THOUSANDS.get(text[-1:], 1)
    try:
        return int(text if times == 1 else text[:-1]) * times
    except ValueError:
        raise click.BadParameter(f"{text!r} is neither a whole number nor auto.") from None


def parse_size(text: str) -> int:
    """Bytes from 1048576, 512M or 1.5GiB (units of 1024)."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise click.BadParameter(f"{text!r} is no number of bytes; write it like 1048576, 512M or 1.5G.")
    size = float(match[1]) * 1024 ** " kmgt".index(match[2].lower() or " ")
    if size >= MOST_BYTES:
        raise click.BadParameter("That is more memory than a machine can address.")
    return int(size)


def written_size(text: str) -> int:
    """As parse_size, for flags: errors about the size tell it as it was written."""
    size = parse_size(text)
    context = click.get_current_context(silent=True)
    if context is not None:
        context.meta.setdefault(_WRITTEN, {})[size] = text
    return size


ENGINE_SECTIONS = (ModelSection, FetchSection, CacheSection, ScheduleSection, BackendSection)
# What a flag needs beyond its field.
ENGINE_HELP = {
    "tokenizer": "Another model whose tokenizer is used instead.",
    "dtype": "Arithmetic: auto and bfloat16 are the same; float32 is exact and slower.",
    "max_model_len": "Longest prompt and answer together, in tokens [auto: the model's own, or what the memory holds].",
    "chat_template": "File with a chat template (Jinja) to use instead of the model's.",
    "generation_config": "auto: sample as the model recommends; none: do not.",
    "override_generation_config": "JSON with sampling values that win over the model's recommendation.",
    "hf_overrides": "JSON with fields that win over the model's config, such as rope_scaling.",
    "quantization": "Quantise dense weights while loading, such as int4:group=64; there are [no].",
    "linear_form": "How quantised weights are multiplied: codes, or values made of them first.",
    "activations": "int8: round them to 8 bits before products with quantised weights; faster, and lossy.",
    "revision": "Branch, tag or commit of a model of the Hub [its main branch].",
    "hf_token": "Token for the Hub; better the variable HF_TOKEN, which no list of processes shows.",
    "hf_endpoint": "Address of the Hub or of a mirror [the variable HF_ENDPOINT, else https://huggingface.co].",
    "offline": "Fetch nothing: only what is there already [the variable HF_HUB_OFFLINE, for the Hub].",
    "download_dir": "Folder for what is fetched [the Hub's cache; for packages the cache of PELTON_CACHE].",
    "accept_terms": "Agree to the terms that a model comes under, which must be read first.",
    "kv_cache_memory_bytes": (
        "Memory for keys and values, such as 512M [the least of: 4 times what max-num-seqs requests of max-model-len "
        "tokens fill, a fourth of the free memory, 4G]."
    ),
    "num_blocks": "The same as a number of blocks; not beside it.",
    "kv_codec": "How keys and values are stored.",
    "enable_prefix_caching": "Keep what was computed for prompts that begin alike [yes].",
    "prefix_cache_tokens": "Most tokens kept so [what the memory holds].",
    "swap_space_bytes": (
        "Memory in which preempted requests wait, such as 1G; 0: none [the least of: the KV cache's, an eighth "
        "of the free memory, 4G]."
    ),
    "preemption_mode": "What preempted requests had: recompute, swap, or auto, whichever takes less time.",
    "kv_disk_bytes": "Disk for computed prefixes that the memory has no room for, such as 10G; 0: none.",
    "kv_disk_folder": "Folder for them [the cache folder].",
    "partial_prefix_blocks": "Copy blocks that begin like what a prompt needs next, up to where they differ [yes].",
    "session_seconds": "Seconds that blocks of a session are held unused; 0: they are not.",
    "max_num_seqs": "Requests computed at once [what the command needs].",
    "max_num_batched_tokens": "Tokens computed in one step [as many as itl-target-ms lets].",
    "long_prefill_token_threshold": "Longest piece of a prompt in one step; 0: what fits.",
    "context_cost": "How much each earlier token makes a prompt's token count for more [by the model's arithmetic].",
    "max_num_queued_reqs": "Most requests that may wait; 0: any number.",
    "scheduling_policy": "Order of the requests.",
    "itl_target_ms": "Milliseconds that a step with prompts may take; 0: no matter, 256 tokens [100].",
    "fairness_weights": "JSON with users or API keys and how many shares each gets, for an order that shares.",
    "max_steps_per_call": "Most tokens an answer gets before anybody is told; 1: each by itself.",
    "planning_depth": "2: plan a step while the one before runs; 1: when it is over.",
    "backend": "What executes the model.",
    "threads": "Worker threads; 0: one for each allowed core.",
    "packed_cache_bytes": "Disk for packed weights, of all models together; 0: they are packed at each start [16G].",
}
CHOOSING = ("backend", "kv_codec", "scheduling_policy", "quantization")  # their values are names of techniques
# Settings that are about sharing the engine, and block_size, which has one value, are for `pelton serve` alone.
_SHARED_ONLY = (
    *("max_num_queued_reqs", "context_cost", "block_size", "fairness_weights", "session_seconds"),
    *("swap_space_bytes", "preemption_mode"),
)
_ENGINE_TYPES: Mapping[str, object] = {
    "max_model_len": parse_length,
    "dtype": click.Choice(DTYPES),
    "linear_form": click.Choice(LINEAR_FORMS),
    "activations": click.Choice(ACTIVATIONS),
    "kv_cache_memory_bytes": written_size,
    "packed_cache_bytes": written_size,
    "kv_disk_bytes": written_size,
    "swap_space_bytes": written_size,
    "preemption_mode": click.Choice(PREEMPTION),
    "chat_template": click.Path(exists=True, dir_okay=False),
}

# flag, field of SamplingParams, type, help
SAMPLING_FLAGS: Sequence[tuple[str, str, object, str]] = (
    ("--temperature", "temperature", float, "0: always the most likely token; higher: more variety."),
    ("--top-p", "top_p", float, "Draw from the likeliest tokens that together have this probability."),
    ("--top-k", "top_k", int, "Draw from this many of the likeliest tokens; 0 or -1: all."),
    ("--min-p", "min_p", float, "Drop tokens below this share of the likeliest one's probability."),
    ("--repetition-penalty", "repetition_penalty", float, "Above 1: tokens of the prompt and the answer become rarer."),
    ("--presence-penalty", "presence_penalty", float, "Above 0: tokens that the answer has become rarer."),
    ("--frequency-penalty", "frequency_penalty", float, "As that, the more the oftener they are there."),
    ("--min-tokens", "min_tokens", int, "Nothing ends the answer before this many tokens."),
    ("--bad-word", "bad_words", str, "A text that the answer must not have; may be given several times."),
    ("--seed", "seed", int, "Makes the draws repeatable [a fresh one for each answer]."),
    ("--stop", "stop", str, "End the answer before this text; may be given several times."),
    ("--stop-token-id", "stop_token_ids", int, "End the answer at this token; may be given several times."),
    (
        "--stream-granularity",
        "stream_granularity",
        click.Choice(GRANULARITIES),
        "Print at the end of each token, word or sentence [token].",
    ),
    ("--logprobs", "logprobs", click.IntRange(0, MAX_LOGPROBS), "Show log-probabilities, with this many alternatives."),
)
# The same, for a text that is continued rather than a conversation.
COMPLETION_FLAGS: Sequence[tuple[str, str, object, str]] = (
    ("--n", "n", int, "Number of answers, each shown when it has ended [1]."),
    (
        "--prompt-logprobs",
        "prompt_logprobs",
        click.IntRange(0, MAX_LOGPROBS),
        "Show log-probabilities of the prompt's tokens, with this many alternatives.",
    ),
)
_REPEATED = ("stop", "stop_token_ids", "bad_words")
# Names that errors use, in Python's spelling -> flag. Those without an underscore are words of the language too.
FLAG_OF = {
    "max_tokens": "--max-tokens",
    **{name: "--" + name.replace("_", "-") for name in ENGINE_HELP},
    **{name: flag for flag, name, _, _ in (*SAMPLING_FLAGS, *COMPLETION_FLAGS)},
}
_VALUE = r"'(?P<text>[^'\s]+)'|(?P<number>\d+)(?![\w.]*\w)|(?P<switch>True|False)|(?=\S)"
_NAMED = re.compile(
    r"(?<![\w/.-])(?:(?P<set>{every})=(?:{value})|(?P<bare>{long})(?![\w/-])|(?P<holder>stop)(?= contains ))".format(
        every="|".join(FLAG_OF), value=_VALUE, long="|".join(name for name in FLAG_OF if "_" in name)
    )
)


class Choosing(click.Option):
    """An option that names a technique: its help lists those that there are, which are looked up when it is shown."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        record = super().get_help_record(ctx)
        if record is None:
            return None
        names = import_module("pelton.engine.needs").CHOICES[self.name]()
        text, bracket, default = record[1].partition(" [")
        return record[0], f"{text.rstrip('.')}: {', '.join(names)}.{bracket}{default}"


def _stack(function: F, decorators: list[Callable[[F], F]]) -> F:
    for decorator in reversed(decorators):
        function = decorator(function)
    return function


def _engine_fields(sections: Sequence[type] = ENGINE_SECTIONS) -> list["Field[object]"]:
    return [
        field
        for section in sections
        for field in fields(section)
        if field.name in ENGINE_HELP and field.name not in _SHARED_ONLY
    ]


ENGINE_FLAGS = frozenset(field.name for field in _engine_fields())
FETCH_FLAGS = tuple(field.name for field in fields(FetchSection))


def setting_option(field: "Field[object]", also: Sequence[str] = ()) -> Callable[[F], F]:
    """The flag of one setting, with other spellings of it."""
    flag, text = "--" + field.name.replace("_", "-"), ENGINE_HELP[field.name]
    if field.type is bool:
        both = f"{flag}/--no-{flag.removeprefix('--')}" if field.default else flag
        return click.option(both, field.name, is_flag=True, default=None, help=text)
    kind = _ENGINE_TYPES.get(field.name) or (int if field.type in (int, int | None) else str)
    if isinstance(field.default, (int, str)) and "[" not in text:
        text = f"{text} [{field.default}]"
    metavar = {written_size: "SIZE", parse_length: "INTEGER"}.get(kind) if callable(kind) else None
    cls = Choosing if field.name in CHOOSING else click.Option
    return click.option(flag, *also, field.name, cls=cls, type=kind, metavar=metavar, help=text)


def engine_options(command: F) -> F:
    """A flag for each setting in ENGINE_HELP that matters to one user, named like its field, plus --verbose."""
    return _engine_options(command, {})


def answering_options(command: F) -> F:
    """As engine_options, with llama.cpp's spellings of the longest text, which elsewhere may mean something else."""
    return _engine_options(command, {"max_model_len": ("--ctx-size", "-c")})


def _engine_options(command: F, also: Mapping[str, Sequence[str]]) -> F:
    decorators: list[Callable[[F], F]] = [setting_option(field, also.get(field.name, ())) for field in _engine_fields()]
    decorators.append(
        click.option("--verbose", "-v", is_flag=True, help="Tell what the engine set up, and how long it took.")
    )
    return _stack(command, decorators)


def fetch_options(command: F) -> F:
    """The flags about fetching alone, for commands that have no engine_options."""
    return _stack(command, [setting_option(field) for field in _engine_fields([FetchSection])])


def sampling_options(command: F) -> F:
    """The flags of SamplingParams, except for --max-tokens, whose default differs between commands."""
    ignore: Callable[[F], F] = click.option("--ignore-eos", is_flag=True, help="Go on past the model's end token.")
    return _with_flags(ignore(command), SAMPLING_FLAGS)


def completion_options(command: F) -> F:
    """The flags of SamplingParams that are about a text to continue."""
    return _with_flags(command, COMPLETION_FLAGS)


def _with_flags(command: F, flags: Sequence[tuple[str, str, object, str]]) -> F:
    decorators: list[Callable[[F], F]] = []
    for flag, name, kind, text in flags:
        decorators.append(click.option(flag, name, type=kind, multiple=name in _REPEATED, help=text))
    return _stack(command, decorators)


def server_options(command: F) -> F:
    """--url and --api-key: another process answers. `served` reads them."""
    return _stack(
        command,
        [
            click.option(
                "--url",
                help="Ask this server (http://HOST:PORT or unix:FILE), and load no model. It is sent what the flags "
                "say, and --max-tokens or its default; for the rest the server's own defaults hold.",
            ),
            click.option("--api-key", help=f"The key that the server asks for [the variable {API_KEY}]."),
        ],
    )


def max_tokens_option(default: int | None, text: str) -> Callable[[F], F]:
    """--max-tokens, at least 1."""
    return click.option(
        "--max-tokens", type=click.IntRange(min=1), default=default, show_default=default is not None, help=text
    )


def model_options(command: F) -> F:
    """MODEL as an argument or as --model; `choose_model` joins them."""
    text = (
        f"Short name ({', '.join(SHORT_NAMES)}), org/name or org/name:Q4_K_M of the Hugging Face Hub, {PYPI}NAME, a "
        f"folder or a .gguf file [{DEFAULT_MODEL}]."
    )
    return _stack(
        command, [click.argument("model", required=False), click.option("--model", "-m", "model_flag", help=text)]
    )


def debug_option(command: F) -> F:
    """--debug: errors with their traceback."""

    def remember(ctx: click.Context, param: click.Parameter, value: bool) -> None:
        ctx.meta[_DEBUG] = value

    decorator: Callable[[F], F] = click.option(
        "--debug",
        is_flag=True,
        expose_value=False,
        is_eager=True,
        callback=remember,
        help="Show errors with a traceback.",
    )
    return decorator(command)


def wants_debug(ctx: click.Context) -> bool:
    """Whether the running command was given --debug."""
    return bool(ctx.meta.get(_DEBUG))


def explain(error: PeltonError) -> str:
    """The error's text with settings and parameters named by their flags; what files say stays as it is."""
    if isinstance(error, CheckpointError | UnsupportedModelError):
        return str(error)
    context = click.get_current_context(silent=True)
    written = {} if context is None else context.meta.get(_WRITTEN, {})

    def flag(match: "re.Match[str]") -> str:
        if match["set"]:
            if match["switch"]:
                return FLAG_OF[match["set"]].replace("--", "--" if match["switch"] == "True" else "--no-", 1)
            value = match["text"] or match["number"] or ""
            told = written.get(int(value), value) if match["number"] and len(value) < 20 else value
            return f"{FLAG_OF[match['set']]} {told}"
        return FLAG_OF[match["bare"] or match["holder"]]

    held = "override_generation_config: "
    if str(error).startswith(held):  # what stands in it is no flag
        return f"{FLAG_OF[held[:-2]]}: {str(error).removeprefix(held)}"
    text = _NAMED.sub(flag, str(error))
    asks_template = isinstance(error, RequestError) and "chat template" in error.remedy
    if asks_template and "--chat-template" not in text:
        return f"{text} The flag for it is --chat-template FILE."
    return text


def choose_model(argument: str | None, flag: str | None) -> str:
    """The model asked for, or the default one; a usage error if two different ones are, or one without a name."""
    if flag is not None and not flag.strip():
        raise click.UsageError("--model is empty.")
    if argument is not None and not argument.strip():
        raise click.UsageError("MODEL is empty.")
    if argument and flag and argument != flag:
        raise click.UsageError(f"Two models are given: {argument!r} and --model {flag!r}. Give one of them.")
    return argument or flag or DEFAULT_MODEL


def looks_like_model(text: str) -> bool:
    """Whether a lone argument means a model: a short name, pypi:NAME, what exists, or a path in form.

    Or a name of the Hub, such as org/name-7B; either/or is none.
    """
    of_hub = HUB_NAME.fullmatch(text) is not None and _MODEL_LIKE.search(text) is not None
    if text in SHORT_NAMES or text.startswith(PYPI) or _PATH_LIKE.fullmatch(text) or of_hub:
        return True
    try:
        return bool(text.strip()) and Path(text).exists()
    except (OSError, ValueError):  # too long for a file's name, or with a NUL
        return False


def engine_settings(flags: Flags) -> dict[str, object]:
    """The engine flags that were given, by the names LLM takes."""
    return {field.name: flags[field.name] for field in _engine_fields() if flags.get(field.name) is not None}


def sampling_settings(flags: Flags) -> dict[str, object]:
    """The sampling flags that were given, by the names SamplingParams takes."""
    table = (*SAMPLING_FLAGS, *COMPLETION_FLAGS)
    given = {name: flags[name] for _, name, _, _ in table if flags.get(name) not in (None, ())}
    if flags.get("ignore_eos"):
        given["ignore_eos"] = True
    return given
