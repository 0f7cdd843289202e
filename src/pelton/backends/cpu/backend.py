"""CpuBackend: compiles a Module into native calls."""

from pelton.backends.backend import CompileOptions, Machine
from pelton.backends.cpu import _native
from pelton.backends.cpu.emit import Emitter, refusal
from pelton.backends.cpu.executable import CpuExecutable
from pelton.backends.cpu.machine import choose_isa, machine, worker_cores
from pelton.core.errors import BackendError
from pelton.program.module import Module
from pelton.program.op import Op


class CpuBackend:
    """Runs on any CPU; the kernels of the best instruction set are chosen at run time and give the same bits on all."""

    def refuses(self, op: Op) -> str | None:
        return refusal(op)

    def compile(self, module: Module, options: CompileOptions) -> CpuExecutable:
        """Packs the weights (each mapped page is read once and let go) and starts the worker threads."""
        refusals = [f"{op.kind}: {why}" for op in module.entries[options.entry].ops if (why := self.refuses(op))]
        if refusals:
            raise BackendError("The CPU backend cannot run this model: " + "; ".join(sorted(set(refusals))) + ".")
        isa, _ = choose_isa()
        cores = worker_cores(options.threads)
        native = _native.Executable(isa, cores, options.max_tokens, options.max_rows, module.vocab, options.exact)
        emitter = Emitter(native, module, options.entry, options.max_tokens, options.exact)
        emitter.emit()
        return CpuExecutable(native, module, options, emitter.rounded)

    def machine(self) -> Machine:
        return machine(0)
