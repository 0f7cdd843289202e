"""Starts a model for verify: prompts become tokens, and the engine is made as large as they need. It verifies nothing.

Invariant: every prompt that comes out of here fits, whole and with its answer, into one step and into the model.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from pelton.core.clock import Clock, SystemClock
from pelton.core.config import EngineConfig
from pelton.core.errors import RequestError
from pelton.engine.build import EngineParts, build_engine, model_windows
from pelton.engine.front import Front, build_front
from pelton.engine.prompts import check_conversation
from pelton.engine.report import StartReport
from pelton.measure.verify.cases import WAYS, Cases, Prompt
from pelton.measure.verify.prompts import PromptReader, built_in, check_prompts, clipped
from pelton.measure.verify.rig import Rig, Sizes

ROWS = 16
STEP_TOKENS = 256  # of a step at least
ROOM = 64  # tokens of a step beside the longest prompt
SEQUENCES = 12  # for so many of the longest prompts and answers there are blocks


@dataclass(frozen=True, slots=True)
class Ready:
    """A loaded model with what is to be asked of it. `close` lets its memory go. `fingerprint`: see EngineParts."""

    rig: Rig
    cases: Cases
    report: StartReport
    close: Callable[[], None]
    fingerprint: Callable[[], bytes]


def start(
    config: EngineConfig,
    *,
    max_tokens: int,
    lines: Iterable[str] | None = None,
    source: str = "prompts",
    clock: Clock | None = None,
) -> Ready:
    """The settings' model, our own prompts, and those in `lines` (read from `source`).

    Raises RequestError for bad lines and prompts that do not fit, and whatever starting an engine raises.
    """
    clock = clock or SystemClock()
    front = build_front(config)
    own = built_in(lambda text: _text_ids(front, text), model_windows(config))
    given = [] if lines is None else _reader(front).read(lines, source)
    sized = fitted(config, [*own, *given], max_tokens)
    parts = build_engine(sized, clock)
    try:
        longest = parts.limits.max_len - max_tokens
        if longest < 1:
            raise RequestError(
                f"max_tokens={max_tokens} leaves no room for a prompt: the model takes {parts.limits.max_len} tokens.",
                f"Set at most {parts.limits.max_len - 1}.",
                param="max_tokens",
            )
        front.fit(parts.limits)
        check_prompts(given, vocab=parts.limits.vocab, longest=longest)
        cases = Cases((*given, *clipped(own, longest)), WAYS, max_tokens, parts.limits.end_ids)
        return Ready(rig_of(parts, sized, clock), cases, parts.report, parts.close, parts.fingerprint)
    except BaseException:
        parts.close()
        raise


def fitted(config: EngineConfig, prompts: Sequence[Prompt], max_tokens: int) -> EngineConfig:
    """The settings with steps and KV memory as large as these prompts need; memory that is set stays as it is."""
    longest = max(map(len, prompts))
    blocks = SEQUENCES * (-(-(longest + max_tokens) // config.cache.block_size) + 1)
    blocks = max(blocks, -(-(config.model.max_model_len or 0) // config.cache.block_size))
    tokens = max(STEP_TOKENS, longest + ROOM)
    schedule = replace(config.schedule, max_num_seqs=ROWS, max_num_batched_tokens=tokens, itl_target_ms=None)
    cache = config.cache
    if cache.num_blocks is None and cache.kv_cache_memory_bytes is None:
        cache = replace(cache, num_blocks=blocks)
    return replace(config, schedule=schedule, cache=cache)


def rig_of(parts: EngineParts, config: EngineConfig, clock: Clock) -> Rig:
    """Engines over the executable that was built with these settings."""
    sizes = Sizes(
        tokens=config.schedule.max_num_batched_tokens,
        rows=config.schedule.max_num_seqs,
        groups=tuple((blocks - 1, window) for blocks, _, window in parts.report.kv_groups),
        block_size=parts.report.block_size,
        max_len=parts.limits.max_len,
        slots=parts.report.host_slots,
    )
    return Rig(parts.executable, sizes, clock)


def _reader(front: Front) -> PromptReader:
    return PromptReader(lambda text: _text_ids(front, text), lambda messages: _message_ids(front, messages))


def _text_ids(front: Front, text: str) -> Sequence[int]:
    return front.tokenizer.encode_prompt(text, special=True, param="prompt")


def _message_ids(front: Front, messages: Sequence[Mapping[str, object]]) -> Sequence[int]:
    check_conversation(messages)
    text = front.template().render(messages, add_generation_prompt=True)
    return front.tokenizer.encode(text, special=True, param="messages")
