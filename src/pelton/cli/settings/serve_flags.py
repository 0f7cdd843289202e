"""The settings of `pelton serve`: one table for its flags, its configuration file and the environment.

The engine's come from the config sections, the door's from ServeSettings, with their names. It parses values; what they
may be is checked by those. Invariant: each setting has one name everywhere: a flag with hyphens, a key, a variable.
"""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from enum import Enum
from pathlib import Path

import click

from pelton.cli.options import ENGINE_HELP, ENGINE_SECTIONS, FETCH_FLAGS, parse_length, parse_size
from pelton.cli.terminal import decode_text
from pelton.core.errors import RequestError
from pelton.serve.settings import ServeSettings
from pelton.tokenize.chat_template import ChatTemplate


class Kind(Enum):
    """What a setting's value is."""

    TEXT = "text"
    WORD = "a word"
    WHOLE = "a whole number"
    NUMBER = "a number"
    SWITCH = "true or false"
    SIZE = "a number of bytes such as 1048576, 512M or 1.5G"
    SEVERAL = "a text or a list of texts"
    LENGTH = "a whole number or auto"
    TABLE = "a table (JSON)"
    TEMPLATE = "a file with a chat template"


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting. `field`: of the engine's sections or of ServeSettings (`door`)."""

    name: str
    kind: Kind
    text: str
    group: str
    field: str
    door: bool = False
    default: object = None

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def help(self) -> str:
        """The text with the default, where there is one worth to tell."""
        untold = self.default in (None, "", ()) or isinstance(self.default, bool) or "[" in self.text
        if untold:
            return self.text
        default = ", ".join(self.default) if isinstance(self.default, tuple) else self.default
        return f"{self.text} [{default:g}]" if isinstance(default, float) else f"{self.text} [{default}]"


MODEL, FETCH, MEMORY, SCHEDULE, SAMPLING, DOOR, REQUESTS, LOGS = (
    "Model and arithmetic",
    "Fetching the model",
    "Memory for keys and values",
    "Requests that share the machine",
    "Sampling, where a request says nothing",
    "The server's address and its doors",
    "Answers",
    "Logs and stopping",
)
_GROUPS: Mapping[str, str] = {
    **dict.fromkeys(("tokenizer", "dtype", "max_model_len", "chat_template", "backend", "threads"), MODEL),
    **dict.fromkeys(("hf_overrides", "quantization", "linear_form", "activations", "packed_cache_bytes"), MODEL),
    **dict.fromkeys(FETCH_FLAGS, FETCH),
    **dict.fromkeys(("max_num_seqs", "max_num_batched_tokens", "long_prefill_token_threshold"), SCHEDULE),
    **dict.fromkeys(("context_cost", "itl_target_ms", "fairness_weights"), SCHEDULE),
    **dict.fromkeys(("max_num_queued_reqs", "scheduling_policy", "max_steps_per_call", "planning_depth"), SCHEDULE),
    **dict.fromkeys(("generation_config", "override_generation_config"), SAMPLING),
}
_TEXTS = {"block_size": "Tokens in a block.", "max_num_seqs": "Requests computed at once."}
_ENGINE_KINDS = {
    "kv_cache_memory_bytes": Kind.SIZE,
    "packed_cache_bytes": Kind.SIZE,
    "swap_space_bytes": Kind.SIZE,
    "kv_disk_bytes": Kind.SIZE,
    "max_model_len": Kind.LENGTH,
    "context_cost": Kind.NUMBER,
    "override_generation_config": Kind.TABLE,
    "fairness_weights": Kind.TABLE,
    "hf_overrides": Kind.TABLE,
    "chat_template": Kind.TEMPLATE,
}

# name, kind, group, help; the field of ServeSettings is the same but for those in _FIELDS
_DOOR: tuple[tuple[str, Kind, str, str], ...] = (
    ("host", Kind.TEXT, DOOR, "Address to listen on; 0.0.0.0: all of this machine's."),
    ("port", Kind.WHOLE, DOOR, "Port to listen on; 0: any free one."),
    ("uds", Kind.TEXT, DOOR, "Listen on this Unix socket instead."),
    ("api_key", Kind.SEVERAL, DOOR, "Ask clients for this key; may be given several times."),
    ("root_path", Kind.TEXT, DOOR, "Path under which a proxy shows the server."),
    ("allowed_origins", Kind.SEVERAL, DOOR, "Let pages of this origin call the server (*: of any)."),
    ("ssl_keyfile", Kind.TEXT, DOOR, "Key file, for HTTPS."),
    ("ssl_certfile", Kind.TEXT, DOOR, "Certificate file, for HTTPS."),
    ("served_model_name", Kind.SEVERAL, REQUESTS, "Name of the model for clients; several may be given [MODEL]."),
    ("strict", Kind.SWITCH, REQUESTS, "Refuse requests with unknown fields."),
    ("enable_force_include_usage", Kind.SWITCH, REQUESTS, "End every stream with its numbers of tokens."),
    ("sse_keep_alive_interval", Kind.NUMBER, REQUESTS, "Seconds between signs of life on a silent stream; 0: none."),
    ("max_body_bytes", Kind.SIZE, REQUESTS, "Largest request taken [64M]."),
    ("max_head_bytes", Kind.SIZE, REQUESTS, "Most of a request's URL and headers together [64K]."),
    (
        "client_timeout",
        Kind.NUMBER,
        REQUESTS,
        "Seconds that a client may take for a request's headers, and be silent in its body; 0: any time.",
    ),
    ("request_timeout", Kind.NUMBER, REQUESTS, "Seconds that a request may take that does not say; 0: any time."),
    ("trust_request_chat_template", Kind.SWITCH, REQUESTS, "Let requests bring a chat template."),
    ("show_cached_tokens", Kind.SWITCH, REQUESTS, "Let /kv/tree tell the tokens of cached prompts."),
    (
        "slot_save_path",
        Kind.TEXT,
        REQUESTS,
        "Folder to which POST /slots/N saves what a slot holds; without it none is.",
    ),
    ("enable_log_requests", Kind.SWITCH, LOGS, "Log each request."),
    ("disable_access_log", Kind.SWITCH, LOGS, "Do not log each answer's status."),
    ("log_level", Kind.WORD, LOGS, "What the server logs: critical, error, warning, info or debug."),
    ("shutdown_timeout", Kind.NUMBER, LOGS, "Seconds that open requests get to end when the server is stopped."),
    ("watchdog_timeout", Kind.NUMBER, LOGS, "Seconds after which a silent engine is started again."),
)
_FIELDS = {"api_key": "api_keys", "served_model_name": "served_model_names"}


def _table() -> dict[str, Setting]:
    """All settings by name."""
    found = [Setting("model", Kind.TEXT, "The model, as MODEL says it.", MODEL, "model")]
    for section in ENGINE_SECTIONS:
        for item in fields(section):
            if item.name == "model":
                continue
            kind = _ENGINE_KINDS.get(item.name) or _kind(item.type)
            text = _TEXTS.get(item.name) or ENGINE_HELP[item.name]
            group = _GROUPS.get(item.name, MEMORY)
            found.append(Setting(item.name, kind, text, group, item.name, default=item.default))
    text = "Makes the seeds of requests without one repeatable."
    found.append(Setting("seed", Kind.WHOLE, text, SAMPLING, "seed"))
    defaults = {item.name: item.default for item in fields(ServeSettings)}
    for name, kind, group, text in _DOOR:
        field = _FIELDS.get(name, name)
        found.append(Setting(name, kind, text, group, field, door=True, default=defaults[field]))
    return {setting.name: setting for setting in found}


def _kind(kind: object) -> Kind:
    if kind is bool:
        return Kind.SWITCH
    return Kind.WHOLE if kind in (int, int | None) else Kind.TEXT


def parse(kind: Kind, raw: object) -> object:
    """The value of a setting as text (flags, variables) or as YAML has it; ValueError where it cannot be one."""
    return _PARSERS[kind](raw)


def _text(raw: object) -> str:
    if not isinstance(raw, str):
        raise ValueError
    return raw


def _whole(raw: object) -> int:
    if isinstance(raw, bool) or not isinstance(raw, (int, str)) or (isinstance(raw, str) and len(raw) > 30):
        raise ValueError
    return int(raw)


def _number(raw: object) -> float:
    if isinstance(raw, bool) or not isinstance(raw, (int, float, str)):
        raise ValueError
    number = float(raw)
    if math.isnan(number):
        raise ValueError
    return number


def _switch(raw: object) -> bool:
    if isinstance(raw, bool):
        return raw
    known = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
    return known[str(raw).strip().lower()]


def _size(raw: object) -> int:
    if isinstance(raw, bool) or not isinstance(raw, (int, str)):
        raise ValueError
    return parse_size(str(raw))


def _several(raw: object) -> tuple[str, ...]:
    """A list, a text with a JSON list, or one text."""
    if isinstance(raw, str) and raw.lstrip().startswith("["):
        raw = json.loads(raw)
    listed = raw if isinstance(raw, (list, tuple)) else [raw]
    return tuple(_text(item) for item in listed)


def _length(raw: object) -> object:
    return parse_length(raw) if isinstance(raw, str) and len(raw) <= 30 else _whole(raw)


def _json(raw: object) -> str:
    """What a text holds is checked by whoever reads the table."""
    return json.dumps(raw) if isinstance(raw, dict) else _text(raw)


def _template(raw: object) -> str:
    try:
        return template_text(_text(raw), "The file")
    except RequestError as error:
        raise click.BadParameter(str(error)) from error


def template_text(file: str, written: str) -> str:
    """The text of a chat template's file; RequestError naming the setting as `written` if it is none."""
    try:
        text = decode_text(Path(file).read_bytes(), written)
    except OSError as error:
        raise RequestError(f"{written} cannot be read: {error.strerror}.", "Give a file with a template.") from error
    if not text.strip():
        raise RequestError(f"{written} is empty.", "Leave it out to use the model's own.")
    try:
        ChatTemplate(text)
    except RequestError as error:
        raise RequestError(f"{written}: {error.cause}", error.remedy) from error
    return text


_PARSERS: Mapping[Kind, Callable[[object], object]] = {
    Kind.TEXT: _text,
    Kind.WORD: lambda raw: _text(raw).strip().lower(),
    Kind.WHOLE: _whole,
    Kind.NUMBER: _number,
    Kind.SWITCH: _switch,
    Kind.SIZE: _size,
    Kind.SEVERAL: _several,
    Kind.LENGTH: _length,
    Kind.TABLE: _json,
    Kind.TEMPLATE: _template,
}
WRONG = (ValueError, KeyError, OverflowError, RecursionError, click.BadParameter)  # what parse raises
SETTINGS = _table()
