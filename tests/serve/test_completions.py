"""POST /v1/completions: kinds of prompts, echo, the legacy log-probabilities and their places in the text."""

from typing import Any

import pytest
from starlette.testclient import TestClient
from tests.serve.conftest import MakeClient
from tests.serve.fakes import CACHED, SAYS, FakeEngine, events_of

PATH = "/v1/completions"


def ask(client: TestClient, **fields: Any) -> Any:
    reply = client.post(PATH, json={"prompt": "Say é", "max_tokens": 20, **fields})
    assert reply.status_code == 200, reply.text
    return events_of(reply.text) if fields.get("stream") else reply.json()


def test_usage_so_far_tells_what_was_cached_once_it_is_known_of_all_prompts(client: TestClient) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    events = ask(client, prompt=["a", "b", "c"], max_tokens=5, stream=True, stream_options=options)
    details = [event["usage"].get("prompt_tokens_details") for event in events]
    assert details[0] is None and details[-1] == {"cached_tokens": 3 * CACHED}
    known = details.index({"cached_tokens": 3 * CACHED})
    assert details == [None] * known + [{"cached_tokens": 3 * CACHED}] * (len(details) - known)


def test_explain_tells_the_seed_of_each_prompt(make_client: MakeClient) -> None:
    engine = FakeEngine()
    client = make_client(engine)
    told = ask(client, prompt=["a", "b"], explain=True)["pelton"]["sampling"]
    assert told["seed"] == {"value": [request.params.seed for request in engine.submitted], "origin": "drawn"}
    assert len(set(told["seed"]["value"])) == 2 and told["max_tokens"] == {"value": 20, "origin": "request"}
    told = ask(client, prompt=["a", "b"], explain=True, seed=3)["pelton"]["sampling"]
    assert told["seed"] == {"value": 3, "origin": "request"}


def said(tokens: int) -> str:
    return (SAYS * 20).encode()[:tokens].decode("utf-8", "replace")


def put_together(events: list[Any]) -> dict[int, dict[str, Any]]:
    """The choices of a stream, by index, with the lists of their log-probabilities joined."""
    whole: dict[int, dict[str, Any]] = {}
    for event in events:
        for choice in event["choices"]:
            one = whole.setdefault(choice["index"], {"text": "", "logprobs": {}, "finish_reason": None})
            one["text"] += choice["text"]
            one["finish_reason"] = choice["finish_reason"] or one["finish_reason"]
            for name, values in (choice["logprobs"] or {}).items():
                one["logprobs"].setdefault(name, []).extend(values)
    return whole


def test_an_answer_has_the_shape_of_openai(client: TestClient) -> None:
    answer = ask(client)
    assert answer["id"].startswith("cmpl-")
    assert (answer["object"], answer["model"]) == ("text_completion", "fake")
    assert answer["choices"] == [
        {"index": 0, "text": said(20), "logprobs": None, "finish_reason": "length", "stop_reason": None}
        | {"prompt_logprobs": None}
    ]
    assert answer["usage"] == {
        "prompt_tokens": 6,
        "completion_tokens": 20,
        "total_tokens": 26,
        "prompt_tokens_details": {"cached_tokens": CACHED},
    }


def test_sixteen_tokens_unless_said(client: TestClient) -> None:
    assert ask(client, max_tokens=None)["usage"]["completion_tokens"] == 16


@pytest.mark.parametrize(
    ("prompt", "sizes"),
    [
        ("abc", [3]),
        (["abc", "de"], [3, 2]),
        ([65, 66], [2]),
        ([[65], [66, 67, 68]], [1, 3]),
    ],
)
def test_each_kind_of_prompt(make_client: MakeClient, prompt: Any, sizes: list[int]) -> None:
    engine = FakeEngine()
    client = make_client(engine)
    answer = ask(client, prompt=prompt, n=2)
    assert [len(request.prompt_token_ids) for request in engine.submitted] == sizes
    assert [choice["index"] for choice in answer["choices"]] == list(range(2 * len(sizes)))
    assert answer["usage"]["prompt_tokens"] == sum(sizes)
    assert answer["usage"]["completion_tokens"] == 40 * len(sizes)
    streamed = put_together(ask(client, prompt=prompt, n=2, stream=True))
    assert {index: one["text"] for index, one in streamed.items()} == {
        choice["index"]: choice["text"] for choice in answer["choices"]
    }


def test_echo_puts_the_prompt_in_front(client: TestClient) -> None:
    assert ask(client, echo=True)["choices"][0]["text"] == "Say é" + said(20)
    assert ask(client, echo=True, prompt=[72, 256])["choices"][0]["text"] == "H<end>" + said(20)
    events = ask(client, echo=True, stream=True)
    assert events[0]["choices"][0]["text"].startswith("Say é")
    assert put_together(events)[0]["text"] == "Say é" + said(20)


@pytest.mark.parametrize("length", [0, 1, 20])
@pytest.mark.parametrize("stream", [False, True])
def test_echo_with_log_probabilities_has_one_entry_for_each_token(
    client: TestClient, length: int, stream: bool
) -> None:
    given = {"echo": True, "logprobs": 2, "max_tokens": length, "stream": stream}
    answer = ask(client, **given)
    choice = put_together(answer)[0] if stream else answer["choices"][0]
    text, entries = choice["text"], choice["logprobs"]
    prompt = len("Say é".encode())
    assert text == "Say é" + said(length)
    assert choice["finish_reason"] == "length"
    assert [len(entries[name]) for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset")] == [
        prompt + length
    ] * 4
    assert (entries["token_logprobs"][0], entries["top_logprobs"][0]) == (None, None)
    assert entries["token_logprobs"][1:] == [-1.5] * (prompt + length - 1)
    assert entries["top_logprobs"][1] == {"a": -1.5, "b": -0.5}
    # Each whole token is found in the text at its place; parts of a character are at the character's.
    for token, place in zip(entries["tokens"], entries["text_offset"], strict=True):
        assert token in (text[place], "\ufffd")
    assert entries["text_offset"][4:6] == [4, 4]
    assert entries["text_offset"] == sorted(entries["text_offset"])


def test_without_echo_places_count_from_the_answer(client: TestClient) -> None:
    for stream in (False, True):
        answer = ask(client, logprobs=0, stream=stream)
        entries = (put_together(answer)[0] if stream else answer["choices"][0])["logprobs"]
        assert entries["text_offset"][:4] == [0, 1, 2, 2]
        assert entries["top_logprobs"][0] == {"G": -1.5}
        assert len(entries["tokens"]) == 20


def test_a_batch_with_echo_and_log_probabilities(client: TestClient) -> None:
    given = {"prompt": ["ab", "cde"], "n": 2, "echo": True, "logprobs": 1, "max_tokens": 2}
    answer = ask(client, **given)
    assert [choice["text"] for choice in answer["choices"]] == ["abGr", "abGr", "cdeGr", "cdeGr"]
    assert [choice["logprobs"]["token_logprobs"][0] for choice in answer["choices"]] == [None] * 4
    streamed = put_together(ask(client, **given, stream=True))
    for choice in answer["choices"]:
        assert streamed[choice["index"]]["logprobs"] == choice["logprobs"]


def test_prompt_log_probabilities_are_there_when_asked_for(client: TestClient) -> None:
    scores = ask(client, prompt_logprobs=1)["choices"][0]["prompt_logprobs"]
    assert len(scores) == 6
    assert scores[0] is None
    (choice,) = ask(client, logprobs=1, echo=True)["choices"]
    assert choice["logprobs"]["tokens"][0] == "S"
    assert choice["prompt_logprobs"] is None


def test_ids_of_tokens(client: TestClient) -> None:
    (choice,) = ask(client, return_token_ids=True)["choices"]
    assert choice["prompt_token_ids"] == list("Say é".encode())
    assert choice["token_ids"] == list((SAYS * 20).encode()[:20])
    events = ask(client, return_token_ids=True, stream=True)
    assert events[0]["choices"][0]["prompt_token_ids"] == choice["prompt_token_ids"]
    assert [token for event in events for token in event["choices"][0]["token_ids"]] == choice["token_ids"]


def test_usage_of_a_stream(client: TestClient) -> None:
    events = ask(client, prompt=["a", "bc"], stream=True, stream_options={"include_usage": True})
    assert events[-1]["choices"] == []
    assert events[-1]["usage"]["prompt_tokens"] == 3
    assert events[-1]["usage"]["completion_tokens"] == 40


def test_a_length_beyond_the_context_is_refused(make_client: MakeClient) -> None:
    client = make_client(FakeEngine(max_len=10))
    reply = client.post(PATH, json={"prompt": ["a", "abcdefgh"], "max_tokens": 5})
    error = reply.json()["error"]
    assert reply.status_code == 400
    assert (error["param"], error["code"]) == ("max_tokens", "context_length_exceeded")
    # The general default is no wish of the client's.
    assert ask(client, prompt="abcdefgh", max_tokens=None)["usage"]["completion_tokens"] == 2
