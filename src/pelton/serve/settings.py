"""ServeSettings: what the server's door is set to. The engine's own settings are in core/config.py.

Names are those of the flags, with vLLM's meaning. Validated here, never changed later.
"""

import math
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryFile

from pelton.core.errors import SettingError

LOG_LEVELS = ("critical", "error", "warning", "info", "debug", "trace")
MAX_BODY_BYTES = 64 << 20
MAX_HEAD_BYTES = 64 << 10
LEAST_HEAD_BYTES = 1 << 10
MOST_SECONDS = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeSettings:
    """The door. An impossible value raises SettingError naming it.

    `port` 0: any free one. `uds`: a Unix socket instead of host and port. `api_keys`: any of them opens the door, none:
    it is open. `served_model_names`: names that requests may use, the first is told in answers; none: the model as it
    was given. `sse_keep_alive_interval`: seconds between comments on a silent stream, 0: none. `shutdown_timeout`:
    seconds that open requests get to end after SIGTERM. `request_timeout`: seconds that a request may take
    that does not say so itself; 0: any time. `strict`: unknown fields of a request are refused.
    `max_body_bytes`, `max_head_bytes`: larger bodies, and URLs and headers together, are refused.
    `client_timeout`: seconds that a client may take for a request's head, and be silent in its body; 0: any time.
    `trust_request_chat_template`: requests may bring a template, which is a program. `show_cached_tokens`: /kv/tree may
    tell token ids of all prompts. `slot_save_path`: the folder in which slots are saved; None: none is.
    `allowed_origins`: of browsers ("*": any); none: no CORS headers.
    `watchdog_timeout`: seconds without a sign of life after which the engine counts as hanging, or more where its steps
    are long (docs/processes.md).
    """

    host: str = "127.0.0.1"
    port: int = 8000
    uds: str | None = None
    root_path: str = ""
    api_keys: tuple[str, ...] = field(default=(), repr=False)
    served_model_names: tuple[str, ...] = ()
    allowed_origins: tuple[str, ...] = ()
    ssl_keyfile: str | None = None
    ssl_certfile: str | None = None
    sse_keep_alive_interval: float = 15.0
    enable_force_include_usage: bool = False
    enable_log_requests: bool = False
    disable_access_log: bool = False
    log_level: str = "info"
    shutdown_timeout: float = 30.0
    request_timeout: float = 0.0
    watchdog_timeout: float = 120.0
    strict: bool = False
    max_body_bytes: int = MAX_BODY_BYTES
    max_head_bytes: int = MAX_HEAD_BYTES
    client_timeout: float = 30.0
    trust_request_chat_template: bool = False
    show_cached_tokens: bool = False
    slot_save_path: str | None = None

    def __post_init__(self) -> None:
        _need(bool(self.host.strip()), "host", self.host, "an address or a name of this machine")
        _need(0 <= self.port <= 65535, "port", self.port, "from 0 to 65535 (0: any free one)")
        _need(self.uds is None or bool(self.uds.strip()), "uds", self.uds, "the path of a socket")
        path = self.root_path
        good_path = path == "" or (path.startswith("/") and not path.endswith("/"))
        _need(good_path, "root_path", path, "empty, or a path that starts with / and does not end with it")
        for name, texts in (
            ("served_model_name", self.served_model_names),
            ("allowed_origins", self.allowed_origins),
        ):
            _need(all(text.strip() for text in texts), name, list(texts), "one or more names, none of them empty")
        if not all(key.strip() and key.isascii() and key.isprintable() for key in self.api_keys):
            # The value is a secret, or part of one.
            raise SettingError("api_key holds a key that cannot work.", "It must be ASCII text without line breaks.")
        for name, seconds in (
            ("sse_keep_alive_interval", self.sse_keep_alive_interval),
            ("shutdown_timeout", self.shutdown_timeout),
            ("request_timeout", self.request_timeout),
            ("client_timeout", self.client_timeout),
        ):
            good = math.isfinite(seconds) and 0 <= seconds <= MOST_SECONDS
            _need(good, name, seconds, f"seconds, from 0 to {MOST_SECONDS:g}")
        timeout = self.watchdog_timeout
        good = math.isfinite(timeout) and 0 < timeout <= MOST_SECONDS
        _need(good, "watchdog_timeout", timeout, f"seconds, above 0 and at most {MOST_SECONDS:g}")
        _need(self.log_level in LOG_LEVELS, "log_level", self.log_level, "one of " + ", ".join(LOG_LEVELS))
        _need(self.max_body_bytes >= 1, "max_body_bytes", self.max_body_bytes, "at least 1")
        least = self.max_head_bytes
        _need(least >= LEAST_HEAD_BYTES, "max_head_bytes", least, f"at least {LEAST_HEAD_BYTES}")
        folder = self.slot_save_path
        good_folder = folder is None or (bool(folder.strip()) and Path(folder).is_dir())
        _need(good_folder, "slot_save_path", folder, "a folder that exists")
        self._try_folder()
        self._check_ssl()

    def _try_folder(self) -> None:
        """Who wants slots saved wants to know now that none can be."""
        if self.slot_save_path is None:
            return
        try:
            with TemporaryFile(dir=self.slot_save_path) as file:
                file.write(b" ")
        except OSError as error:
            raise SettingError(
                f"slot_save_path={self.slot_save_path!r} cannot work: {error.strerror or error}.",
                "Give a folder that this process may write to and that has room.",
            ) from error

    def _check_ssl(self) -> None:
        if (self.ssl_keyfile is None) != (self.ssl_certfile is None):
            raise SettingError(
                "ssl_keyfile and ssl_certfile belong together, and one of them is missing.", "Give both, or none."
            )
        for name, file in (("ssl_keyfile", self.ssl_keyfile), ("ssl_certfile", self.ssl_certfile)):
            _need(file is None or Path(file).is_file(), name, file, "a file that exists")


def _need(good: bool, name: str, value: object, what: str) -> None:
    if not good:
        raise SettingError(f"{name}={value!r} cannot work.", f"It must be {what}.")
