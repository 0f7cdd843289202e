"""Engines as they are measured: a server, a worker, an own bench, a fresh start. Each with its best settings.

Commands and variables are told in the record, without paths. Invariant: `ask` returns figures with the same names and
units whatever the engine is.
"""

import json
import os
import socket
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from bench.peers.ask import NAME, Figures, decoding_until, figures_of, served, until_answer
from bench.peers.install import Place, outside_environment
from bench.peers.models import Models
from bench.peers.plan import AS_IS, FRESH, LLAMA, OWN_BENCH, PELTON, SERVED, VLLM, WORKER, Scenario
from bench.peers.process import Program, ProgramError, Programs

from pelton.backends.cpu.machine import allowed_cores
from pelton.measure.bench.figures import Timing

WORKER_FILE = Path(__file__).with_name("worker.py")
MARK = b"@@ "
PELTON_COMMAND = "import sys; sys.argv[0] = 'pelton'; from pelton.cli.main import main; main()"
PROMPT = "The capital of France is"
CONTEXT = 8192
VLLM_CACHE_GIB = 4
LLAMA_MANY_CONTEXT = 73728  # of 32 slots together
LLAMA_WHOLE_SLOTS = 5  # so many have a whole context each
TCMALLOC = ("libtcmalloc_minimal.so.4", "libtcmalloc.so.4")
LIBRARIES = ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib")


@dataclass(frozen=True)
class Setup:
    """What distinguishes one running engine from another. `slots`: requests at once that it is set up for, if it is;
    `activations`: as Pelton's flag wants it.
    """

    engine: str
    how: str
    precision: str
    model: str
    slots: int = 1
    activations: str = AS_IS


@dataclass(frozen=True)
class Command:
    """How an engine is started: words, variables of its own, and where it listens."""

    words: tuple[str, ...]
    environment: Mapping[str, str]
    variables: Mapping[str, str] = field(default_factory=dict)
    port: int = 0

    def told(self) -> dict[str, object]:
        """For the record: a path is told by its last part."""
        words = [Path(word).name if word.startswith("/") else word for word in self.words]
        port = str(self.port)
        return {
            "command": " ".join("PORT" if word == port else word for word in words if word != PELTON_COMMAND),
            "variables": {key: _without_folders(value) for key, value in self.variables.items()},
        }


def _without_folders(value: str) -> str:
    return ":".join(Path(part).name if part.startswith("/") else part for part in value.split(":"))


class Engine(Protocol):
    """Something that can be measured. `start` returns when it is ready; after it, it may be paused and let on; after
    `end` it may be started again.
    """

    def start(self) -> None: ...

    def ask(self, scenario: Scenario, prompts: Sequence[str]) -> Figures: ...

    def pause(self) -> None: ...

    def resume(self) -> None: ...

    def end(self) -> None: ...

    def told(self) -> dict[str, object]: ...


@dataclass(frozen=True)
class Limits:
    """Seconds: of one block of requests, and of a start."""

    block: float = 300.0
    start: float = 600.0


class _Running:
    """What all engines have in common that run between blocks."""

    def __init__(self, name: str, command: Command, programs: Programs, limits: Limits) -> None:
        self._name, self._command, self._programs, self._limits = name, command, programs, limits
        self._running: Program | None = None

    @property
    def _program(self) -> Program:
        if self._running is None:
            raise ProgramError(f"{self._name} does not run")
        return self._running

    def pause(self) -> None:
        """It computes nothing until it is let on."""
        if self._running is not None:
            self._running.pause()

    def resume(self) -> None:
        """It goes on."""
        if self._running is not None:
            self._running.resume()

    def end(self) -> None:
        """It and all it started are gone."""
        if self._running is not None:
            self._programs.end(self._running)
            self._running = None

    def told(self) -> dict[str, object]:
        """For the record."""
        return self._command.told()


class Server(_Running):
    """Over HTTP. A peak of memory comes with the figures."""

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self._command.port}"

    def start(self) -> None:
        """Returns when it has given an answer."""
        start = time.monotonic()
        self._running = self._programs.start(self._name, self._command.words, self._command.environment)
        until_answer(self.url, PROMPT, lambda: self._given_up(start))

    def _given_up(self, start: float) -> str | None:
        if self._program.ended:
            return f"{self._name} ended at its start: {self._program.last_words()}"
        if time.monotonic() - start > self._limits.start:
            return f"{self._name} did not answer within {self._limits.start:.0f} s: {self._program.last_words()}"
        return None

    def ask(self, scenario: Scenario, prompts: Sequence[str]) -> Figures:
        """One block of requests; one request where its answer may be cut."""
        if scenario.cut is not None:
            return decoding_until(self.url, prompts[0], scenario.output, scenario.cut)
        figures = served(self.url, prompts, scenario, self._limits.block)
        return {**figures, "peak_rss_mib": self._program.peak_rss_mib()}


class FreshServer(Server):
    """One that is started anew for each block, and measured until its first token."""

    def start(self) -> None:
        """It starts when it is asked."""

    def ask(self, scenario: Scenario, prompts: Sequence[str]) -> Figures:
        start = time.perf_counter()
        super().start()
        seconds = time.perf_counter() - start
        peak = self._program.peak_rss_mib()
        self.end()
        return {"start_s": seconds, "peak_rss_mib": peak}


class Worker(_Running):
    """In a process of its own that is told over its standard input (worker.py)."""

    def start(self) -> None:
        """Returns when its model is loaded."""
        self._running = self._programs.start(self._name, self._command.words, self._command.environment, talks=True)
        self._reply(self._limits.start)

    def ask(self, scenario: Scenario, prompts: Sequence[str]) -> Figures:
        """One block of requests."""
        wish = {"prompts": list(prompts), "output": scenario.output, "concurrency": scenario.concurrency}
        self._program.input.write(json.dumps(wish).encode() + b"\n")
        self._program.input.flush()
        reply = self._reply(self._limits.block)
        if "rates" in reply:
            return {"decode_tok_s": statistics.median(reply["rates"])}
        timings = []
        for sent, *pieces in reply["requests"]:
            timing = Timing(sent, pieces, output_tokens=len(pieces), ended=pieces[-1] if pieces else sent)
            timing.input_tokens = scenario.shared + scenario.prompt
            timing.error = None if pieces else "no token came"
            timings.append(timing)
        seconds = max(timing.ended for timing in timings) - min(timing.sent for timing in timings)
        return {**figures_of(timings, seconds), "peak_rss_mib": self._program.peak_rss_mib()}

    def _reply(self, seconds: float) -> dict[str, Any]:
        """Its next reply; what else it prints is passed over."""
        line = self._program.line(MARK, seconds)
        if line is None:
            ended = "ended" if self._program.ended else f"did not reply within {seconds:.0f} s"
            raise ProgramError(f"{self._name} {ended}: {self._program.last_words()}")
        return dict(json.loads(line.removeprefix(MARK)))


class LlamaBench:
    """llama.cpp's own bench, a process for each block: there is nothing to pause."""

    def __init__(self, name: str, command: Command, programs: Programs, limits: Limits) -> None:
        self._name, self._command, self._programs, self._limits = name, command, programs, limits

    def start(self) -> None:
        """It starts when it is asked."""

    def ask(self, scenario: Scenario, prompts: Sequence[str]) -> Figures:
        prefill = scenario.figure == "prefill_tok_s"
        asked = ["-p", str(scenario.prompt), "-n", "0"] if prefill else ["-p", "0", "-n", str(scenario.output)]
        if not prefill:
            asked += ["-d", str(scenario.prompt)]
        words = [*self._command.words, *asked, "-r", str(scenario.requests), "-o", "json"]
        said = self._programs.run(self._name, words, self._command.environment, self._limits.block)
        try:
            (row,) = json.loads(said)
            return {scenario.figure: float(row["avg_ts"])}
        except (ValueError, LookupError, TypeError) as error:
            raise ProgramError(f"llama-bench tells no rate: {said[-200:]!r}") from error

    def pause(self) -> None:
        """It does not run between blocks."""

    def resume(self) -> None:
        """It does not run between blocks."""

    def end(self) -> None:
        """It has ended."""

    def told(self) -> dict[str, object]:
        return self._command.told()


@dataclass(frozen=True)
class Shop:
    """Makes engines. `pelton_flags`: further words for `pelton serve`."""

    place: Place
    models: Models
    programs: Programs
    limits: Limits = field(default_factory=Limits)
    pelton_flags: tuple[str, ...] = ()

    def make(self, setup: Setup) -> Engine:
        """An engine that is not started yet; Skip where its model cannot be had."""
        file = self.models.file(setup.engine, setup.precision, setup.model)
        name = f"{setup.engine}-{setup.precision}-{setup.how}".replace(" ", "-")
        if setup.how == WORKER:
            return Worker(name, self._worker(setup, file), self.programs, self.limits)
        if setup.how == OWN_BENCH:
            words = (str(self.place.environment(LLAMA) / "bin" / "llama-bench"), "-m", str(file), "-t", _cores())
            return LlamaBench(name, Command(words, outside_environment()), self.programs, self.limits)
        commands = {PELTON: self._pelton, VLLM: self._vllm, LLAMA: self._llama}
        kind = {SERVED: Server, FRESH: FreshServer}[setup.how]
        return kind(name, commands[setup.engine](setup, file, free_port()), self.programs, self.limits)

    def _pelton(self, setup: Setup, file: Path, port: int) -> Command:
        words = (sys.executable, "-c", PELTON_COMMAND, "serve", str(file), "--port", str(port))
        rows = () if setup.activations == AS_IS else ("--activations", setup.activations)
        return Command((*words, "--served-model-name", NAME, *rows, *self.pelton_flags), os.environ, port=port)

    def _worker(self, setup: Setup, file: Path) -> Command:
        own = setup.engine == PELTON
        python = sys.executable if own else str(self.place.python(setup.engine))
        tokenizer = self.models.tokenizer(setup.engine, setup.model)
        words = (python, str(WORKER_FILE), setup.engine, str(file), str(tokenizer))
        rows = () if setup.activations == AS_IS else (setup.activations,)
        return Command((*words, *rows), os.environ if own else outside_environment())

    def _vllm(self, setup: Setup, file: Path, port: int) -> Command:
        root = self.place.environment(VLLM)
        first, last = allowed_cores()[0], allowed_cores()[-1]
        variables = {
            "VLLM_CPU_KVCACHE_SPACE": str(VLLM_CACHE_GIB),
            "VLLM_CPU_OMP_THREADS_BIND": f"{first}-{last}",
            "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
            "VLLM_CACHE_ROOT": str(root / "cache"),
            "HF_HUB_OFFLINE": "1",
        }
        if libraries := [*_found(TCMALLOC, LIBRARIES), *_found(("libiomp5.so",), (str(root / "lib"),))]:
            variables["LD_PRELOAD"] = ":".join(libraries)
        words = (str(root / "bin" / "vllm"), "serve", str(file), "--host", "127.0.0.1", "--port", str(port))
        settings = ("--served-model-name", NAME, "--dtype", "bfloat16", "--max-model-len", str(CONTEXT))
        return Command((*words, *settings), {**outside_environment(), **variables}, variables, port)

    def _llama(self, setup: Setup, file: Path, port: int) -> Command:
        many = setup.slots > 8
        context = LLAMA_MANY_CONTEXT if many else CONTEXT * (setup.slots if setup.slots <= LLAMA_WHOLE_SLOTS else 2)
        words = (str(self.place.environment(LLAMA) / "bin" / "llama-server"), "-m", str(file), "-a", NAME)
        settings = ("-t", _cores(), "-tb", _cores(), "-np", str(setup.slots), "-c", str(context))
        more = ("--no-kv-unified",) if many else ()
        where = ("--host", "127.0.0.1", "--port", str(port))
        return Command((*words, *settings, *more, *where), outside_environment(), port=port)


def disturber() -> Command:
    """A process that is busy on the last of the allowed cores, always in the same way."""
    code = f"import os\nos.sched_setaffinity(0, {{{allowed_cores()[-1]}}})\nwhile True: pass"
    return Command((sys.executable, "-c", code), outside_environment())


def free_port() -> int:
    """One that nobody listens on, on the loopback."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _cores() -> str:
    return str(len(allowed_cores()))


def _found(names: Sequence[str], folders: Sequence[str]) -> list[str]:
    """The first of some libraries."""
    return [str(path) for path in (Path(folder, name) for name in names for folder in folders) if path.exists()][:1]
