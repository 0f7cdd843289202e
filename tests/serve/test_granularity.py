"""`stream_granularity` over HTTP: where chunks end, and what goes with them: counts, log-probabilities, ids, stops."""

from itertools import accumulate
from typing import Any

import pytest
import regex
from starlette.testclient import TestClient
from tests.serve.conftest import MakeClient
from tests.serve.fakes import FakeEngine, events_of, make_front

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
FAMILY = "\U0001f468\u200d\U0001f469\u200d\U0001f467"
TEXT = f"Hi {FAMILY} there. It's 3.14, she said! "
GRANULARITIES = ("token", "word", "sentence")


@pytest.fixture
def client(make_client: MakeClient) -> TestClient:
    engine = FakeEngine()
    engine.says = TEXT
    return make_client(engine)


def ask(client: TestClient, path: str, **fields: Any) -> list[Any]:
    prompt = {"prompt": "x"} if path == COMPLETIONS else {"messages": [{"role": "user", "content": "x"}]}
    reply = client.post(path, json={**prompt, "stream": True, "max_tokens": len(TEXT.encode()), **fields})
    assert reply.status_code == 200, reply.text
    return [event for event in events_of(reply.text) if event["choices"]]


def texts(events: list[Any], index: int = 0) -> list[str]:
    choices = [choice for event in events for choice in event["choices"] if choice["index"] == index]
    return [choice["text"] if "text" in choice else choice["delta"].get("content", "") for choice in choices]


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_chunks_end_where_they_should(client: TestClient, path: str) -> None:
    borders = {
        "word": {found.start() for found in regex.finditer(r"(?w)\b", TEXT)},
        "sentence": {TEXT.index("It"), len(TEXT)},
    }
    for granularity, allowed in borders.items():
        told = [text for text in texts(ask(client, path, stream_granularity=granularity)) if text]
        assert "".join(told) == TEXT and len(told) > 1
        assert set(accumulate(map(len, told))) <= allowed | {len(TEXT)}
    assert "".join(texts(ask(client, path))) == TEXT


@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_counts_tokens_and_log_probabilities_are_the_same(client: TestClient, granularity: str) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    fields = {"n": 2, "logprobs": 1, "return_token_ids": True, "stream_options": options}
    size = len(TEXT.encode())
    events = ask(client, COMPLETIONS, stream_granularity=granularity, **fields)
    for index in (0, 1):
        choices = [choice for event in events for choice in event["choices"] if choice["index"] == index]
        assert [token for choice in choices for token in choice["token_ids"]] == list(TEXT.encode())
        assert sum(len(choice["logprobs"]["tokens"]) for choice in choices) == size
        assert "".join(choice["text"] for choice in choices) == TEXT
        told = text = 0
        for choice in choices:
            told += len(choice["token_ids"])
            text += len(choice["text"].encode())
            assert told >= text, "a token comes no later than its text"
            assert granularity == "token" or choice["text"] or choice["finish_reason"], "no chunk without text"
    counts = [event["usage"]["completion_tokens"] for event in events]
    assert counts == sorted(counts) and counts[-1] == 2 * size


@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("include", [False, True])
def test_a_stop_string_ends_it_as_early(make_client: MakeClient, granularity: str, include: bool) -> None:
    engine = FakeEngine()
    engine.says = TEXT
    client = make_client(engine)
    stop = FAMILY[1:3]  # in the middle of a sequence
    fields = {"stop": stop, "include_stop_str_in_output": include, "stream_granularity": granularity}
    events = ask(client, COMPLETIONS, **fields, stream_options={"include_usage": True})
    assert "".join(texts(events)) == ("Hi " + FAMILY[:3] if include else "Hi " + FAMILY[0])
    last = events[-1]["choices"][0]
    assert (last["finish_reason"], last["stop_reason"]) == ("stop", stop)
    whole = client.post(COMPLETIONS, json={"prompt": "x", "max_tokens": 60, **fields}).json()
    assert whole["usage"]["completion_tokens"] == len(("Hi " + FAMILY[:3]).encode())
    assert whole["choices"][0]["text"] == "".join(texts(events))


def test_it_is_told_with_the_other_values(client: TestClient) -> None:
    body = {"prompt": "x", "max_tokens": 1, "explain": True, "stream_granularity": "word"}
    told = client.post(COMPLETIONS, json=body).json()["pelton"]["sampling"]["stream_granularity"]
    assert told == {"value": "word", "origin": "request"}


@pytest.mark.parametrize("path", [CHAT, "/tokenize"])
def test_messages_for_a_model_without_a_template(make_client: MakeClient, path: str) -> None:
    client = make_client(FakeEngine(front=make_front(template=None)))
    reply = client.post(path, json={"messages": [{"role": "user", "content": "x"}]})
    error = reply.json()["error"]
    assert (reply.status_code, error["param"], error["code"]) == (400, "messages", "no_chat_template")
    assert "fake has no chat template" in error["message"] and "/v1/completions" in error["message"]
    assert client.post(COMPLETIONS, json={"prompt": "x", "max_tokens": 1}).status_code == 200
