"""How the tests of the command line run it: in this process, in one of its own, or in a terminal of its own."""

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

from click.testing import CliRunner, Result

from pelton.cli.main import cli

RUN = "import sys; sys.argv[0] = 'pelton'; from pelton.cli.main import main; main()"
OWN_TERMINAL = "import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
WAIT = 50.0  # seconds a terminal may keep a test waiting
SOURCES = Path(__file__).resolve().parents[2] / "src"


def environment(**changes: str) -> dict[str, str]:
    """This process's environment, with src/ importable."""
    paths = [str(SOURCES), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **changes}


def invoke(*words: str, stdin: str | bytes | None = None) -> Result:
    """The command in this process; what it wrote is in .stdout and .stderr."""
    return CliRunner().invoke(cli, list(words), input=stdin)


def run(
    *words: str | bytes, stdin: bytes = b"", code: str = RUN, **variables: str
) -> subprocess.CompletedProcess[bytes]:
    """The command in a process of its own."""
    start = [sys.executable, "-c", code]
    return subprocess.run(
        [*start, *words], input=stdin, capture_output=True, timeout=WAIT, env=environment(**variables)
    )


def modules_after(*words: str, stdin: bytes = b"") -> set[str]:
    """The modules that are loaded when the command has ended well."""
    code = RUN.replace("; main()", "\ntry:\n    main()\nfinally:\n    sys.stderr.write(' '.join(sys.modules))")
    assert code != RUN
    done = run(*words, stdin=stdin, code=code)
    assert done.returncode == 0, done.stderr
    return set(done.stderr.decode().split())


class Terminal:
    """A process whose stdin, stdout and stderr are a terminal. `seen`: all it has shown so far."""

    def __init__(self, *words: str) -> None:
        self._main, child = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-c", OWN_TERMINAL + RUN, *words],
            stdin=child,
            stdout=child,
            stderr=child,
            env=environment(TERM="dumb"),
            start_new_session=True,
        )
        os.close(child)
        self.seen = ""
        self._read = 0

    def send(self, text: str) -> None:
        os.write(self._main, text.encode())

    def interrupt(self) -> None:
        """Ctrl-C, as the keyboard sends it.

        A moment later than a prompt: what comes in the instant before readline waits is seen at the next key.
        """
        time.sleep(0.5)
        os.write(self._main, b"\x03")

    def wait_for(self, pattern: str) -> str:
        """Waits for the pattern in what was shown since the last match; that text up to the match's end."""
        deadline = time.monotonic() + WAIT
        while True:
            match = re.search(pattern, self.seen[self._read :])
            if match:
                text = self.seen[self._read : self._read + match.end()]
                self._read += match.end()
                return text
            if time.monotonic() > deadline or not self._read_more():
                raise AssertionError(f"{pattern!r} did not come after {self.seen[self._read :]!r}")

    def end(self) -> int:
        """Reads to the end; the exit code."""
        while self._read_more():
            pass
        return self.process.wait(WAIT)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
        os.close(self._main)

    def _read_more(self) -> bool:
        ready, _, _ = select.select([self._main], [], [], 1.0)
        if not ready:
            return self.process.poll() is None
        try:
            data = os.read(self._main, 65536)
        except OSError:  # the other side is closed
            return False
        self.seen += data.decode("utf-8", "replace").replace("\r\n", "\n")
        return bool(data)
