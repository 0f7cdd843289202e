"""A client of an OpenAI-compatible server that measures: it stamps pieces as they arrive and reads them afterwards.

Reading later keeps the client cheap beside the server on a small machine. It makes no load of its own accord.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import aiohttp

from pelton.core.clock import Clock
from pelton.core.errors import BackendError, SettingError
from pelton.measure.bench.figures import Timing
from pelton.measure.bench.workload import Sample, TokenIds

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
UNIX = "unix:"
WEIGHTS = "pelton:weight_bytes{"  # of our servers' metrics
NO_ROUTE = (404, 405, 501)
ERROR_TEXT = 500  # characters of a server's error that are kept
TOKENIZER = "Name the model whose tokenizer counts them by --tokenizer."


@dataclass(frozen=True, slots=True)
class Target:
    """The server and what every request to it has in common. `base_url` without /v1, or unix:FILE for a socket.

    `chat`: a text prompt is asked as one user's message. `more_headers` win over those made here.
    """

    base_url: str
    model: str
    api_key: str | None = None
    endpoint: str | None = None
    extra: Mapping[str, object] = field(default_factory=dict)
    more_headers: Mapping[str, str] = field(default_factory=dict)
    chat: bool = False

    @property
    def socket(self) -> str | None:
        """The file of a Unix socket; None where the server is reached over TCP."""
        return self.base_url.removeprefix(UNIX) if self.base_url.startswith(UNIX) else None

    def url(self, path: str) -> str:
        """What is asked for a path such as /v1/models."""
        return f"http://localhost{path}" if self.socket else self.base_url + path

    @property
    def headers(self) -> dict[str, str]:
        key = {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}
        return {**key, **self.more_headers}

    def body(self, sample: Sample) -> tuple[str, dict[str, object]]:
        """(path, body) of a streaming request; SettingError for token ids where all is chat."""
        body: dict[str, object] = {"model": self.model, "max_tokens": sample.output_len, "stream": True}
        body["stream_options"] = {"include_usage": True}
        if sample.messages:
            return self.endpoint or CHAT, {**body, "messages": list(sample.messages), **self.extra}
        if self.chat:
            if not isinstance(sample.prompt, str):
                raise SettingError("A chat takes no token ids, of which this workload is made.", "Leave --backend out.")
            message = {"role": "user", "content": sample.prompt}
            return self.endpoint or CHAT, {**body, "messages": [message], **self.extra}
        prompt = list(sample.prompt) if isinstance(sample.prompt, tuple) else sample.prompt
        return self.endpoint or COMPLETIONS, {**body, "prompt": prompt, **self.extra}


class Client:
    """Talks to one server over one pool of connections; to be used in an `async with`."""

    def __init__(self, target: Target, clock: Clock, timeout: float = 3600.0) -> None:
        self.target = target
        self._clock = clock
        self._timeout = aiohttp.ClientTimeout(total=timeout)
        self._http: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> "Client":
        # Some servers close connections that stay open; a new one for each request treats all alike.
        connector: aiohttp.BaseConnector
        if self.target.socket:
            connector = aiohttp.UnixConnector(self.target.socket, limit=0, force_close=True)
        else:
            connector = aiohttp.TCPConnector(limit=0, force_close=True)
        self._http = aiohttp.ClientSession(connector=connector, timeout=self._timeout, headers=self.target.headers)
        return self

    async def __aexit__(self, *error: object) -> None:
        assert self._http is not None
        await self._http.close()

    async def models(self) -> list[str]:
        """Names the server answers to; BackendError where it cannot be reached or refuses."""
        assert self._http is not None
        try:
            async with self._http.get(self.target.url("/v1/models")) as reply:
                if reply.status != 200:
                    raise BackendError(f"{self.target.base_url} answers {reply.status}: {await _text(reply)}")
                listed = json.loads(await reply.read())
                return [str(model["id"]) for model in listed["data"]]
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            why = str(error) or type(error).__name__
            raise BackendError(f"{self.target.base_url} cannot be reached: {why}.", "Is the server up?") from error
        except (ValueError, LookupError, TypeError) as error:
            raise BackendError(f"{self.target.base_url}/v1/models answers something else than models.") from error

    async def tokens(self, text: str) -> TokenIds:
        """The server's token ids of a text, by /tokenize; BackendError where it has no such route."""
        assert self._http is not None
        body = {"model": self.target.model, "prompt": text, "add_special_tokens": False}
        route = f"{self.target.base_url}/tokenize"
        try:
            async with self._http.post(self.target.url("/tokenize"), json=body) as reply:
                if reply.status in NO_ROUTE:
                    raise BackendError(
                        f"{self.target.base_url} has no /tokenize to count a prompt's tokens.", TOKENIZER
                    )
                if reply.status != 200:
                    raise BackendError(f"{route} answers {reply.status}: {await _text(reply)}", TOKENIZER)
                return tuple(int(token) for token in json.loads(await reply.read())["tokens"])
        except (aiohttp.ClientError, OSError, ValueError, LookupError, TypeError) as error:
            raise BackendError(f"{route} gives no token ids: {error}.", TOKENIZER) from error

    async def check_model(self, asked: Sample) -> None:
        """BackendError with the server's words where it refuses the target's model; for names that it does not list."""
        timing = await self.ask(asked)
        if timing.error:
            raise BackendError(f"{self.target.base_url} refuses the model {self.target.model!r}: {timing.error}")

    async def weight_bytes(self) -> int | None:
        """Bytes of the weights that the server holds; None for a server that is none of ours."""
        assert self._http is not None
        try:
            async with self._http.get(self.target.url("/metrics")) as reply:
                lines = (await reply.text(errors="replace")).splitlines()
            return next((int(float(line.rpartition(" ")[2])) for line in lines if line.startswith(WEIGHTS)), None)
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError):
            return None

    async def reset_prefix_cache(self) -> bool:
        """Whether the server has forgotten the prefixes it knew; False where it has no such route, or did not."""
        assert self._http is not None
        try:
            async with self._http.post(self.target.url("/reset_prefix_cache")) as reply:
                said = await reply.read()
                if reply.status != 200:
                    return False
        except (aiohttp.ClientError, OSError, TimeoutError):
            return False
        return b'"reset":false' not in said.replace(b" ", b"")

    async def ask(self, sample: Sample) -> Timing:
        """One request from sending to its end; what fails is in the Timing's `error`."""
        assert self._http is not None
        path, body = self.target.body(sample)
        timing = Timing(self._clock.now())
        stamped: list[tuple[float, bytes]] = []
        try:
            async with self._http.post(self.target.url(path), json=body) as reply:
                if reply.status != 200:
                    timing.error = f"{reply.status}: {await _text(reply)}"
                async for data in reply.content.iter_any():
                    stamped.append((self._clock.now(), data))
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            timing.error = f"{type(error).__name__}: {error}"
        timing.ended = self._clock.now()
        if timing.error is None:
            read_stream(timing, stamped)
        return timing


async def _text(reply: aiohttp.ClientResponse) -> str:
    """What a server says against a request: its message, or all of it where there is none in OpenAI's form."""
    said = await reply.text(errors="replace")
    try:
        match json.loads(said):
            case {"error": {"message": str(message)}} | {"error": str(message)} | {"message": str(message)}:
                said = message
    except ValueError:
        pass
    return said[:ERROR_TEXT]


def read_stream(timing: Timing, stamped: list[tuple[float, bytes]]) -> None:
    """Fills the Timing from what came: (seconds, bytes) of a stream of server-sent events."""
    try:
        _read_events(timing, stamped)
    except (ValueError, TypeError, AttributeError) as error:
        timing.error = f"The stream is none of an OpenAI server: {error}"[:ERROR_TEXT]
    if timing.error is None and not timing.pieces:
        timing.error = "The server sent no piece of an answer."
    timing.output_tokens = timing.output_tokens or len(timing.pieces)


def _read_events(timing: Timing, stamped: list[tuple[float, bytes]]) -> None:
    texts: list[str] = []
    for moment, event in _events(stamped):
        if "error" in event:
            timing.error = str(event["error"])[:ERROR_TEXT]
        usage = event.get("usage")
        if isinstance(usage, dict):
            timing.input_tokens = usage.get("prompt_tokens") or 0
            timing.output_tokens = usage.get("completion_tokens") or 0
            timing.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        choices = event.get("choices")
        for choice in choices if isinstance(choices, list) else ():
            delta = choice.get("delta")
            text = delta.get("content") if isinstance(delta, dict) else choice.get("text")
            # An empty text of a completion is a token whose text is not complete yet; in a chat it is the opening.
            if text or (text == "" and delta is None and not choice.get("finish_reason")):
                timing.pieces.append(moment)
                texts.append(text)
    timing.text = "".join(texts)


def _events(stamped: list[tuple[float, bytes]]) -> Iterator[tuple[float, dict[str, object]]]:
    """The JSON events with the moment at which each was complete."""
    rest = b""
    for moment, data in stamped:
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            line = line.strip()
            if line.startswith(b"data:") and line[5:].strip() != b"[DONE]":
                yield moment, json.loads(line[5:])
