"""Remote: a server with OpenAI's routes, asked for streams. It works with any such server, ours among them.

Invariant: when an answer is stopped its connection is closed, so that the server stops too.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from types import TracebackType
from urllib.parse import urlsplit

import aiohttp

from pelton.cli.answer import Printed, Printer
from pelton.cli.partner import ServerError
from pelton.core.environment import API_KEY

CONNECT_SECONDS = 10.0
MOST_EVENT = 1 << 24  # bytes
UNIX = "unix:"
UNAUTHORIZED, NOT_FOUND = 401, 404
THEIRS = "Is it one with OpenAI's routes?"
OURS = "Is it one that `pelton serve` started? Name it like http://127.0.0.1:8000."
Json = Mapping[str, object]


class Remote:
    """`url` is http(s)://host:port, with or without a path that ends in /v1, or unix:/path/of/a/socket.

    `model`: a name that the server has; None: its first one. `called`: how its user names the address.
    """

    def __init__(self, url: str, api_key: str | None = None, model: str | None = None, called: str = "--url") -> None:
        self._url = url
        self._socket = url.removeprefix(UNIX) if url.startswith(UNIX) else None
        self._base = "http://localhost/v1" if self._socket else _base(url, called)
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._model = model
        self._runner = asyncio.Runner()
        self._session: aiohttp.ClientSession | None = None

    def __enter__(self) -> "Remote":
        self._runner.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            self._runner.run(self._session.close())
        self._runner.__exit__(kind, error, trace)

    @property
    def model(self) -> str:
        """The model's name there; asked for at first use."""
        if self._model is None:
            self._model = self._runner.run(self._first_model())
        return self._model

    def print_answer(self, route: str, body: Json) -> Printed:
        """Streams the answer of "/chat/completions" or "/completions" to stdout.

        Ctrl-C ends it and is told by `stopped`. ServerError with what the server says against it.
        """
        answers = body.get("n", 1)
        printer = Printer(answers if isinstance(answers, int) else 1)
        asked = {**body, "model": self.model, "stream": True, "stream_options": {"include_usage": True}}
        printer.begin()
        try:
            self._runner.run(self._print(route, asked, printer))
        except KeyboardInterrupt:
            printer.printed.stopped = True
        return printer.printed

    def told(self, path: str) -> Json:
        """What a server of ours tells at a path such as "/kv/tree". ServerError where it does not."""
        return self._runner.run(self._get(self._base.removesuffix("/v1") + path, ours=path.partition("?")[0]))

    async def _print(self, route: str, body: Json, printer: Printer) -> None:
        async for event in self._events(route, body):
            for choice in _listed(event.get("choices")):
                text = _text(choice)
                _keep_logprobs(choice.get("logprobs"), printer.printed.logprobs)
                index, finish = choice.get("index"), choice.get("finish_reason")
                printer.take(
                    text,
                    1 if text else 0,
                    index=index if isinstance(index, int) else 0,
                    finish=finish if isinstance(finish, str) else None,
                )
            usage = event.get("usage")
            if isinstance(usage, Mapping):
                printer.printed.tokens = int(usage.get("completion_tokens") or printer.printed.tokens)
                printer.printed.prompt = int(usage.get("prompt_tokens") or 0)

    async def _events(self, route: str, body: Json) -> AsyncIterator[Json]:
        """The JSON of each event of a stream, up to [DONE]."""
        try:
            async with self._opened().post(self._base + route, json=body) as response:
                if response.status != 200:
                    raise _refusal(response.status, await response.read())
                async for line in response.content:
                    data = line.strip()
                    if not data.startswith(b"data:"):
                        continue
                    data = data.removeprefix(b"data:").strip()
                    if data == b"[DONE]":
                        return
                    event = _object(data)
                    if "error" in event:
                        raise _refusal(200, data)
                    yield event
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise self._unreachable(error) from error
        raise ServerError(
            f"{self._url}: the stream ended in the middle of the answer.", "The server's log may say why."
        )

    async def _first_model(self) -> str:
        for model in _listed((await self._get(self._base + "/models")).get("data")):
            return str(model.get("id"))
        raise ServerError(f"{self._url} has no model yet.", "Wait until it has loaded one.")

    async def _get(self, url: str, ours: str = "") -> Json:
        """`ours`: the path, where other servers have none like it."""
        remedy = OURS if ours else THEIRS
        try:
            async with self._opened().get(url) as response:
                raw = await response.read()
                if response.status == NOT_FOUND and ours:
                    raise ServerError(f"{self._url} has nothing at {ours} (status {NOT_FOUND}).", remedy)
                if response.status != 200:
                    raise _refusal(response.status, raw, remedy)
                return _object(raw, f"{response.content_type} in place of JSON", remedy)
        except (aiohttp.ClientError, OSError) as error:
            raise self._unreachable(error) from error

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector = aiohttp.UnixConnector(self._socket) if self._socket else aiohttp.TCPConnector()
            timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS)
            self._session = aiohttp.ClientSession(
                connector=connector, timeout=timeout, headers=self._headers, read_bufsize=MOST_EVENT
            )
        return self._session

    def _unreachable(self, error: Exception) -> ServerError:
        why = str(error).rstrip(".") or type(error).__name__
        return ServerError(f"{self._url} does not answer: {why}.", "Is a server running there?")


def _base(url: str, called: str) -> str:
    """The URL up to /v1; ServerError for what is none."""
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018  it is only checked when it is asked for
    except ValueError:
        parts = urlsplit("")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ServerError(f"{called} {url} is no address.", "Write it like http://127.0.0.1:8000.")
    base = f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"
    return base if base.endswith("/v1") else base + "/v1"


def _refusal(status: int, raw: bytes, remedy: str = THEIRS) -> ServerError:
    """What the server says against a request, in OpenAI's form or any other but a page for people."""
    text = raw.decode("utf-8", "replace").strip()
    try:
        said = _object(raw).get("error", "")
    except ServerError:
        if text.startswith("<"):
            return ServerError(f"The server refused (status {status}) with a page for people.", remedy)
        said = text[:500]
    message = str(said.get("message", said)) if isinstance(said, Mapping) else str(said)
    return ServerError(
        f"The server refused (status {status}): {message}" if status != 200 else f"The server: {message}",
        f"Give its key by --api-key, or in the variable {API_KEY}." if status == UNAUTHORIZED else "",
    )


def _object(raw: bytes, found: str = "something that is no JSON", remedy: str = THEIRS) -> Json:
    """A JSON object; ServerError for anything else, which is what was `found` there if it is no JSON."""
    try:
        value = json.loads(raw)
    except ValueError as error:
        raise ServerError(f"The server answered with {found}.", remedy) from error
    if not isinstance(value, dict):
        raise ServerError("The server answered with JSON that is no object.", remedy)
    return value


def _listed(value: object) -> list[Json]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _text(choice: Json) -> str:
    """The text of a choice's piece, of a chat or a completion."""
    delta = choice.get("delta")
    text = delta.get("content") if isinstance(delta, Mapping) else choice.get("text")
    return text if isinstance(text, str) else ""


def _keep_logprobs(told: object, kept: dict[str, list[object]]) -> None:
    """A completion's log-probabilities behind those that came before; a chat's have another form and are not kept."""
    for name in ("tokens", "token_logprobs", "top_logprobs"):
        values = told.get(name) if isinstance(told, Mapping) else None
        if isinstance(values, list):
            kept.setdefault(name, []).extend(values)
