"""Listening: the server's socket, taken before anything else is done, so that a port in use is told at once.

It accepts nothing. Invariant: a Unix socket's file is gone once it is closed, unless another server took its place.
"""

import contextlib
import errno
import os
import resource
import socket
import ssl
import stat
from dataclasses import dataclass

from pelton.core.errors import SettingError
from pelton.serve.settings import ServeSettings

BACKLOG = 2048
MOST_DESCRIPTORS = 1 << 16
RESERVED_DESCRIPTORS = 64  # for what is no connection
SOCKET_MODE = 0o660  # its owner and group may connect
_FORBIDDEN = ~SOCKET_MODE & 0o777


@dataclass(frozen=True, slots=True)
class Listening:
    """A socket that listens. `url`: where to find it; `file`: (path, inode) of a Unix socket."""

    socket: socket.socket
    url: str
    file: tuple[str, int] | None = None

    def close(self) -> None:
        """Closes it; twice is no error."""
        self.socket.close()
        if self.file is not None:
            path, inode = self.file
            with contextlib.suppress(OSError):
                if os.stat(path).st_ino == inode:
                    os.unlink(path)


def listen(settings: ServeSettings) -> Listening:
    """The socket of the settings; SettingError that says why it cannot be had, and by which setting."""
    _check_tls(settings)
    if settings.uds is not None:
        return _listen_on_file(settings.uds)
    host, port = settings.host, settings.port
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (socket.gaierror, UnicodeError) as error:
        raise SettingError(f"host={host!r} is no address of this machine.", "Try 127.0.0.1 or 0.0.0.0.") from error
    family, kind, number, _, address = found[0]
    opened = socket.socket(family, kind, number)
    try:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind(address)
        opened.listen(BACKLOG)
    except OSError as error:
        opened.close()
        raise _refused(error, host, port) from error
    scheme = "https" if settings.ssl_certfile else "http"
    shown = f"[{host}]" if ":" in host else host
    return Listening(opened, f"{scheme}://{shown}:{opened.getsockname()[1]}")


def connections_at_most() -> int:
    """Connections that may be open at once, so that files and another engine process can be opened still.

    The process may open as many descriptors as the system lets it from now on, and not just as many as usual.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MOST_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    most = MOST_DESCRIPTORS if soft == resource.RLIM_INFINITY else min(soft, MOST_DESCRIPTORS)
    return max(1, most - len(os.listdir("/proc/self/fd")) - min(RESERVED_DESCRIPTORS, most // 3))


def _check_tls(settings: ServeSettings) -> None:
    """SettingError for files that HTTPS cannot be spoken with."""
    certificate, key = settings.ssl_certfile, settings.ssl_keyfile
    if certificate is None or key is None:
        return
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_verify_locations(certificate)
    except OSError as error:
        why = _reason(error, "it holds none that can be read")
        raise SettingError(f"ssl_certfile={certificate!r} is no certificate: {why}.", "Give a PEM file.") from error
    try:
        context.load_cert_chain(certificate, key, password=lambda: "")  # it must not ask for one
    except OSError as error:
        raise SettingError(
            f"ssl_keyfile={key!r} cannot be used: {_reason(error, 'it holds no key that can be read')}.",
            "Give the certificate's key, as a PEM file without a password.",
        ) from error


def _reason(error: OSError, unknown: str) -> str:
    if isinstance(error, ssl.SSLError):
        return error.reason.lower().replace("_", " ") if error.reason else unknown
    return error.strerror or str(error)


def _refused(error: OSError, host: str, port: int) -> SettingError:
    if error.errno == errno.EADDRINUSE:
        return SettingError(
            f"port={port} is in use on {host}.", "End what listens there, or choose another port (0: any free one)."
        )
    if error.errno == errno.EACCES:
        return SettingError(f"port={port} is not for this user.", "Choose one above 1023.")
    if error.errno == errno.EADDRNOTAVAIL:
        return SettingError(f"host={host!r} is no address of this machine.", "Try 127.0.0.1 or 0.0.0.0.")
    return SettingError(f"port={port} cannot be listened on at {host}: {error.strerror}.", "Choose another.")


def _listen_on_file(path: str) -> Listening:
    opened = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(_FORBIDDEN)
    try:
        _remove_stale(path)
        opened.bind(path)
        opened.listen(BACKLOG)
        return Listening(opened, f"unix:{path}", (path, os.stat(path).st_ino))
    except OSError as error:  # a path too long among them
        opened.close()
        raise SettingError(
            f"uds={path!r} cannot be listened on: {error.strerror or error}.", "Choose another."
        ) from error
    except SettingError:
        opened.close()
        raise
    finally:
        os.umask(before)


def _remove_stale(path: str) -> None:
    """Removes a socket on which nobody listens; SettingError where somebody does, or where the file is none."""
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise SettingError(f"uds={path!r} is a file that is no socket.", "Choose another path.")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            return
    raise SettingError(f"uds={path!r} is in use: a server answers there.", "End it, or choose another path.")
