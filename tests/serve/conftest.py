"""A client of an app over a fake engine."""

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from starlette.testclient import TestClient
from tests.serve.fakes import FakeEngine, make_app

MakeClient = Callable[..., TestClient]


@pytest.fixture
def make_client() -> Iterator[MakeClient]:
    """make_client(engine=FakeEngine(), **settings): a client whose server turns bugs into 500s, as a real one does."""
    with ExitStack() as stack:

        def make(engine: FakeEngine | None = None, **settings: Any) -> TestClient:
            client = TestClient(make_app(engine, **settings), raise_server_exceptions=False)
            return stack.enter_context(client)

        yield make


@pytest.fixture
def client(make_client: MakeClient) -> TestClient:
    """A client of a server with the default settings."""
    return make_client()


@pytest.fixture
def own_logs() -> Iterator[None]:
    """What a server sets up for its logs in this process is taken back."""
    yield
    logger = logging.getLogger("pelton")
    logger.handlers.clear()
    logger.propagate = True
    logger.setLevel(logging.NOTSET)
