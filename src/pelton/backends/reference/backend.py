"""The reference backend's door: it has a kernel for every primitive op, so it refuses only what it does not know."""

import torch

from pelton.backends.backend import CompileOptions, Executable, Machine, Rates
from pelton.backends.reference.executable import ReferenceExecutable, lowered
from pelton.backends.reference.kernels import KERNELS
from pelton.core.errors import BackendError
from pelton.program.module import Module
from pelton.program.op import Op


class ReferenceBackend:
    """torch on the CPU. `exact`: fp32; otherwise the default arithmetic up to the order of sums, not to the bit."""

    def refuses(self, op: Op) -> str | None:
        missing = sorted({part.kind for part in lowered([op])} - set(KERNELS))
        return f"reference: no kernel for {', '.join(missing)}" if missing else None

    def compile(self, module: Module, options: CompileOptions) -> Executable:
        refused = {reason for op in module.entries[options.entry].ops if (reason := self.refuses(op))}
        if refused:
            raise BackendError("The reference backend cannot run this model: " + "; ".join(sorted(refused)) + ".")
        if options.threads:
            torch.set_num_threads(options.threads)  # of the whole process: torch has no other
        return ReferenceExecutable(module, options)

    def machine(self, threads: int = 0) -> Machine:
        return Machine("reference", "torch", torch.get_num_threads(), 0)

    def rates(self, threads: int, working_set: int, *, rounded: bool = False) -> Rates | None:
        """Nobody measures torch."""
        return None
