"""What clients get wrong: each case is a 4xx that names the field, and the server answers the next request."""

import json
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.testclient import TestClient
from tests.serve.conftest import MakeClient
from tests.serve.fakes import FakeEngine

from pelton.core.errors import RequestError
from pelton.serve.schema.json_text import read_object

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
HELLO = {"messages": [{"role": "user", "content": "Hi"}]}
DEEP = "[" * 50_000

# (path, fields, param of the error)
CASES: list[tuple[str, dict[str, Any], str | None]] = [
    (COMPLETIONS, {}, "prompt"),
    (COMPLETIONS, {"prompt": ""}, "prompt"),
    (COMPLETIONS, {"prompt": None}, "prompt"),
    (COMPLETIONS, {"prompt": []}, "prompt"),
    (COMPLETIONS, {"prompt": [[]]}, "prompt"),
    (COMPLETIONS, {"prompt": ["a", ""]}, "prompt[1]"),
    (COMPLETIONS, {"prompt": ["a", 5]}, "prompt[1]"),
    (COMPLETIONS, {"prompt": {"a": 1}}, "prompt"),
    (COMPLETIONS, {"prompt": [1.5]}, "prompt[0]"),
    (COMPLETIONS, {"prompt": [65, True]}, "prompt[1]"),
    (COMPLETIONS, {"prompt": [65, 10**6]}, "prompt"),
    (COMPLETIONS, {"prompt": [65, 10**30]}, "prompt"),
    (COMPLETIONS, {"prompt": [-1]}, "prompt"),
    (COMPLETIONS, {"prompt": "x" * 1000}, "prompt"),
    (COMPLETIONS, {"prompt": ["x"] * 5000}, "prompt"),
    (COMPLETIONS, {"prompt": "x", "max_tokens": 10**9}, "max_tokens"),
    (COMPLETIONS, {"prompt": "x", "max_tokens": 10**30}, "max_tokens"),
    (COMPLETIONS, {"prompt": "x", "max_tokens": -1}, "max_tokens"),
    (COMPLETIONS, {"prompt": "x", "max_tokens": "7"}, "max_tokens"),
    (COMPLETIONS, {"prompt": "x", "max_tokens": 7.5}, "max_tokens"),
    (COMPLETIONS, {"prompt": "x", "max_tokens": True}, "max_tokens"),
    (COMPLETIONS, {"prompt": "x", "min_tokens": 9, "max_tokens": 3}, "min_tokens"),
    (COMPLETIONS, {"prompt": "x", "n": 0}, "n"),
    (COMPLETIONS, {"prompt": "x", "n": 1_000_000}, "n"),
    (COMPLETIONS, {"prompt": "x", "n": 129}, "n"),
    (COMPLETIONS, {"prompt": ["x"] * 100, "n": 100}, "n"),
    (COMPLETIONS, {"prompt": "x", "stop": ["x"] * 257}, "stop"),
    (COMPLETIONS, {"prompt": "x", "bad_words": ["x" * 200] * 100}, "bad_words"),
    (COMPLETIONS, {"prompt": "x", "logit_bias": {"5": 1, "05": 1}}, "logit_bias"),
    (COMPLETIONS, {"prompt": "x", "priority": 1}, "priority"),
    (COMPLETIONS, {"prompt": "x", "temperature": 2.1}, "temperature"),
    (COMPLETIONS, {"prompt": "x", "temperature": -0.1}, "temperature"),
    (COMPLETIONS, {"prompt": "x", "temperature": "hot"}, "temperature"),
    (COMPLETIONS, {"prompt": "x", "temperature": [1]}, "temperature"),
    (COMPLETIONS, {"prompt": "x", "top_p": 0}, "top_p"),
    (COMPLETIONS, {"prompt": "x", "top_p": 1.1}, "top_p"),
    (COMPLETIONS, {"prompt": "x", "top_k": -2}, "top_k"),
    (COMPLETIONS, {"prompt": "x", "min_p": 2}, "min_p"),
    (COMPLETIONS, {"prompt": "x", "presence_penalty": 3}, "presence_penalty"),
    (COMPLETIONS, {"prompt": "x", "repetition_penalty": 0}, "repetition_penalty"),
    (COMPLETIONS, {"prompt": "x", "seed": 2**64}, "seed"),
    (COMPLETIONS, {"prompt": "x", "seed": "s"}, "seed"),
    (COMPLETIONS, {"prompt": "x", "logprobs": 21}, "logprobs"),
    (COMPLETIONS, {"prompt": "x", "logprobs": True}, "logprobs"),
    (COMPLETIONS, {"prompt": "x", "prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
    (COMPLETIONS, {"prompt": "x", "stop": ["a", 5]}, "stop[1]"),
    (COMPLETIONS, {"prompt": "x", "stop": [""]}, "stop"),
    (COMPLETIONS, {"prompt": "x", "stop": 7}, "stop"),
    (COMPLETIONS, {"prompt": "x", "stop_token_ids": [10**6]}, "stop_token_ids"),
    (COMPLETIONS, {"prompt": "x", "stop_token_ids": ["a"]}, "stop_token_ids[0]"),
    (COMPLETIONS, {"prompt": "x", "logit_bias": {"a": 1}}, "logit_bias"),
    (COMPLETIONS, {"prompt": "x", "logit_bias": {"5": 101}}, "logit_bias"),
    (COMPLETIONS, {"prompt": "x", "logit_bias": {"4": 1, "5": "x"}}, "logit_bias"),
    (
        COMPLETIONS,
        {"prompt": "x", "allowed_token_ids": [9], "stop_token_ids": [9], "min_tokens": 1},
        "allowed_token_ids",
    ),
    (COMPLETIONS, {"prompt": "x", "logit_bias": {"999999": 1}}, "logit_bias"),
    (COMPLETIONS, {"prompt": "x", "logit_bias": [1]}, "logit_bias"),
    (COMPLETIONS, {"prompt": "x", "allowed_token_ids": []}, "allowed_token_ids"),
    (COMPLETIONS, {"prompt": "x", "allowed_token_ids": [10**6]}, "allowed_token_ids"),
    (COMPLETIONS, {"prompt": "x", "stream": "yes"}, "stream"),
    (COMPLETIONS, {"prompt": "x", "stream_options": {"include_usage": True}}, "stream_options"),
    (
        COMPLETIONS,
        {"prompt": "x", "stream": True, "stream_options": {"include_usage": 1}},
        "stream_options.include_usage",
    ),
    (COMPLETIONS, {"prompt": "x", "priority": 2**40}, "priority"),
    (COMPLETIONS, {"prompt": "x", "cache_salt": ""}, "cache_salt"),
    (COMPLETIONS, {"prompt": "x", "model": 5}, "model"),
    (COMPLETIONS, {"prompt": "x", "suffix": "y", "echo": True}, "echo"),
    (COMPLETIONS, {"prompt": "x", "suffix": "y", "add_special_tokens": False}, "add_special_tokens"),
    (COMPLETIONS, {"prompt": "x", "suffix": 3}, "suffix"),
    (COMPLETIONS, {"prompt": "x", "grammar": "root ::= 'a'"}, "grammar"),
    (COMPLETIONS, {"prompt": "x", "stream_granularity": "line"}, "stream_granularity"),
    (COMPLETIONS, {"prompt": "x", "best_of": 3}, "best_of"),
    (COMPLETIONS, {"prompt": "x", "use_beam_search": True}, "use_beam_search"),
    (COMPLETIONS, {"prompt": "x", "prompt_embeds": "AAAA"}, "prompt_embeds"),
    (COMPLETIONS, {"prompt": "x", "typical_p": 0.5}, "typical_p"),
    (COMPLETIONS, {"prompt": "x", "mirostat": 2}, "mirostat"),
    (COMPLETIONS, {"prompt": "x", "dry_multiplier": 0.8}, "dry_multiplier"),
    (COMPLETIONS, {"prompt": "x", "xtc_probability": 0.5}, "xtc_probability"),
    (COMPLETIONS, {"prompt": "x", "guided_regex": "a+"}, "guided_regex"),
    (COMPLETIONS, {"prompt": "x", "structured_outputs": {"regex": "a"}}, "structured_outputs"),
    (COMPLETIONS, {"prompt": "x", "truncate_prompt_tokens": 5}, "truncate_prompt_tokens"),
    (CHAT, {}, "messages"),
    (CHAT, {"messages": []}, "messages"),
    (CHAT, {"messages": "Hi"}, "messages"),
    (CHAT, {"messages": [5]}, "messages[0]"),
    (CHAT, {"messages": [{}]}, "messages[0].role"),
    (CHAT, {"messages": [{"role": "user"}]}, "messages[0].content"),
    (CHAT, {"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
    (CHAT, {"messages": [{"role": "user", "content": []}]}, "messages[0].content"),
    (CHAT, {"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
    (
        CHAT,
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
        "messages[0].content[0]",
    ),
    (CHAT, {"messages": [{"role": "tool", "content": "5"}]}, "messages[0].role"),
    (CHAT, {"messages": [{"role": "assistant", "content": "", "tool_calls": [{}]}]}, "messages[0].tool_calls"),
    (CHAT, {"messages": [{"role": "user", "content": "x" * 1000}]}, "messages"),
    (CHAT, {**HELLO, "top_logprobs": 5}, "top_logprobs"),
    (CHAT, {**HELLO, "logprobs": 5}, "logprobs"),
    (CHAT, {**HELLO, "logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    (CHAT, {**HELLO, "tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
    (CHAT, {**HELLO, "tool_choice": "required"}, "tool_choice"),
    (CHAT, {**HELLO, "response_format": {"type": "json_object"}}, "response_format"),
    (CHAT, {**HELLO, "modalities": ["text", "audio"]}, "modalities"),
    (CHAT, {**HELLO, "chat_template_kwargs": {"messages": 1}}, "chat_template_kwargs"),
    (CHAT, {**HELLO, "chat_template_kwargs": 5}, "chat_template_kwargs"),
    (CHAT, {**HELLO, "add_generation_prompt": True, "continue_final_message": True}, "continue_final_message"),
    ("/tokenize", {}, "messages"),
    ("/tokenize", {"prompt": 5}, "prompt"),
    ("/detokenize", {}, "tokens"),
    ("/detokenize", {"tokens": "a"}, "tokens"),
    ("/detokenize", {"tokens": [10**9]}, "tokens"),
    ("/detokenize", {"tokens": [-1]}, "tokens[0]"),
]

RAW = [
    b"",
    b"{",
    b"nonsense",
    b"[]",
    b'"text"',
    b"5",
    b"null",
    b"\xff\xfe",
    b'{"prompt": "x", "temperature": NaN}',
    b'{"prompt": "x", "temperature": Infinity}',
    b'{"prompt": "x", "temperature": 1e999}',
    b'{"prompt": "x", "max_tokens": ' + b"9" * 5000 + b"}",
    b'{"prompt": "\xed\xa0\x80"}',
    b'{"prompt": ' + DEEP.encode(),
    b'{"prompt": ' + DEEP.encode() + b"]" * 50_000 + b"}",
]

# Half of a character, by field; the value that is whole is taken.
SURROGATES: list[tuple[str, str, str]] = [
    (COMPLETIONS, '{"prompt": "ab\\ud800"}', "prompt"),
    (COMPLETIONS, '{"prompt": ["ok", "\\udc00 x"]}', "prompt[1]"),
    (COMPLETIONS, '{"prompt": "x", "stop": ["\\ud83d"]}', "stop[0]"),
    (COMPLETIONS, '{"prompt": "x", "cache_salt": "\\ud83d"}', "cache_salt"),
    (CHAT, '{"messages": [{"role": "user", "content": "\\uD83D"}]}', "messages[0].content"),
    (CHAT, '{"messages": [{"role": "\\ud83dx", "content": "a"}]}', "messages[0].role"),
    ("/tokenize", '{"prompt": "\\ud83d"}', "prompt"),
]


def is_alive(client: TestClient) -> bool:
    return client.post(COMPLETIONS, json={"prompt": "x", "max_tokens": 1}).status_code == 200


@pytest.mark.parametrize(
    ("path", "fields", "param"), CASES, ids=[f"{path.split('/')[-1]}-{str(fields)[:60]}" for path, fields, _ in CASES]
)
def test_a_bad_field_is_a_400_by_its_name(
    client: TestClient, path: str, fields: dict[str, Any], param: str | None
) -> None:
    reply = client.post(path, json=fields)
    assert reply.status_code == 400, reply.text
    error = reply.json()["error"]
    assert error["param"] == param
    assert error["type"] == "invalid_request_error"
    assert error["code"]
    assert len(error["message"]) < 1100
    assert is_alive(client)


@pytest.mark.parametrize("raw", RAW, ids=[raw[:40].decode("latin-1") for raw in RAW])
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, "/tokenize", "/detokenize"])
def test_what_is_no_json_object_is_a_400(client: TestClient, path: str, raw: bytes) -> None:
    reply = client.post(path, content=raw, headers={"content-type": "application/json"})
    assert reply.status_code == 400, reply.text
    assert reply.json()["error"]["message"]
    assert is_alive(client)


@pytest.mark.parametrize(("path", "raw", "param"), SURROGATES, ids=[raw for _, raw, _ in SURROGATES])
def test_half_a_character_is_a_400_by_its_place(client: TestClient, path: str, raw: str, param: str) -> None:
    reply = client.post(path, content=raw.encode())
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == param
    assert "surrogate" in reply.json()["error"]["message"]
    assert is_alive(client)


def test_a_whole_pair_is_no_fault(client: TestClient) -> None:
    assert client.post(COMPLETIONS, content=b'{"prompt": "\\ud83d\\ude00", "max_tokens": 1}').status_code == 200


def test_the_context_is_named_by_its_code(client: TestClient) -> None:
    for path, fields in (
        (COMPLETIONS, {"prompt": "x" * 1000}),
        (COMPLETIONS, {"prompt": [65] * 1000}),
        (CHAT, {"messages": [{"role": "user", "content": "x" * 1000}]}),
    ):
        assert client.post(path, json=fields).json()["error"]["code"] == "context_length_exceeded"


def test_a_huge_prompt_is_refused(client: TestClient) -> None:
    text = "all work and no play " * 500_000
    for path, fields in (
        (COMPLETIONS, {"prompt": text}),
        (COMPLETIONS, {"prompt": [65] * 2_000_000}),
        (CHAT, {"messages": [{"role": "user", "content": text}]}),
        ("/tokenize", {"prompt": text}),
    ):
        reply = client.post(path, json=fields)
        assert (reply.status_code, reply.json()["error"]["code"]) == (400, "context_length_exceeded")
        assert len(reply.text) < 3000
    assert is_alive(client)


def test_a_body_above_the_limit_is_a_413(make_client: MakeClient) -> None:
    client = make_client(max_body_bytes=1000)
    reply = client.post(COMPLETIONS, json={"prompt": "x" * 2000})
    assert reply.status_code == 413
    assert reply.json()["error"]["code"] == "body_too_large"

    def chunks() -> Any:
        yield b'{"prompt": "'
        for _ in range(100):
            yield b"x" * 100
        yield b'"}'

    assert client.post(COMPLETIONS, content=chunks()).status_code == 413
    assert is_alive(client)


def test_an_unknown_model_is_a_404(client: TestClient) -> None:
    for path in (CHAT, COMPLETIONS):
        reply = client.post(path, json={"model": "gpt-9", "prompt": "x", **HELLO})
        assert reply.status_code == 404
        error = reply.json()["error"]
        assert (error["param"], error["code"]) == ("model", "model_not_found")


def test_unknown_fields_are_told_back(client: TestClient) -> None:
    reply = client.post(COMPLETIONS, json={"prompt": "x", "max_tokens": 1, "temprature": 1, "zzz": None, "user": "me"})
    assert reply.status_code == 200
    assert reply.headers["x-pelton-ignored"] == "temprature, zzz"
    odd = {f"line\r\nbreak {place} \u4e16": 1 for place in range(200)}
    reply = client.post(COMPLETIONS, json={"prompt": "x", "max_tokens": 1, "stream": True, **odd})
    assert reply.status_code == 200
    assert "and 168 more" in reply.headers["x-pelton-ignored"]
    reply = client.post("/tokenize", json={"prompt": "x", "zzz": 1})
    assert reply.headers["x-pelton-ignored"] == "zzz"
    assert "x-pelton-ignored" not in client.post(COMPLETIONS, json={"prompt": "x"}).headers


NESTED: list[tuple[str, dict[str, Any], str]] = [
    (COMPLETIONS, {"prompt": "x", "stream": True, "stream_options": {"include_usag": True, "x": None}},
     "stream_options.include_usag"),
    (CHAT, {"messages": [HELLO["messages"][0], {"role": "user", "content": "Hi", "name": "Bo", "audio": None}]},
     "messages[1].name"),
    (CHAT, {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi", "cache_control": {}}]}]},
     "messages[0].content[0].cache_control"),
    (CHAT, {**HELLO, "chat_template_kwargs": {"shout": True, "enable_thinking": True}},
     "chat_template_kwargs.enable_thinking"),
    ("/tokenize", {"messages": [{"role": "user", "content": "Hi", "weight": 1, "annotations": []}]},
     "messages[0].weight"),
    ("/tokenize", {"prompt": "x", "messages": [], "add_generation_prompt": None}, "messages"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "fields", "name"), NESTED)
def test_what_takes_no_effect_inside_a_field_is_told_or_refused(
    make_client: MakeClient, path: str, fields: dict[str, Any], name: str
) -> None:
    reply = make_client().post(path, json=fields)
    assert (reply.status_code, reply.headers.get("x-pelton-ignored")) == (200, name)
    refused = make_client(strict=True).post(path, json=fields)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, name)


def test_what_the_template_looks_at_takes_effect(make_client: MakeClient) -> None:
    engine = FakeEngine()
    template = "{% for m in messages %}{{ m['name'] }}:{{ m.content }}{% endfor %}"
    client = make_client(engine, trust_request_chat_template=True, strict=True)
    message = {"role": "user", "content": "Hi", "name": "Bo"}
    assert client.post(CHAT, json={"messages": [message], "chat_template": template}).status_code == 200
    assert engine.submitted[0].prompt == "Bo:Hi"


def test_a_logit_that_is_named_twice_is_refused(client: TestClient) -> None:
    for path, start in ((COMPLETIONS, b'{"prompt": "x", '), (CHAT, json.dumps(HELLO).encode()[:-1] + b", ")):
        reply = client.post(path, content=start + b'"logit_bias": {"5": 1, "6": 1, "5": 2}}')
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, "logit_bias")
        assert client.post(path, content=start + b'"logit_bias": {"5": 1, "6": 1}}').status_code == 200
        for odd in (b"1" * 5000, b"[" * 50_000 + b"]" * 50_000, b"1e999"):
            reply = client.post(path, content=start + b'"logit_bias": {"5": ' + odd + b"}}")
            assert reply.status_code == 400, odd[:20]


def test_a_logit_that_cannot_be_is_named(client: TestClient) -> None:
    for value in (-101, "x", None, [1], True):
        reply = client.post(COMPLETIONS, json={"prompt": "x", "logit_bias": {"4": 100, "5": value, "6": 5}})
        assert reply.status_code == 400 and "logit_bias['5'] cannot be used" in reply.json()["error"]["message"]


WORDS: list[tuple[str, dict[str, Any], str]] = [
    (COMPLETIONS, {"stream_granularity": "line"}, "='line' cannot be used: it must be one of: token, word, sentence."),
    (COMPLETIONS, {"stream_granularity": 3}, "it must be one of: token, word, sentence."),
    (COMPLETIONS, {"n": "2"}, "n='2' cannot be used: it must be a whole number, not text."),
    (COMPLETIONS, {"n": 1.5}, "n=1.5 cannot be used: it must be a whole number."),
    (COMPLETIONS, {"n": 0}, "n=0 cannot be used: it must be a whole number >= 1."),
    (COMPLETIONS, {"temperature": True}, "it must be a number, not true or false."),
    (COMPLETIONS, {"stop": 3}, "stop=3 cannot be used: it must be text or a list, not a number."),
    (COMPLETIONS, {"stream": []}, "stream cannot be used: it must be true or false, not a list."),
    (COMPLETIONS, {"stream_options": "x"}, "it must be a table, not text."),
    (COMPLETIONS, {"stop_token_ids": [None]}, "stop_token_ids[0] cannot be used: it must be a whole number, not null."),
    (COMPLETIONS, {"cache_salt": ""}, "it must be text of length >= 1."),
    ("/infill", {"input_extra": "x"}, "input_extra='x' cannot be used: it must be a list, not text."),
    ("/infill", {"input_extra": [{}]}, "input_extra[0].text is missing. Give input_extra[0].text."),
]


@pytest.mark.parametrize(("path", "fields", "told"), WORDS, ids=[str(fields) for _, fields, _ in WORDS])
def test_errors_speak_of_json(client: TestClient, path: str, fields: dict[str, Any], told: str) -> None:
    whole = {"prompt": "x"} if path == COMPLETIONS else {"input_prefix": "a", "input_suffix": "b"}
    reply = client.post(path, json=whole | fields)
    assert reply.status_code == 400 and told in reply.json()["error"]["message"]


@pytest.mark.parametrize(
    ("path", "fields", "told"),
    [
        ("/infill", {"prefix": "a", "suffix": "b"}, "input_suffix is missing. Rename 'suffix' to input_suffix."),
        ("/infill", {"prefix": "a", "input_suffix": "b"}, "input_prefix is missing. Rename 'prefix' to input_prefix."),
        ("/infill", {"input_suffix": "b"}, "input_prefix is missing. Give input_prefix."),
        (COMPLETIONS, {"promt": "a"}, "prompt is missing. Rename 'promt' to prompt."),
        (CHAT, {"message": []}, "messages is missing. Rename 'message' to messages."),
        (CHAT, {**HELLO, "suffix": "b"}, "suffix is not supported. Leave it out."),
    ],
)
def test_a_needed_field_by_another_name(client: TestClient, path: str, fields: dict[str, Any], told: str) -> None:
    reply = client.post(path, json=fields)
    assert reply.status_code == 400 and reply.json()["error"]["message"] == told


TWICE: list[tuple[bytes, str]] = [
    (b'{"prompt": "x", "max_tokens": 1, "prompt": "y"}', "prompt"),
    (b'{"prompt":"x","prompt":"x"}', "prompt"),
    (b' {"seed" : 1\n,"prompt":"x", "s\\u0065ed":12 } ', "seed"),
    (b'{"seed":12,"prompt":"x","seed":1}', "seed"),
    (b'{"prompt":"x","a\\"b":[1],"c":{"c":1},"a\\"b":[1]}', 'a"b'),
    (b'{"prompt":"x","user":{"a":1},"user":{"a":1}}', "user"),
]


@pytest.mark.parametrize(("raw", "name"), TWICE)
def test_a_field_that_is_given_twice_is_refused(client: TestClient, raw: bytes, name: str) -> None:
    reply = client.post(COMPLETIONS, content=raw)
    error = reply.json()["error"]
    assert (reply.status_code, error["param"]) == (400, name) and "twice" in error["message"]


FIELDS = st.dictionaries(st.text(max_size=5), st.recursive(
    st.none() | st.booleans() | st.integers(-99, 99) | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
), max_size=5)  # fmt: skip


@given(FIELDS, st.booleans(), st.sampled_from([None, 2]), st.sampled_from([(",", ":"), (" ,\t", " : ")]), st.randoms())
def test_each_field_once_is_read_as_it_is(
    fields: dict[str, Any], ascii_only: bool, indent: int | None, marks: tuple[str, str], chance: Random
) -> None:
    raw = json.dumps(fields, ensure_ascii=ascii_only, indent=indent, separators=marks)
    assert read_object(f" {raw}\n".encode()) == fields
    if fields:
        name = chance.choice([*fields])
        again = f"{raw.rstrip()[:-1]}{marks[0]}{json.dumps(name)}{marks[1]}{json.dumps(fields[name])}}}"
        with pytest.raises(RequestError, match="twice"):
            read_object(again.encode())


def test_strict_refuses_unknown_fields(make_client: MakeClient) -> None:
    client = make_client(strict=True)
    reply = client.post(COMPLETIONS, json={"prompt": "x", "temprature": 1})
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == "temprature"
    assert client.post(COMPLETIONS, json={"prompt": "x", "user": "me", "suffix": None}).status_code == 200


def test_neutral_values_of_what_is_not_done_are_taken(client: TestClient) -> None:
    neutral: dict[str, Any] = {
        "tools": [],
        "tool_choice": "none",
        "response_format": {"type": "text"},
        "best_of": 1,
        "use_beam_search": False,
        "length_penalty": 1.0,
        "typical_p": 1.0,
        "mirostat": 0,
        "structured_outputs": None,
        "parallel_tool_calls": True,
        "seed": -1,
        "stop": None,
        "logit_bias": {},
    }
    reply = client.post(CHAT, json={**HELLO, "max_tokens": 1, **neutral})
    assert reply.status_code == 200, reply.text
    assert "x-pelton-ignored" not in reply.headers


def test_nothing_bad_reaches_the_engine(make_client: MakeClient) -> None:
    engine = FakeEngine()
    client = make_client(engine)
    for path, fields, _ in CASES:
        client.post(path, content=json.dumps(fields))
    assert engine.submitted == []
