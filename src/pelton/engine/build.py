"""build: from settings to a running engine. The only place that knows all parts; constructors just store.

Invariant: either everything stands, or what was opened is closed again.
"""

import logging
from contextlib import ExitStack
from dataclasses import dataclass, field

from pelton.backends import BACKENDS
from pelton.backends.backend import Backend, CompileOptions, Executable
from pelton.checkpoint.checkpoint import Checkpoint, open_checkpoint
from pelton.core.clock import Clock, SystemClock
from pelton.core.compat import refuse_conflicts
from pelton.core.config import EngineConfig
from pelton.core.counters import Counters
from pelton.core.errors import BackendError, CapacityError, RequestError, SettingError
from pelton.core.needs import Claim
from pelton.core.params import SamplingParams
from pelton.engine.capacity import CacheDemand, CacheSize, size_cache
from pelton.engine.engine import Engine
from pelton.engine.needs import chosen_needs
from pelton.engine.prompts import PromptLimits, RequestMaker
from pelton.engine.report import Phases, StartReport
from pelton.engine.session import Session
from pelton.kv import KV_CODECS
from pelton.kv.codec import UNCODED, KVCodec
from pelton.kv.pool import BlockPool
from pelton.models import build_module, config_notes
from pelton.program.module import Module
from pelton.program.passes import run_passes
from pelton.quant import SCHEMES, scheme_name
from pelton.quant.scheme import WeightFacts
from pelton.runner.rows import RowStates
from pelton.runner.runner import Runner
from pelton.sampling.choose import choose
from pelton.sampling.encode import encode
from pelton.sampling.recommended import default_params, recommendation_notes
from pelton.schedule import ORDERS
from pelton.schedule.order import Order
from pelton.schedule.scheduler import Scheduler
from pelton.tokenize.chat_template import ChatTemplate, build_chat_template
from pelton.tokenize.tokenizer import Tokenizer, build_tokenizer
from pelton.tokenize.vocabulary import check_vocabulary

_log = logging.getLogger("pelton")


@dataclass(frozen=True, slots=True)
class Parts:
    """A running engine and what its doors need; `opened` closes all of it, `templates` are those compiled so far."""

    session: Session
    requests: RequestMaker
    tokenizer: Tokenizer
    default_params: SamplingParams
    report: StartReport
    checkpoint: Checkpoint
    executable: Executable
    config: EngineConfig
    opened: ExitStack
    templates: dict[str | None, ChatTemplate] = field(default_factory=dict)

    def template(self, source: str | None = None) -> ChatTemplate:
        """The chat template: `source` if given, else the settings', else the checkpoint's; RequestError without any."""
        chosen = source or self.config.model.chat_template or self.checkpoint.chat_template
        if chosen not in self.templates:
            self.templates[chosen] = build_chat_template(chosen, self.checkpoint.special_tokens)
        return self.templates[chosen]

    def close(self) -> None:
        """Ends all requests and lets go of weights, KV memory and files; once is enough, twice is no error.

        In a forked process everything is the parent's and is let be.
        """
        self.session.close()
        if not self.session.forked:
            self.opened.close()


@dataclass(frozen=True, slots=True)
class _Chosen:
    """The techniques that settings name, before anything is opened."""

    backend: Backend
    codec: KVCodec
    order: Order


def build(config: EngineConfig, clock: Clock | None = None) -> Parts:
    """Everything for one model, ready to step. Raises PeltonErrors that say what does not work and what would.

    What the user should know although all is well is in the report's notes, and logged as warnings of "pelton".
    """
    clock = clock or SystemClock()
    phases = Phases(clock)
    chosen = _choose(config)
    with ExitStack() as opened:
        with phases.phase("open"):
            checkpoint = open_checkpoint(config.model.model, progress=True)
            opened.callback(checkpoint.close)
        with phases.phase("tokenizer"):
            tokenizer = _tokenizer(checkpoint, config.model.tokenizer)
            templates = _templates(config.model.chat_template, checkpoint)
        with phases.phase("program"):
            module = run_passes(build_module(checkpoint))
            scheme = scheme_name(module.storages.values())
            notes = _notes(checkpoint, tokenizer, module.vocab)
            refuse_conflicts(chosen_needs(scheme, config.cache.kv_codec))
        with phases.phase("compile"):
            executable = _compile(chosen.backend, module, config)
            opened.callback(executable.close)
        with phases.phase("cache"):
            _check_block(chosen.codec, module, executable, config)
            size = _size(chosen.backend, module, executable, config)
            executable.allocate(size.blocks)
        session = _session(executable, chosen.order, config, size, clock, tokenizer)
        ends = frozenset(token for token in checkpoint.special_tokens.eos_ids if token < module.vocab)
        limits = PromptLimits(module.vocab, session.engine.max_len, ends)
        weights = SCHEMES.get(scheme)().describe(module.storages.values(), exact=_exact(config))
        report = _report(chosen.backend, module, config, size, executable, phases, weights, notes)
        parts = Parts(
            session=session,
            requests=RequestMaker(tokenizer, limits, clock, config.seed),
            tokenizer=tokenizer,
            default_params=default_params(checkpoint.generation_config),
            report=report,
            checkpoint=checkpoint,
            executable=executable,
            config=config,
            opened=opened.pop_all(),
            templates=templates,
        )
    for note in report.notes:
        _log.warning("%s", note)
    return parts


def _choose(config: EngineConfig) -> _Chosen:
    """UnknownNameError for a name that no registry has; BackendError for a codec that no kernel knows."""
    backend = config.backend.backend
    codec = KV_CODECS.get(config.cache.kv_codec)()
    chosen = _Chosen(BACKENDS.get(backend)(), codec, ORDERS.get(config.schedule.scheduling_policy)())
    if codec.layout != UNCODED:
        raise BackendError(
            f"kv_codec={config.cache.kv_codec!r} stores keys and values as {codec.layout!r}, for which the {backend} "
            "backend has no kernel.",
            "Leave the setting out.",
        )
    return chosen


def _exact(config: EngineConfig) -> bool:
    return config.model.dtype == "float32"


def _check_block(codec: KVCodec, module: Module, executable: Executable, config: EngineConfig) -> None:
    """Asserts that the backend's blocks are as large as the codec says: what capacity is counted in."""
    element = 4 if _exact(config) else 2
    tokens = config.cache.block_size
    counted = sum(state.layers * codec.bytes_per_block(state.spec, tokens, element) for state in module.states.values())
    assert counted == executable.block_bytes, (
        f"a KV block takes {executable.block_bytes} bytes in the backend, {counted} by {config.cache.kv_codec}"
    )


def _notes(checkpoint: Checkpoint, tokenizer: Tokenizer, vocab: int) -> tuple[str, ...]:
    """CheckpointError where the tokenizer's own tokens are outside the model's vocabulary."""
    return (
        *config_notes(checkpoint.config),
        *recommendation_notes(checkpoint.generation_config),
        *check_vocabulary(tokenizer, checkpoint.special_tokens, vocab),
    )


def _templates(source: str | None, checkpoint: Checkpoint) -> dict[str | None, ChatTemplate]:
    """The settings' chat template, compiled, if there is one. The checkpoint's waits: who completes text needs none."""
    if not source:
        return {}
    try:
        return {source: build_chat_template(source, checkpoint.special_tokens)}
    except RequestError as error:
        raise SettingError(f"chat_template cannot work: {error.cause}", error.remedy) from error


def _compile(backend: Backend, module: Module, config: EngineConfig) -> Executable:
    schedule = config.schedule
    options = CompileOptions(
        max_tokens=schedule.max_num_batched_tokens,
        max_rows=min(schedule.max_num_seqs, schedule.max_num_batched_tokens),
        exact=_exact(config),
        threads=config.backend.threads,
        choose=choose,
    )
    return backend.compile(module, options)


def _size(backend: Backend, module: Module, executable: Executable, config: EngineConfig) -> CacheSize:
    demand = CacheDemand(
        context=module.context,
        asked=config.model.max_model_len,
        rows=config.schedule.max_num_seqs,
        block_size=config.cache.block_size,
        block_bytes=executable.block_bytes,
        free_memory=backend.machine(config.backend.threads).free_memory,
    )
    return size_cache(config.cache, demand)


def _session(
    executable: Executable,
    order: Order,
    config: EngineConfig,
    size: CacheSize,
    clock: Clock,
    tokenizer: Tokenizer,
) -> Session:
    block_size = config.cache.block_size
    scheduler = Scheduler(config.schedule, order, BlockPool(size.blocks), block_size, size.max_model_len)
    rows, length = config.schedule.max_num_seqs, scheduler.max_len
    try:
        states = RowStates(rows, length, block_size)
    except MemoryError as error:
        raise CapacityError(
            f"No memory for the token ids of max_num_seqs={rows} requests of max_model_len={length} tokens.",
            "Set one of them smaller.",
        ) from error
    engine = Engine(scheduler, Runner(executable, states, encode), clock, Counters())
    return Session(engine, tokenizer)


def _tokenizer(checkpoint: Checkpoint, other: str | None) -> Tokenizer:
    """The checkpoint's own, or that of another one by its reference."""
    if other is None:
        return build_tokenizer(checkpoint)
    source = open_checkpoint(other)
    try:
        return build_tokenizer(source)
    finally:
        source.close()


def _report(
    backend: Backend,
    module: Module,
    config: EngineConfig,
    size: CacheSize,
    executable: Executable,
    phases: Phases,
    weights: WeightFacts,
    notes: tuple[str, ...],
) -> StartReport:
    machine = backend.machine(config.backend.threads)
    found = [*notes, *machine.notes]
    if weights.needs.claim is Claim.LOSSY:
        found.append(f"The weights are not computed with as they are in the file: {weights.arithmetic}.")
    if size.note:
        found.append(size.note)
    return StartReport(
        model=config.model.model,
        weight_bytes=module.weight_bytes,
        dtype="float32" if _exact(config) else "bfloat16",
        kv_blocks=size.blocks,
        kv_block_bytes=executable.block_bytes,
        block_size=config.cache.block_size,
        max_model_len=size.max_model_len,
        backend=machine.name,
        isa=machine.isa,
        threads=config.backend.threads or machine.threads,
        phases=phases.taken,
        notes=tuple(found),
        weights=weights.sentence(),
    )
