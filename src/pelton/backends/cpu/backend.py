"""CpuBackend: compiles a Module into native calls."""

from pelton.backends.backend import CompileOptions, Machine, Rates
from pelton.backends.cpu import _native
from pelton.backends.cpu.emit import Emitter, refusal
from pelton.backends.cpu.executable import CpuExecutable
from pelton.backends.cpu.machine import choose_isa, machine, worker_cores
from pelton.backends.cpu.packed import PackedCache
from pelton.backends.cpu.probe.cached import load
from pelton.backends.cpu.probe.figures import FLOAT, INT8
from pelton.backends.cpu.probe.identity import identify
from pelton.backends.cpu.probe.limits import matrix_rate, read_rate
from pelton.core.errors import BackendError, CapacityError
from pelton.program.module import Module
from pelton.program.op import Op

MAX_VOCAB = 1 << 19  # the integer masses of top-p would not fit 64 bits (docs/decisions/002)


class CpuBackend:
    """Runs on any CPU; the kernels of the best instruction set are chosen at run time and give the same bits on all."""

    def refuses(self, op: Op) -> str | None:
        return refusal(op)

    def compile(self, module: Module, options: CompileOptions) -> CpuExecutable:
        """Packs the weights (each mapped page is read once and let go) and starts the worker threads."""
        ops = module.entries[options.entry].ops
        refusals = [f"{op.kind}: {why}" for op in ops if (why := refusal(op, module.states))]
        if module.vocab >= MAX_VOCAB:
            refusals.append(f"a vocabulary of {module.vocab} tokens, {MAX_VOCAB} or more")
        if refusals:
            raise BackendError("The CPU backend cannot run this model: " + "; ".join(sorted(set(refusals))) + ".")
        isa, _ = choose_isa()
        cores = worker_cores(options.threads)
        try:
            native = _native.Executable(isa, cores, options.max_tokens, options.max_rows, module.vocab, options.exact)
        except RuntimeError as error:
            what = "1 thread" if len(cores) == 1 else f"{len(cores)} threads"
            raise BackendError(f"{what} cannot be started: {error}.", "Set fewer threads.") from error
        cache = PackedCache(options.packed_cache_bytes)
        emitter = Emitter(native, module, options.entry, options.max_tokens, options.exact, cache)
        try:
            emitter.emit()
        except MemoryError as error:
            raise CapacityError(
                f"No memory for {module.weight_bytes >> 20} MiB of weights and steps of {options.max_tokens} tokens.",
                "Take a smaller model, or a smaller max_num_batched_tokens.",
            ) from error
        return CpuExecutable(native, module, options, emitter.keeper)

    def machine(self, threads: int = 0) -> Machine:
        return machine(threads)

    def rates(self, threads: int, working_set: int, *, rounded: bool = False) -> Rates | None:
        """Of the kept probe."""
        probe = load(identify(threads))
        if probe is None:
            return None
        inputs = INT8 if rounded and any(rate.inputs == INT8 for rate in probe.products) else FLOAT
        read = read_rate(probe, working_set, len(worker_cores(threads)))
        return Rates(read, matrix_rate(probe, inputs), f"probed {probe.date}{probe.mark}", probe.busy)
