"""Where `pelton simulate` has its step times from: measured steps that are kept or measured now, the machine's probe,
or rates that the user gives. It chooses; what it chooses from is measure/simulate's.

Invariant: it always says which of them it was.
"""

from dataclasses import dataclass, field
from datetime import UTC, datetime

from tqdm import tqdm

from pelton.backends import backend
from pelton.backends.cpu.backend import CpuBackend
from pelton.backends.cpu.probe import cached
from pelton.backends.cpu.probe.figures import MachineProbe
from pelton.backends.cpu.probe.identity import identify
from pelton.backends.cpu.probe.measure import QUICK, measure
from pelton.cli.terminal import say, shows_progress
from pelton.core.clock import SystemClock
from pelton.core.config import EngineConfig
from pelton.measure.simulate import kept
from pelton.measure.simulate.calibrate import measured, shapes_for, slack_of
from pelton.measure.simulate.kept import Calibrated
from pelton.measure.simulate.step_seconds import TYPICAL, Rates, StepSeconds
from pelton.program.module import Module

GIVEN, MEASURED, PROBED = "given", "measured", "probed"
ROUGH = (
    "step times follow from the machine's probe and from how far steps of a typical model stay behind it, which may be "
    "off by a half; --calibrate measures steps of this one, a few seconds"
)
PROBED_BUSY = (
    "the machine was busy when it was probed, so step times may be much too long; pelton probe measures it anew, in a "
    "quieter moment"
)
BUSY = "equal steps took unlike times while they were measured: the machine was busy, and times may be too long"


@dataclass(slots=True)
class StepTimes:
    """Makes the StepSeconds of a model; `origin`, `date`, `busy` (others worked meanwhile) and `notes` say afterwards
    what of. `given`: rates of a machine that need not be this one.
    """

    config: EngineConfig
    given: Rates | None = None
    calibrate: bool = False
    progress: bool = True
    origin: str = ""
    date: str = ""
    busy: bool = False
    notes: list[str] = field(default_factory=list)

    def __call__(self, module: Module, exact: bool) -> StepSeconds:
        if self.given is not None:
            self.origin = GIVEN
            return StepSeconds(module, self.given, TYPICAL, exact=exact)
        identity = identify(self.config.backend.threads)
        key = kept.key_of(module, identity, exact=exact)
        found = None if self.calibrate else kept.load(key)
        if found is None and self.calibrate:
            found = self._measured(module, exact)
            kept.save(key, found)
        if found is not None:
            self.origin, self.date, self.busy = MEASURED, found.date, found.busy
            if found.busy:
                self.notes.append(BUSY)
            return StepSeconds(module, found.rates, found.slack, exact=exact)
        probe = self._probe()
        self.origin, self.date, self.busy = PROBED, probe.date, probe.busy
        self.notes += [PROBED_BUSY] if probe.busy else [ROUGH]
        return StepSeconds(module, self._rates(probe, module), TYPICAL, exact=exact)

    def rates_of(self, threads: int, working_set: int, rounded: bool) -> backend.Rates | None:
        """What an engine on the machine to simulate would know of it, as Backend.rates."""
        if self.given is not None:
            return backend.Rates(self.given.read, self.given.products, GIVEN)
        return CpuBackend().rates(threads, working_set, rounded=rounded)

    def _measured(self, module: Module, exact: bool) -> Calibrated:
        rates = self._rates(self._probe(), module)
        shapes = shapes_for(self.config, module.context)
        with tqdm(total=len(shapes), desc="measuring steps", unit="step", leave=False, disable=not self._shows) as bar:
            steps = measured(self.config, shapes, module.vocab, SystemClock(), bar.update)
        busy = sum(timed.time.busy for timed in steps.timed) > len(shapes) // 3
        slack = slack_of(module, rates, steps, exact=exact)
        return Calibrated(rates, slack, datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"), busy)

    def _rates(self, probe: MachineProbe, module: Module) -> Rates:
        return Rates.probed(probe, module, int8=self.config.model.activations == "int8")

    def _probe(self) -> MachineProbe:
        """What is kept of this machine, measured quickly if there is nothing, or only figures of a busy one."""
        identity = identify(self.config.backend.threads)
        kept = cached.load(identity)
        if kept is not None and not kept.busy:
            return kept
        again = "" if kept is None else "; the kept figures are of a busy one"
        say(f"measuring the machine once, a few seconds{again} ...", dim=True)
        probe = measure(QUICK, threads=self.config.backend.threads)
        if kept is None or not probe.busy:
            cached.save(probe)
        return probe

    @property
    def _shows(self) -> bool:
        return self.progress and shows_progress()
