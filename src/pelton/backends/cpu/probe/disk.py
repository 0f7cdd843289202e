"""How fast the cache folder's disk writes and reads. Invariant: nothing is left there, whatever ends it."""

import os
import shutil
import tempfile
from pathlib import Path

from pelton.backends.cpu.probe.figures import DiskRate
from pelton.core.clock import Clock

CHUNK = 4 << 20
MOST_SECONDS = 2.0  # of writing, and of reading; a slow disk gets a smaller file
ROOM = 4  # times the file must be free


def disk_rate(folder: Path, file_bytes: int, clock: Clock) -> DiskRate:
    """Of a file of at most `file_bytes` in `folder`, which is made if it is not there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if shutil.disk_usage(folder).free < ROOM * file_bytes:
            return DiskRate(0, None, None, "too little room in the cache folder")
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
            return _measure(file.fileno(), file_bytes, clock)
    except OSError as error:
        return DiskRate(0, None, None, f"the cache folder cannot be written: {error.strerror}")


def _measure(file: int, file_bytes: int, clock: Clock) -> DiskRate:
    noise = os.urandom(CHUNK)  # nothing that a file system could press together
    written = 0
    start = clock.now()
    while written < file_bytes and clock.now() - start < MOST_SECONDS:
        written += os.write(file, noise)
    os.fsync(file)
    writing = clock.now() - start
    note = ""
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)  # else it would come from memory
    else:
        note = "read back from memory perhaps"
    os.lseek(file, 0, os.SEEK_SET)
    into = bytearray(CHUNK)
    read = 0
    start = clock.now()
    while read < written and clock.now() - start < MOST_SECONDS:
        got = os.readv(file, [into])
        if not got:
            break
        read += got
    reading = clock.now() - start
    return DiskRate(written, _rate(written, writing), _rate(read, reading), note)


def _rate(count: int, seconds: float) -> float | None:
    return count / seconds if count and seconds > 0 else None
