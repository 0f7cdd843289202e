"""build: from settings to a running engine. The only place that knows all parts; constructors just store.

Invariant: either everything stands, or what was opened is closed again.
"""

from contextlib import ExitStack
from dataclasses import dataclass, field

from pelton.backends import BACKENDS
from pelton.backends.backend import Backend, CompileOptions, Executable
from pelton.checkpoint.checkpoint import Checkpoint, open_checkpoint
from pelton.core.clock import Clock, SystemClock
from pelton.core.config import EngineConfig
from pelton.core.counters import Counters
from pelton.core.params import SamplingParams
from pelton.engine.capacity import CacheDemand, CacheSize, size_cache
from pelton.engine.engine import Engine
from pelton.engine.prompts import PromptLimits, RequestMaker, default_params
from pelton.engine.report import Phases, StartReport
from pelton.engine.session import Session
from pelton.kv.pool import BlockPool
from pelton.models import build_module, config_notes
from pelton.program.module import Module
from pelton.program.passes import run_passes
from pelton.program.weights import MATRIX
from pelton.runner.rows import RowStates
from pelton.runner.runner import Runner
from pelton.sampling.choose import choose
from pelton.sampling.encode import encode
from pelton.schedule import ORDERS
from pelton.schedule.scheduler import Scheduler
from pelton.tokenize.chat_template import ChatTemplate, build_chat_template
from pelton.tokenize.tokenizer import Tokenizer, build_tokenizer

ROUNDED = ("F16", "F32")


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
        """Ends all requests and lets go of weights, KV memory and files; once is enough, twice is no error."""
        self.session.close()
        self.opened.close()


def build(config: EngineConfig, clock: Clock | None = None) -> Parts:
    """Everything for one model, ready to step. Raises PeltonErrors that say what does not work and what would."""
    clock = clock or SystemClock()
    phases = Phases(clock)
    with ExitStack() as opened:
        with phases.phase("open"):
            checkpoint = open_checkpoint(config.model.model, progress=True)
            opened.callback(checkpoint.close)
        with phases.phase("tokenizer"):
            tokenizer = _tokenizer(checkpoint, config.model.tokenizer)
        with phases.phase("program"):
            module = run_passes(build_module(checkpoint))
        with phases.phase("compile"):
            backend = BACKENDS.get(config.backend.backend)()
            executable = _compile(backend, module, config)
            opened.callback(executable.close)
        with phases.phase("cache"):
            size = _size(backend, module, executable, config)
            executable.allocate(size.blocks)
        session = _session(executable, config, size, clock, tokenizer)
        limits = PromptLimits(module.vocab, session.engine.max_len, frozenset(checkpoint.special_tokens.eos_ids))
        return Parts(
            session=session,
            requests=RequestMaker(tokenizer, limits, clock, config.seed),
            tokenizer=tokenizer,
            default_params=default_params(checkpoint.generation_config),
            report=_report(backend, module, config, size, executable, phases, config_notes(checkpoint.config)),
            checkpoint=checkpoint,
            executable=executable,
            config=config,
            opened=opened.pop_all(),
        )


def _compile(backend: Backend, module: Module, config: EngineConfig) -> Executable:
    schedule = config.schedule
    options = CompileOptions(
        max_tokens=schedule.max_num_batched_tokens,
        max_rows=min(schedule.max_num_seqs, schedule.max_num_batched_tokens),
        exact=config.model.dtype == "float32",
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
        free_memory=backend.machine().free_memory,
    )
    return size_cache(config.cache, demand)


def _session(
    executable: Executable, config: EngineConfig, size: CacheSize, clock: Clock, tokenizer: Tokenizer
) -> Session:
    block_size = config.cache.block_size
    order = ORDERS.get(config.schedule.scheduling_policy)()
    scheduler = Scheduler(config.schedule, order, BlockPool(size.blocks), block_size, size.max_model_len)
    states = RowStates(config.schedule.max_num_seqs, scheduler.max_len, block_size)
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
    notes: tuple[str, ...],
) -> StartReport:
    machine = backend.machine()
    exact = config.model.dtype == "float32"
    found = [*notes, *machine.notes]
    rounded = _rounded(module)
    if rounded and not exact:
        found.append(f"{rounded} F16 or F32 matrices are rounded to bf16; dtype float32 keeps them as they are")
    if size.note:
        found.append(size.note)
    return StartReport(
        model=config.model.model,
        weight_bytes=module.weight_bytes,
        dtype="float32" if exact else "bfloat16",
        kv_blocks=size.blocks,
        kv_block_bytes=executable.block_bytes,
        block_size=config.cache.block_size,
        max_model_len=size.max_model_len,
        backend=machine.name,
        isa=machine.isa,
        threads=config.backend.threads or machine.threads,
        phases=phases.taken,
        notes=tuple(found),
    )


def _rounded(module: Module) -> int:
    """Matrices whose file precision bf16 does not hold."""
    return sum(
        view.use == MATRIX and module.storages[view.storage].format in ROUNDED for view in module.weights.values()
    )
