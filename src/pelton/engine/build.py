"""build: from settings to a running engine. The only place that knows all parts; constructors just store.

Invariant: either everything stands, or what was opened is closed again.
"""

import logging
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial

from pelton.backends import BACKENDS
from pelton.backends.backend import Backend, CompileOptions, Executable, Machine
from pelton.checkpoint.checkpoint import Checkpoint, open_checkpoint
from pelton.core.clock import Clock, SystemClock
from pelton.core.compat import refuse_conflicts
from pelton.core.config import EngineConfig
from pelton.core.counters import Counters
from pelton.core.errors import BackendError, CapacityError
from pelton.core.needs import Claim
from pelton.engine.capacity import CacheDemand, CacheSize, size_cache
from pelton.engine.engine import Engine
from pelton.engine.front import Front, build_front
from pelton.engine.load.budget import StepBudget, choose_budget, timed_budget
from pelton.engine.load.calibrate import timed_steps
from pelton.engine.load.weights import owner_weights
from pelton.engine.memory.disk import close_disk, disk_line, fingerprint, keep_when_idle, open_disk
from pelton.engine.memory.host_space import host_slots, host_use
from pelton.engine.memory.slots import Slots
from pelton.engine.needs import check_names, chosen_needs
from pelton.engine.open_request import namespace_of
from pelton.engine.prompts import PromptLimits, RequestMaker
from pelton.engine.report import Phases, StartReport
from pelton.engine.session import Session
from pelton.kv import KV_CODECS
from pelton.kv.codec import UNCODED, KVCodec
from pelton.kv.group import KVGroup
from pelton.kv.pool import BlockPool
from pelton.kv.tiers.worker import DiskWorker
from pelton.models import arch_for, build_module
from pelton.models.overrides import overridden, override_config, override_notes
from pelton.models.standard import length_notes
from pelton.program.coordinates import coordinates
from pelton.program.costs import context_cost
from pelton.program.module import Module
from pelton.program.passes import run_passes
from pelton.program.passes.activations import NEEDS, described, with_activations
from pelton.quant import SCHEMES, method_for, scheme_name
from pelton.quant.load import quantised, with_form
from pelton.quant.scheme import WeightFacts
from pelton.runner.rows import RowStates
from pelton.runner.runner import Runner
from pelton.sampling.choose import choose
from pelton.sampling.encode import encode
from pelton.schedule import ORDERS
from pelton.schedule.order import Order
from pelton.schedule.scheduler import Scheduler, holdings_of

_log = logging.getLogger("pelton")


@dataclass(frozen=True, slots=True)
class EngineParts:
    """An engine and what must be known of it elsewhere; it speaks token ids and needs no tokenizer. `fingerprint`: see
    memory/disk.py; it may take a while, and is empty for an engine that was made from no files.
    """

    engine: Engine
    executable: Executable
    report: StartReport
    limits: PromptLimits
    config: EngineConfig
    opened: ExitStack
    slots: Slots | None = None
    fingerprint: Callable[[], bytes] = bytes

    @property
    def notes(self) -> tuple[str, ...]:
        """What the user should know although all is well."""
        return self.report.notes

    def close(self) -> None:
        """Lets go of weights, KV memory and files; once is enough, twice is no error."""
        self.opened.close()


@dataclass(frozen=True, slots=True)
class Parts:
    """A running engine with its door, in one process."""

    session: Session
    requests: RequestMaker
    front: Front
    report: StartReport
    inner: EngineParts

    def close(self) -> None:
        """Ends all requests and lets go of everything; once is enough, twice is no error.

        In a forked process everything is the parent's and is let be.
        """
        self.session.close()
        if not self.session.forked:
            self.inner.close()


@dataclass(frozen=True, slots=True)
class _Chosen:
    """The techniques that settings name, before anything is opened."""

    backend: Backend
    codec: KVCodec
    order: Order


def build(config: EngineConfig, clock: Clock | None = None) -> Parts:
    """Everything for one model in this process, ready to step: build_engine and build_front over one open checkpoint.

    What the user should know although all is well is in the report's notes, and logged as warnings of "pelton".
    """
    clock = clock or SystemClock()
    phases = Phases(clock)
    chosen = _choose(config)
    with ExitStack() as opened:
        checkpoint = _open(config, phases, opened)
        with phases.phase("tokenizer"):
            front = build_front(config, checkpoint)
        inner = _build(config, chosen, checkpoint, clock, phases)
        opened.push(inner.opened)
        notes = (*front.notes, *front.fit(inner.limits), *inner.notes)
        parts = Parts(
            session=Session(inner.engine, front.tokenizer),
            requests=front.maker(inner.limits, clock),
            front=front,
            report=replace(inner.report, notes=notes),
            inner=replace(inner, opened=opened.pop_all()),
        )
    for note in notes:
        _log.warning("%s", note)
    return parts


def build_engine(config: EngineConfig, clock: Clock | None = None, backend: Backend | None = None) -> EngineParts:
    """The engine for one model, ready to step. Raises PeltonErrors that say what does not work and what would.

    `backend`: one to run on in place of that which the settings name.
    """
    clock = clock or SystemClock()
    phases = Phases(clock)
    chosen = _choose(config)
    if backend is not None:
        chosen = replace(chosen, backend=backend)
    with ExitStack() as opened:
        checkpoint = _open(config, phases, opened)
        inner = _build(config, chosen, checkpoint, clock, phases)
        opened.push(inner.opened)
        return replace(inner, opened=opened.pop_all())


def model_windows(config: EngineConfig) -> tuple[int, ...]:
    """The windows of the model's layers, each size once, from its headers; no weights are read."""
    with ExitStack() as opened:
        checkpoint = _open(config, Phases(SystemClock()), opened)
        with overridden(config.model.hf_overrides):
            module = build_module(checkpoint, config.model.max_model_len)
        return tuple(sorted({window for window in _windows(module) if window is not None}))


def _open(config: EngineConfig, phases: Phases, opened: ExitStack) -> Checkpoint:
    with phases.phase("open"):
        checkpoint = open_checkpoint(config.model.model, config.fetch, progress=True)
        opened.callback(checkpoint.close)
        return replace(checkpoint, config=override_config(checkpoint.config, config.model.hf_overrides))


def _build(config: EngineConfig, chosen: _Chosen, checkpoint: Checkpoint, clock: Clock, phases: Phases) -> EngineParts:
    """The engine over an open checkpoint, which must stay open; `opened` of the result closes all but that."""
    with ExitStack() as opened:
        with phases.phase("program"), overridden(config.model.hf_overrides):
            module, changes = _module(checkpoint, config)
            scheme = scheme_name(module.storages.values())
            needs = chosen_needs(scheme, config.cache.kv_codec, config.model.quantization)
            refuse_conflicts({**needs, f"activations {config.model.activations}": NEEDS[config.model.activations]})
            budget = _budget(chosen.backend, module, config)
            config = _costed(replace(config, schedule=budget.of(config.schedule)), module)
        with phases.phase("compile"):
            executable = _compile(chosen.backend, module, config)
            opened.callback(executable.close)
        machine = chosen.backend.machine(config.backend.threads)
        with phases.phase("cache"):
            _check_block(chosen.codec, module, executable, config)
            size = _size(machine, module, executable, config)
            executable.allocate(size.blocks)
            executable.blocks().reserve(size.slots)
            budget, config = _timed(budget, config, executable, module, clock)
        disk = None
        if config.cache.kv_disk_bytes:
            with phases.phase("disk"):
                disk = open_disk(config, fingerprint(config, module, checkpoint, executable), executable, clock)
            opened.callback(disk.close)
        engine = _engine(executable, chosen.order, config, size, module, clock, disk)
        opened.callback(engine.runner.close)
        if disk is not None:
            opened.callback(close_disk, disk, engine.scheduler, executable, clock)
            engine.scheduler.tiers.on_idle = partial(keep_when_idle, engine.scheduler, executable, disk.files)
        digest = partial(fingerprint, config, module, checkpoint, executable)
        namespace = partial(namespace_of, bytes.fromhex(coordinates(module)))
        slots = Slots(holdings_of(engine.scheduler), executable, digest, namespace, clock)
        opened.callback(slots.close)
        ends = frozenset(token for token in checkpoint.special_tokens.eos_ids if token < module.vocab)
        weights = SCHEMES.get(scheme)().describe(
            module.storages.values(), exact=_exact(config), inputs=described(module)
        )
        record = arch_for(checkpoint.config).config(checkpoint.config)
        told = (*override_notes(config.model.hf_overrides), *record.notes)
        positions = length_notes(record, config.model.max_model_len)
        notes = (*told, *positions, *machine.notes, *changes, *_lossy(weights), *size.notes)
        report = _report(machine, module, config, size, executable, phases, weights, notes)
        return EngineParts(
            engine=engine,
            executable=executable,
            report=replace(report, step=budget.why, disk=disk_line(disk, config.cache.kv_disk_bytes)),
            limits=PromptLimits(module.vocab, engine.scheduler.max_len, ends),
            config=config,
            slots=slots,
            fingerprint=digest,
            opened=opened.pop_all(),
        )


def _module(checkpoint: Checkpoint, config: EngineConfig) -> tuple[Module, tuple[str, ...]]:
    """The model's ops and weights as settings want them, and what the user should know of that."""
    module = run_passes(build_module(checkpoint, config.model.max_model_len))
    notes: tuple[str, ...] = ()
    if config.model.quantization is not None:
        module, notes = quantised(module, method_for("quantization", config.model.quantization))
    module, lossy = with_activations(with_form(module, config.model.linear_form), config.model.activations)
    return module, (*checkpoint.notes, *notes, *lossy)


def _costed(config: EngineConfig, module: Module) -> EngineConfig:
    """With the model's own context_cost, where none is set."""
    if config.schedule.context_cost is not None:
        return config
    return replace(config, schedule=replace(config.schedule, context_cost=context_cost(module)))


def _budget(backend: Backend, module: Module, config: EngineConfig) -> StepBudget:
    """How many tokens a step takes. What is kept of a machine is of the default arithmetic."""
    rates, rounded = None, config.model.activations == "int8"
    if config.schedule.itl_target_ms and config.schedule.max_num_seqs > 1 and not _exact(config):
        rates = backend.rates(config.backend.threads, module.weight_bytes, rounded=rounded)
    return choose_budget(module, config.schedule, rates)


def _timed(
    budget: StepBudget, config: EngineConfig, executable: Executable, module: Module, clock: Clock
) -> tuple[StepBudget, EngineConfig]:
    """By steps of the executable, where nobody has measured the machine."""
    if not budget.open:
        return budget, config
    found = timed_budget(budget, config.schedule, *timed_steps(executable, module.vocab, clock))
    return found, replace(config, schedule=found.of(config.schedule))


def _order(config: EngineConfig) -> Order:
    """The order of requests, with the weights of their owners."""
    order = ORDERS.get(config.schedule.scheduling_policy)()
    if config.schedule.fairness_weights is not None:
        order.weigh(owner_weights(config.schedule.fairness_weights))
    return order


def _choose(config: EngineConfig) -> _Chosen:
    """UnknownNameError for a name that no registry has; BackendError for a codec that no kernel knows, and for a
    backend whose packages are not installed.
    """
    check_names(config)
    backend = config.backend.backend
    codec = KV_CODECS.get(config.cache.kv_codec)()
    chosen = _Chosen(BACKENDS.get(backend)(), codec, _order(config))
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
    states = module.states.values()
    counted = tuple(state.layers * codec.bytes_per_block(state.spec, tokens, element) for state in states)
    assert counted == executable.block_bytes, (
        f"a KV block takes {executable.block_bytes} bytes in the backend, {counted} by {config.cache.kv_codec}"
    )


def _lossy(weights: WeightFacts) -> tuple[str, ...]:
    if weights.needs.claim is not Claim.LOSSY:
        return ()
    return (f"The weights are not computed with as they are in the file: {weights.arithmetic}.",)


def _compile(backend: Backend, module: Module, config: EngineConfig) -> Executable:
    schedule = config.schedule
    options = CompileOptions(
        max_tokens=schedule.max_num_batched_tokens,
        max_rows=schedule.max_num_batched_tokens,  # each token's logits are wanted where a prompt is scored
        exact=_exact(config),
        threads=config.backend.threads,
        choose=choose,
        packed_cache_bytes=config.backend.packed_cache_bytes,
    )
    return backend.compile(module, options)


def _size(machine: Machine, module: Module, executable: Executable, config: EngineConfig) -> CacheSize:
    demand = CacheDemand(
        context=module.context,
        asked=config.model.max_model_len,
        rows=config.schedule.max_num_seqs,
        block_size=config.cache.block_size,
        block_bytes=executable.block_bytes,
        free_memory=max(machine.free_memory - executable.memory.activations, 0),
        windows=_windows(module),
        step=config.schedule.max_num_batched_tokens,
    )
    size = size_cache(config.cache, demand)
    return replace(size, slots=host_slots(config.cache, size, demand))


def _windows(module: Module) -> tuple[int | None, ...]:
    """How far back the layers of each KV group look."""
    return tuple(state.spec.window for state in module.states.values())


def _engine(
    executable: Executable,
    order: Order,
    config: EngineConfig,
    size: CacheSize,
    module: Module,
    clock: Clock,
    disk: DiskWorker | None,
) -> Engine:
    block_size, windows = config.cache.block_size, _windows(module)
    kinds = zip(size.blocks, windows, size.slots, executable.block_bytes, strict=True)
    groups = [KVGroup(BlockPool(blocks), window, slots, each) for blocks, window, slots, each in kinds]
    scheduler = Scheduler(config.schedule, config.cache, order, groups, block_size, size.max_model_len, disk)
    rows, length = config.schedule.max_num_seqs, scheduler.max_len
    try:
        states = RowStates(rows, length, block_size, windows)
    except MemoryError as error:
        raise CapacityError(
            f"No memory for the token ids of max_num_seqs={rows} requests of max_model_len={length} tokens.",
            "Set one of them smaller.",
        ) from error
    system = bytes.fromhex(coordinates(module))
    return Engine(scheduler, Runner(executable, states, encode), clock, Counters(), block_size, system)


def _report(
    machine: Machine,
    module: Module,
    config: EngineConfig,
    size: CacheSize,
    executable: Executable,
    phases: Phases,
    weights: WeightFacts,
    notes: tuple[str, ...],
) -> StartReport:
    return StartReport(
        model=config.model.model,
        weight_bytes=module.weight_bytes,
        dtype="float32" if _exact(config) else "bfloat16",
        kv_groups=tuple(zip(size.blocks, executable.block_bytes, _windows(module), strict=True)),
        block_size=config.cache.block_size,
        max_model_len=size.max_model_len,
        backend=machine.name,
        isa=machine.isa,
        threads=config.backend.threads or machine.threads,
        phases=phases.taken,
        notes=notes,
        weights=weights.sentence(),
        activation_bytes=executable.memory.activations,
        held_bytes=executable.memory.weights,
        max_num_seqs=config.schedule.max_num_seqs,
        max_num_batched_tokens=config.schedule.max_num_batched_tokens,
        placing=machine.placing,
        host_slots=size.slots,
        host_use=host_use(config.cache),
    )
