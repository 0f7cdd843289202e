"""POST /v1/chat/completions: shapes, streams, log-probabilities, what becomes of each field."""

from typing import Any

import pytest
from starlette.testclient import TestClient
from tests.serve.conftest import MakeClient
from tests.serve.fakes import CACHED, SAYS, FakeEngine, events_of

PATH = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "Hi"}]
PROMPT = "<start>user:Hi<end><start>assistant:"
PROMPT_TOKENS = len("user:Hiassistant:") + 3


def ask(client: TestClient, **fields: Any) -> Any:
    reply = client.post(PATH, json={"messages": HELLO, "max_tokens": 20, **fields})
    assert reply.status_code == 200, reply.text
    return events_of(reply.text) if fields.get("stream") else reply.json()


def said(tokens: int) -> str:
    return (SAYS * 20).encode()[:tokens].decode("utf-8", "replace")


def test_an_answer_has_the_shape_of_openai(client: TestClient) -> None:
    answer = ask(client)
    assert answer["id"].startswith("chatcmpl-")
    assert answer["object"] == "chat.completion"
    assert answer["model"] == "fake"
    assert answer["created"] > 1_700_000_000
    assert answer["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": said(20)},
            "logprobs": None,
            "finish_reason": "length",
            "stop_reason": None,
        }
    ]
    assert answer["usage"] == {
        "prompt_tokens": PROMPT_TOKENS,
        "completion_tokens": 20,
        "total_tokens": PROMPT_TOKENS + 20,
        "prompt_tokens_details": {"cached_tokens": CACHED},
    }
    assert answer["prompt_logprobs"] is None


def test_a_stream_says_what_the_whole_answer_says(client: TestClient) -> None:
    events = ask(client, stream=True, stream_options={"include_usage": True})
    *chunks, usage = events
    assert {chunk["object"] for chunk in events} == {"chat.completion.chunk"}
    assert len({chunk["id"] for chunk in events}) == 1
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == said(20)
    assert all("\ufffd" not in chunk["choices"][0]["delta"].get("content", "") for chunk in chunks[:-2])
    assert chunks[-1]["choices"][0] == {
        "index": 0,
        "delta": {},
        "logprobs": None,
        "finish_reason": "length",
        "stop_reason": None,
    }
    assert [chunk["usage"] for chunk in chunks] == [None] * len(chunks)
    assert usage["choices"] == []
    assert usage["usage"] == ask(client)["usage"]


def test_without_the_wish_a_stream_has_no_usage(client: TestClient) -> None:
    assert all("usage" not in chunk for chunk in ask(client, stream=True))


def test_usage_is_forced_by_the_setting(make_client: MakeClient) -> None:
    events = ask(make_client(enable_force_include_usage=True), stream=True)
    assert events[-1]["usage"]["completion_tokens"] == 20


def test_continuous_usage_counts_up(client: TestClient) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    events = ask(client, stream=True, stream_options=options)
    counts = [event["usage"]["completion_tokens"] for event in events]
    assert counts == sorted(counts)
    assert counts[-1] == 20
    assert counts[3] < 20
    told = [event["usage"]["prompt_tokens_details"]["cached_tokens"] for event in events]
    assert told == [CACHED] * len(events)


def test_n_answers_share_the_prompt(client: TestClient) -> None:
    answer = ask(client, n=3)
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    assert answer["usage"]["prompt_tokens"] == PROMPT_TOKENS
    assert answer["usage"]["completion_tokens"] == 60
    texts = dict.fromkeys(range(3), "")
    for event in ask(client, n=3, stream=True):
        (choice,) = event["choices"]
        texts[choice["index"]] += choice["delta"].get("content", "")
    assert texts == {index: said(20) for index in range(3)}


def test_log_probabilities_have_the_tokens_bytes(client: TestClient) -> None:
    entries = ask(client, logprobs=True, top_logprobs=2)["choices"][0]["logprobs"]["content"]
    assert len(entries) == 20
    assert b"".join(bytes(entry["bytes"]) for entry in entries) == (SAYS * 20).encode()[:20]
    assert entries[0] == {
        "token": "G",
        "logprob": -1.5,
        "bytes": [71],
        "top_logprobs": [
            {"token": "H", "logprob": -0.5, "bytes": [72]},
            {"token": "G", "logprob": -1.5, "bytes": [71]},
        ],
    }
    streamed = [
        entry
        for event in ask(client, logprobs=True, top_logprobs=2, stream=True)
        for choice in event["choices"]
        for entry in (choice["logprobs"] or {"content": []})["content"]
    ]
    assert streamed == entries
    plain = ask(client, logprobs=True)["choices"][0]["logprobs"]["content"]
    assert [entry["top_logprobs"] for entry in plain] == [[]] * 20
    as_ids = ask(client, logprobs=True, return_tokens_as_token_ids=True)["choices"][0]["logprobs"]["content"]
    assert as_ids[0]["token"] == "token_id:71"


def test_prompt_log_probabilities_and_ids(client: TestClient) -> None:
    answer = ask(client, prompt_logprobs=1, return_token_ids=True)
    scores = answer["prompt_logprobs"]
    assert len(scores) == PROMPT_TOKENS
    assert scores[0] is None
    assert scores[1]["117"] == {"logprob": -1.5, "rank": 2, "decoded_token": "u"}
    assert len(answer["prompt_token_ids"]) == PROMPT_TOKENS
    assert answer["choices"][0]["token_ids"] == list((SAYS * 20).encode()[:20])
    events = ask(client, return_token_ids=True, stream=True)
    assert events[0]["prompt_token_ids"] == answer["prompt_token_ids"]
    ids = [token for event in events for token in event["choices"][0].get("token_ids", [])]
    assert ids == answer["choices"][0]["token_ids"]


def test_without_a_length_there_is_all_the_room(make_client: MakeClient) -> None:
    engine = FakeEngine(max_len=100)
    reply = make_client(engine).post(PATH, json={"messages": HELLO})
    assert reply.json()["usage"]["total_tokens"] == 100
    engine = FakeEngine(max_len=100, values={"max_tokens": 7})
    reply = make_client(engine).post(PATH, json={"messages": HELLO, "explain": True})
    assert reply.json()["usage"]["completion_tokens"] == 7
    assert reply.json()["pelton"]["sampling"]["max_tokens"] == {"value": 7, "origin": "generation_config"}


def test_max_completion_tokens_is_max_tokens(client: TestClient) -> None:
    assert ask(client, max_tokens=None, max_completion_tokens=3)["usage"]["completion_tokens"] == 3
    reply = client.post(PATH, json={"messages": HELLO, "max_completion_tokens": 10**6})
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == "max_completion_tokens"
    assert reply.json()["error"]["code"] == "context_length_exceeded"


def test_a_stop_string_ends_the_text_before_it(client: TestClient) -> None:
    (choice,) = ask(client, stop=["世"])["choices"]
    assert choice["message"]["content"] == "Grüße, "
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", "世")
    events = ask(client, stop="世", stream=True)
    assert "".join(event["choices"][0]["delta"].get("content", "") for event in events) == "Grüße, "
    assert events[-1]["choices"][0]["stop_reason"] == "世"


def test_explain_tells_values_and_origins(make_client: MakeClient) -> None:
    client = make_client(FakeEngine(values={"temperature": 0.25}))
    told = ask(client, explain=True, top_p=0.5)["pelton"]["sampling"]
    assert told["temperature"] == {"value": 0.25, "origin": "generation_config"}
    assert told["top_p"] == {"value": 0.5, "origin": "request"}
    assert told["min_p"] == {"value": 0.0, "origin": "default"}
    assert told["max_tokens"] == {"value": 20, "origin": "request"}
    events = ask(client, explain=True, top_p=0.5, stream=True, seed=4)
    assert events[-1]["pelton"]["sampling"] == {**told, "seed": {"value": 4, "origin": "request"}}


def test_explain_tells_the_seed_that_was_drawn_and_the_room_there_is(make_client: MakeClient) -> None:
    engine = FakeEngine()
    client = make_client(engine)
    for seed in (None, -1):
        told = ask(client, explain=True, max_tokens=None, seed=seed)["pelton"]["sampling"]
        request = engine.submitted[-1]
        assert told["seed"] == {"value": request.params.seed, "origin": "drawn"}
        assert told["max_tokens"] == {"value": 256 - len(request.prompt_token_ids), "origin": "room"}
        assert request.max_tokens == told["max_tokens"]["value"]
    assert "pelton" not in ask(client)


def test_the_template_sees_what_is_asked(make_client: MakeClient) -> None:
    engine = FakeEngine()
    client = make_client(engine)
    ask(client, chat_template_kwargs={"shout": True})
    assert engine.submitted[-1].prompt == PROMPT + "!"
    ask(client, add_generation_prompt=False)
    assert engine.submitted[-1].prompt == "<start>user:Hi<end>"
    messages = [*HELLO, {"role": "assistant", "content": "Well"}]
    answer = ask(client, messages=messages, continue_final_message=True, echo=True)
    assert engine.submitted[-1].prompt == "<start>user:Hi<end><start>assistant:Well"
    assert answer["choices"][0]["message"]["content"] == "Well" + said(20)
    events = ask(client, messages=messages, continue_final_message=True, echo=True, stream=True)
    assert "".join(event["choices"][0]["delta"].get("content", "") for event in events) == "Well" + said(20)
    parts = [{"type": "text", "text": "Hi"}, {"type": "text", "text": "there"}]
    ask(client, messages=[{"role": "user", "content": parts}])
    assert engine.submitted[-1].prompt == "<start>user:Hi\nthere<end><start>assistant:"


def test_a_template_of_the_request_needs_trust(make_client: MakeClient) -> None:
    reply = make_client().post(PATH, json={"messages": HELLO, "chat_template": "x"})
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == "chat_template"
    engine = FakeEngine()
    client = make_client(engine, trust_request_chat_template=True)
    ask(client, chat_template="<start>{{ messages[0].content }}")
    assert engine.submitted[-1].prompt == "<start>Hi"


def test_a_priority_that_would_have_no_effect_is_refused(make_client: MakeClient) -> None:
    reply = make_client().post(PATH, json={"messages": HELLO, "priority": 1})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "priority")
    assert "scheduling_policy=priority" in reply.json()["error"]["message"]
    for policy, priority in (("fcfs", 0), ("fcfs", None), ("priority", 1)):
        ask(make_client(FakeEngine(policy=policy)), priority=priority)


def test_fields_reach_the_engine(make_client: MakeClient) -> None:
    engine = FakeEngine(policy="priority")
    ask(
        make_client(engine),
        temperature=0.5,
        seed=3,
        priority=-2,
        cache_salt="mine",
        logit_bias={"65": 2, "66": -1.5},
        bad_words=["x"],
        min_tokens=2,
        stop_token_ids=[9],
        frequency_penalty=1,
    )
    request = engine.submitted[-1]
    assert (request.priority, request.cache_salt) == (-2, "mine")
    params = request.params
    assert (params.temperature, params.seed, params.min_tokens, params.frequency_penalty) == (0.5, 3, 2, 1.0)
    assert params.logit_bias == {65: 2.0, 66: -1.5}
    assert request.bad_word_ids
    assert 9 in request.stop_token_ids


def test_the_request_id_names_the_answer(client: TestClient) -> None:
    reply = client.post(PATH, json={"messages": HELLO, "max_tokens": 1}, headers={"X-Request-Id": "abc"})
    assert reply.headers["x-request-id"] == "abc"
    assert reply.json()["id"] == "chatcmpl-abc"
    assert ask(client, request_id="own")["id"] == "chatcmpl-own"


@pytest.mark.parametrize("length", [0, 1])
def test_shortest_answers(client: TestClient, length: int) -> None:
    assert ask(client, max_tokens=length)["choices"][0]["message"]["content"] == "G"[:length]
    events = ask(client, max_tokens=length, stream=True)
    assert events[-1]["choices"][0]["finish_reason"] == "length"
