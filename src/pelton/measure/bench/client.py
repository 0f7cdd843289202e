"""A client of an OpenAI-compatible server that measures: it stamps pieces as they arrive and reads them afterwards.

Reading later keeps the client cheap beside the server on a small machine. It makes no load of its own accord.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import aiohttp

from pelton.core.clock import Clock
from pelton.core.errors import BackendError
from pelton.measure.bench.figures import Timing
from pelton.measure.bench.workload import Sample, TokenIds

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
ERROR_TEXT = 500  # characters of a server's error that are kept


@dataclass(frozen=True, slots=True)
class Target:
    """The server and what every request to it has in common. `base_url` without /v1."""

    base_url: str
    model: str
    api_key: str | None = None
    endpoint: str | None = None
    extra: Mapping[str, object] = field(default_factory=dict)

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}

    def body(self, sample: Sample) -> tuple[str, dict[str, object]]:
        """(path, body) of a streaming request."""
        body: dict[str, object] = {"model": self.model, "max_tokens": sample.output_len, "stream": True}
        body["stream_options"] = {"include_usage": True}
        if sample.messages:
            return self.endpoint or CHAT, {**body, "messages": list(sample.messages), **self.extra}
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
            async with self._http.get(f"{self.target.base_url}/v1/models") as reply:
                if reply.status != 200:
                    raise BackendError(f"{self.target.base_url} answers {reply.status}: {await _text(reply)}")
                listed = json.loads(await reply.read())
                return [str(model["id"]) for model in listed["data"]]
        except (aiohttp.ClientError, OSError) as error:
            raise BackendError(f"{self.target.base_url} cannot be reached: {error}.", "Is the server up?") from error

    async def tokens(self, text: str) -> TokenIds:
        """The server's token ids of a text, by /tokenize; BackendError where it has no such route."""
        assert self._http is not None
        body = {"model": self.target.model, "prompt": text, "add_special_tokens": False}
        async with self._http.post(f"{self.target.base_url}/tokenize", json=body) as reply:
            if reply.status != 200:
                raise BackendError(
                    f"{self.target.base_url}/tokenize answers {reply.status}.", "Name a tokenizer by --tokenizer."
                )
            return tuple(json.loads(await reply.read())["tokens"])

    async def ask(self, sample: Sample) -> Timing:
        """One request from sending to its end; what fails is in the Timing's `error`."""
        assert self._http is not None
        path, body = self.target.body(sample)
        timing = Timing(self._clock.now())
        stamped: list[tuple[float, bytes]] = []
        try:
            async with self._http.post(self.target.base_url + path, json=body) as reply:
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
    return (await reply.text())[:ERROR_TEXT]


def read_stream(timing: Timing, stamped: list[tuple[float, bytes]]) -> None:
    """Fills the Timing from what came: (seconds, bytes) of a stream of server-sent events."""
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
    if timing.error is None and not timing.pieces:
        timing.error = "The server sent no piece of an answer."
    timing.output_tokens = timing.output_tokens or len(timing.pieces)


def _events(stamped: list[tuple[float, bytes]]) -> Iterator[tuple[float, dict[str, object]]]:
    """The JSON events with the moment at which each was complete."""
    rest = b""
    for moment, data in stamped:
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            line = line.strip()
            if line.startswith(b"data:") and line[5:].strip() != b"[DONE]":
                yield moment, json.loads(line[5:])
