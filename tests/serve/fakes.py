"""A double of AsyncEngine: real texts, real answers, a fixed thing to say, and tokens that are bytes."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
from starlette.applications import Starlette
from tests.engine.fakes import EOS, VOCAB, byte_tokenizer

from pelton.checkpoint.special_tokens import FimTokens, SpecialTokens
from pelton.core.clock import FakeClock
from pelton.core.config import resolve
from pelton.core.counters import EngineStats
from pelton.core.events import Event, PromptScored, RequestFinished, RequestScheduled, TokensGenerated
from pelton.core.plan import Lookup, TokenLogprobs
from pelton.core.request import Request
from pelton.engine.front import Front
from pelton.engine.outputs import Answers
from pelton.engine.process.answer import AsyncAnswer, Mailbox
from pelton.engine.process.messages import EndSession, Question
from pelton.engine.prompts import PromptLimits
from pelton.sampling.effective import Defaults, effective
from pelton.serve.app import create_app
from pelton.serve.metrics import Metrics
from pelton.serve.settings import ServeSettings

MODEL = "fake"
SAYS = "Grüße, 世界! "  # over and over
CACHED = 3  # tokens of every prompt that come from the prefix cache
FIM = FimTokens(prefix=257, suffix=258, middle=259)
TEMPLATE = (
    "{% for m in messages %}<start>{{ m.role }}:{{ m.content }}<end>{% endfor %}"
    "{% if add_generation_prompt %}<start>assistant:{% endif %}{% if shout %}!{% endif %}"
)


def make_front(
    values: dict[str, object] | None = None,
    policy: str = "fcfs",
    *,
    template: str | None = TEMPLATE,
    fim: FimTokens | None = FIM,
) -> Front:
    """A Front of bytes; `values`: recommended by the model; `policy`: the order of requests."""
    defaults = Defaults(values or {}, dict.fromkeys(values or {}, "generation_config"))
    config = resolve(MODEL, {"seed": 5, "scheduling_policy": policy})
    params = effective({}, defaults).params
    return Front(byte_tokenizer(), defaults, params, SpecialTokens(fim=fim), config, chat_template=template)


@dataclass
class FakeCache:
    """What the engine says of its prefix cache, and what it was asked and told to do with it."""

    told: bytes | None = b"{}"
    lookup: Lookup | None = None
    asked: list[Question] = field(default_factory=list)
    resets: int = 0


class FakeEngine:
    """Says `says` (SAYS) from its beginning to each request, one token per answer and step.

    `delay`: seconds per step; `fault`: how each answer fails, and after how many tokens; `refuse`: what submit raises,
    if there would be more requests than so many. `aborted`: ids of requests that were taken out.
    """

    def __init__(
        self,
        *,
        max_len: int = 256,
        delay: float = 0.001,
        fault: tuple[str, int] | None = None,
        fault_code: str | None = None,
        refuse: tuple[Exception, int] | None = None,
        values: dict[str, object] | None = None,
        policy: str = "fcfs",
        front: Front | None = None,
    ) -> None:
        self.front = front or make_front(values, policy)
        self.says = SAYS
        self.limits = PromptLimits(VOCAB, max_len, frozenset({EOS}))
        self.requests = self.front.maker(self.limits, FakeClock())
        self.stats = EngineStats(running=2, waiting=1)
        self.state = "running"
        self.draining = False
        self.submitted: list[Request] = []
        self.aborted: list[str] = []
        self.cache = FakeCache()
        self._delay = delay
        self._fault = None if fault is None else (*fault, fault_code)
        self._refuse = refuse
        self._answers = Answers(self.front.tokenizer)
        self._tasks: dict[str, asyncio.Task[None]] = {}

    @property
    def load(self) -> int:
        return self.stats.running + self.stats.waiting

    @property
    def open(self) -> int:
        """Requests in the engine."""
        return len(self._tasks)

    def submit_all(self, requests: Sequence[Request]) -> list[AsyncAnswer]:
        if self._refuse is not None and len(self.submitted) + len(requests) > self._refuse[1]:
            raise self._refuse[0]
        self.submitted += requests
        return [self._submit(request) for request in requests]

    def _submit(self, request: Request) -> AsyncAnswer:
        mailbox = Mailbox(self._answers.start(request))
        self._tasks[request.request_id] = asyncio.create_task(self._run(request, mailbox))
        return AsyncAnswer(mailbox, self._abort)

    async def reset_prefix_cache(self) -> bool:
        self.cache.resets += 1
        return True

    async def ask(self, question: Question) -> bytes | None:
        self.cache.asked.append(question)
        if isinstance(question, EndSession) and self.cache.told == b"{}":
            return b""
        return self.cache.told

    def _abort(self, mailbox: Mailbox) -> None:
        request_id = mailbox.answer.request.request_id
        self.aborted.append(request_id)
        self._tasks[request_id].cancel()
        self._end(request_id, mailbox)

    async def _run(self, request: Request, mailbox: Mailbox) -> None:
        saying = self.says.encode() * (1 + request.max_tokens // len(self.says.encode()))
        names = [child.request_id for child in request.children()]
        await asyncio.sleep(self._delay)
        self._take(mailbox, [*(RequestScheduled(name, CACHED, self.cache.lookup) for name in names), *_scored(request)])
        for count, token in enumerate(saying[: request.max_tokens]):
            if self._fault is not None and count == self._fault[1]:
                end, _, code = self._fault
                self._take(mailbox, [RequestFinished(name, end, error="Bad weather.", code=code) for name in names])
                break
            scores = (_logprobs(token, request.params.logprobs),) if request.params.logprobs is not None else ()
            said: list[Event] = [TokensGenerated(name, (token,), scores) for name in names]
            if token in request.stop_token_ids:
                said += [RequestFinished(name, "stop", stop_token=token) for name in names]
            self._take(mailbox, said)
            if mailbox.answer.finished:
                break
            await asyncio.sleep(self._delay)
        self._take(mailbox, [RequestFinished(name, "length") for name in names])
        self._end(request.request_id, mailbox)

    def _take(self, mailbox: Mailbox, events: Iterable[Event]) -> None:
        self._answers.take(events, 0.0, 0.0)
        mailbox.news.set()

    def _end(self, request_id: str, mailbox: Mailbox) -> None:
        self._answers.drop(request_id)
        self._tasks.pop(request_id, None)
        mailbox.end()


def _logprobs(token: int, top: int) -> TokenLogprobs:
    """The token is the second likeliest, unless only one is asked for."""
    ids = (token + 1, token, token + 2)[:top]
    return TokenLogprobs(-1.5, 2, ids, (-0.5, -1.5, -2.5)[: len(ids)])


def _scored(request: Request) -> list[Event]:
    top, ids = request.params.prompt_logprobs, request.prompt_token_ids
    if top is None or len(ids) == 1:
        return []
    return [PromptScored(request.request_id, 1, tuple(_logprobs(token, top) for token in ids[1:]))]


def make_app(engine: FakeEngine | None = None, **settings: Any) -> Starlette:
    """An app over a FakeEngine."""
    return create_app(engine or FakeEngine(), ServeSettings(**settings), Metrics(MODEL))


class Connection:
    """One HTTP request to an app without any server between: what it sends, and when the client leaves."""

    def __init__(self, app: Starlette, path: str, body: dict[str, Any], *, chunks: int = 1) -> None:
        raw = json.dumps(body).encode()
        size = -(-len(raw) // chunks)
        self._app = app
        self._path = path
        self._parts = [raw[place : place + size] for place in range(0, len(raw), size)]
        self._news: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._left = asyncio.Event()
        self.pause: asyncio.Event | None = None  # while not set, the client does not read

    def leave(self) -> None:
        """The client hangs up."""
        self._left.set()

    async def run(self) -> None:
        """The app's side, to its end."""
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": self._path,
            "raw_path": self._path.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": [(b"content-type", b"application/json")],
            "client": ("test", 1),
            "server": ("test", 80),
        }
        await self._app(scope, self._receive, self._send)

    async def next(self) -> dict[str, Any]:
        """The next message of the app."""
        return await asyncio.wait_for(self._news.get(), 5)

    async def messages(self) -> AsyncIterator[dict[str, Any]]:
        """All messages to the end of the answer."""
        while True:
            message = await self.next()
            yield message
            if message["type"] == "http.response.body" and not message.get("more_body"):
                return

    async def _receive(self) -> dict[str, Any]:
        if self._parts:
            part = self._parts.pop(0)
            return {"type": "http.request", "body": part, "more_body": bool(self._parts)}
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        if self.pause is not None:
            await self.pause.wait()
        self._news.put_nowait(dict(message))


def events_of(text: str) -> list[Any]:
    """The JSON of each event of a stream, which has to end with [DONE]; comments are left out."""
    blocks = [block for block in text.split("\n\n") if block and not block.startswith(":")]
    assert all(block.startswith("data: ") for block in blocks)
    assert blocks[-1] == "data: [DONE]"
    return [msgspec.json.decode(block[6:]) for block in blocks[:-1]]
