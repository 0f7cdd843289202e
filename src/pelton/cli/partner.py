"""Partner: who answers a conversation: a model in this process, or a server. It keeps nothing of what was said."""

from collections.abc import Mapping, Sized
from typing import Protocol

from pelton.cli.answer import Printed, print_answer
from pelton.core.errors import PeltonError
from pelton.core.params import SamplingParams
from pelton.engine.llm import LLM

Said = list[dict[str, str]]


class ServerError(PeltonError):
    """The server cannot be reached, or does not do what it is asked for."""


class Server(Protocol):
    """An OpenAI-compatible server (see cli/remote.py, which is imported only by those who talk to one)."""

    @property
    def model(self) -> str: ...

    def print_answer(self, route: str, body: Mapping[str, object]) -> Printed:
        """Streams an answer to stdout; ServerError where there is none."""
        ...


class Partner(Protocol):
    """`name`: of the model. `context`: tokens it takes, the answer included; None where nobody told."""

    @property
    def name(self) -> str: ...

    @property
    def context(self) -> int | None: ...

    def size(self, said: Said) -> int | None:
        """Tokens of what was said, as the model sees it; None where nobody told. RequestError for what cannot be."""
        ...

    def answer(self, said: Said) -> Printed:
        """Prints the answer to what was said. RequestError or ServerError where there is none."""
        ...


class LocalPartner:
    """A model in this process."""

    def __init__(self, llm: LLM, params: SamplingParams) -> None:
        self._llm = llm
        self._params = params

    @property
    def name(self) -> str:
        return self._llm.report.model

    @property
    def context(self) -> int | None:
        return self._llm.report.max_model_len

    def size(self, said: Said) -> int | None:
        ids = self._llm.chat_prompt(said)["prompt_token_ids"]
        assert isinstance(ids, Sized)
        return len(ids)

    def answer(self, said: Said) -> Printed:
        return print_answer(self._llm, self._llm.chat_prompt(said), self._params)


class RemotePartner:
    """A model of a server; `settings` go into each request."""

    def __init__(self, remote: Server, settings: dict[str, object]) -> None:
        self._remote = remote
        self._settings = settings

    @property
    def name(self) -> str:
        return self._remote.model

    @property
    def context(self) -> int | None:
        return None

    def size(self, said: Said) -> int | None:
        return None

    def answer(self, said: Said) -> Printed:
        return self._remote.print_answer("/chat/completions", {**self._settings, "messages": said})
