"""Everything about the server that is no generation: models, tokens, probes, keys, ids, prefixes, unknown paths."""

import json
import logging
from typing import Any

import jsonschema
import pytest
from starlette.testclient import TestClient
from tests.serve.conftest import MakeClient
from tests.serve.fakes import FakeEngine, make_app

from pelton import __version__
from pelton.serve.openapi import GETS, POSTS, document

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
HELLO = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}


def test_models_are_listed_once_the_engine_runs(make_client: MakeClient) -> None:
    engine = FakeEngine()
    client = make_client(engine, served_model_names=("big", "org/big-2"))
    engine.state = "starting"
    assert client.get("/v1/models").json() == {"object": "list", "data": []}
    assert client.get("/v1/models/big").status_code == 503
    engine.state = "running"
    cards = client.get("/v1/models").json()["data"]
    assert [card["id"] for card in cards] == ["big", "org/big-2"]
    assert cards[0]["max_model_len"] == 256
    assert cards[0]["object"] == "model"
    assert client.get("/v1/models/org/big-2").json()["id"] == "org/big-2"
    assert client.get("/v1/models/small").status_code == 404
    for name in ("big", "org/big-2"):
        assert client.post(CHAT, json={**HELLO, "model": name}).json()["model"] == name
    assert client.post(CHAT, json={**HELLO, "model": "fake"}).status_code == 404


def test_a_models_age_is_that_of_the_server(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    before = client.get("/v1/models").json()
    monkeypatch.setattr("pelton.serve.service.unix_time", lambda: 5)
    monkeypatch.setattr("pelton.serve.routes.models.unix_time", lambda: 5, raising=False)
    assert client.get("/v1/models").json() == before
    assert client.get("/v1/models/fake").json() == before["data"][0]


@pytest.mark.parametrize("state", ["starting", "restarting", "stopped"])
def test_no_generation_while_the_engine_does_not_run(make_client: MakeClient, state: str) -> None:
    engine = FakeEngine()
    client = make_client(engine)
    engine.state = state
    gap = {"input_prefix": "x", "input_suffix": "y"}
    bodies = ((CHAT, HELLO), (COMPLETIONS, {"prompt": "x"}), ("/tokenize", {"prompt": "x"}), ("/infill", gap))
    del engine.front  # it is there once the engine has started
    for path, body in bodies:
        reply = client.post(path, json=body)
        assert reply.status_code == 503
        assert int(reply.headers["retry-after"]) >= 1
        assert reply.json()["error"]["code"] == "engine_unavailable"
    assert client.get("/health").status_code == 503
    assert client.get("/ping").status_code == 503
    assert client.get("/version").status_code == 200


def test_a_server_that_ends_takes_nothing_more(make_client: MakeClient) -> None:
    engine = FakeEngine()
    client = make_client(engine)
    engine.draining = True
    assert client.get("/health").status_code == 503
    reply = client.post(CHAT, json=HELLO)
    assert (reply.status_code, reply.json()["error"]["code"]) == (503, "shutting_down")


def test_probes(client: TestClient) -> None:
    assert client.get("/health").status_code == 200
    assert client.get("/ping").status_code == client.post("/ping").status_code == 200
    assert client.get("/version").json() == {"version": __version__}
    assert client.get("/load").json() == {"server_load": 3}
    metrics = client.get("/metrics")
    assert metrics.headers["content-type"].startswith("text/plain")
    assert "vllm:num_requests_running" in metrics.text
    assert client.get("/").json()["name"] == "pelton"


def test_tokenize_a_prompt(client: TestClient) -> None:
    reply = client.post("/tokenize", json={"prompt": "é<end>", "return_token_strs": True})
    assert reply.json() == {
        "count": 3,
        "max_model_len": 256,
        "tokens": [0xC3, 0xA9, 256],
        "token_strs": ["\ufffd", "\ufffd", "<end>"],
    }
    assert client.post("/tokenize", json={"prompt": ""}).json()["tokens"] == []
    assert client.post("/tokenize", json={"prompt": "a"}).json()["token_strs"] is None


def test_tokenize_a_conversation_as_chat_does(make_client: MakeClient) -> None:
    engine = FakeEngine()
    client = make_client(engine)
    client.post(CHAT, json=HELLO)
    tokens = client.post("/tokenize", json=HELLO).json()["tokens"]
    assert tokens == list(engine.submitted[0].prompt_token_ids)
    short = client.post("/tokenize", json={**HELLO, "add_generation_prompt": False}).json()
    assert short["count"] < len(tokens)


def test_detokenize_is_the_way_back(client: TestClient) -> None:
    text = "Grüße <start>世"
    tokens = client.post("/tokenize", json={"prompt": text}).json()["tokens"]
    assert client.post("/detokenize", json={"tokens": tokens}).json() == {"prompt": text}


def test_reset_of_the_prefix_cache(make_client: MakeClient) -> None:
    engine = FakeEngine()
    assert make_client(engine).post("/reset_prefix_cache").json() == {"reset": True}
    assert engine.cache.resets == 1


def test_unknown_paths_and_methods_have_the_same_shape(client: TestClient) -> None:
    for method, path, status, code in (
        ("GET", "/nowhere", 404, "not_found"),
        ("POST", "/v1/chat/completions/", 404, "not_found"),
        ("GET", CHAT, 405, "method_not_allowed"),
        ("DELETE", "/v1/models", 405, "method_not_allowed"),
    ):
        reply = client.request(method, path)
        assert reply.status_code == status
        assert reply.json()["error"]["code"] == code
        assert reply.headers["x-request-id"]
    assert "POST" in client.get(CHAT).headers["allow"]


def test_a_key_is_needed_where_there_is_one(make_client: MakeClient) -> None:
    client = make_client(api_keys=("one", "two"))
    for headers in ({}, {"Authorization": "Bearer no"}, {"Authorization": "one"}, {"Authorization": "Basic one"}):
        reply = client.post(CHAT, json=HELLO, headers=headers)
        assert reply.status_code == 401
        assert reply.json()["error"]["code"] == "invalid_api_key"
        assert reply.headers["www-authenticate"] == "Bearer"
        assert "one" not in reply.text
    for key in ("one", "two"):
        assert client.post(CHAT, json=HELLO, headers={"Authorization": f"Bearer {key}"}).status_code == 200
    for path in ("/health", "/ping", "/version", "/metrics"):
        assert client.get(path).status_code == 200
    for path in ("/v1/models", "/load", "/openapi.json", "/nowhere", "//health", "/health/"):
        assert client.get(path).status_code == 401


def test_the_request_id_comes_back(client: TestClient) -> None:
    assert client.get("/health", headers={"X-Request-Id": "me-1"}).headers["x-request-id"] == "me-1"
    for bad in ("", "x" * 200, "a b", "\xe9"):
        made = client.get("/health", headers={"X-Request-Id": bad.encode("latin-1")}).headers["x-request-id"]
        assert made != bad
        assert len(made) == 32
    assert client.post(CHAT, content=b"{").headers["x-request-id"]


def test_a_prefix_of_a_proxy(make_client: MakeClient) -> None:
    client = make_client(root_path="/llm", api_keys=("k",))
    for prefix in ("", "/llm"):
        assert client.get(prefix + "/health").status_code == 200
        assert client.get(prefix + "/v1/models").status_code == 401
        good = {"Authorization": "Bearer k"}
        assert client.post(prefix + CHAT, json=HELLO, headers=good).status_code == 200
    assert client.get("/llm/llm/health", headers={"Authorization": "Bearer k"}).status_code == 404


def test_browsers_of_the_allowed_origins(make_client: MakeClient) -> None:
    asking = {"Origin": "https://a.example", "Access-Control-Request-Method": "POST"}
    client = make_client(allowed_origins=("https://a.example",), api_keys=("k",))
    assert client.options(CHAT, headers=asking).headers["access-control-allow-origin"] == "https://a.example"
    assert "access-control-allow-origin" not in make_client().get("/health", headers=asking).headers


def test_a_bug_is_a_500_with_the_requests_id(make_client: MakeClient, caplog: pytest.LogCaptureFixture) -> None:
    engine = FakeEngine(refuse=(ZeroDivisionError("secret"), 0))
    client = make_client(engine)
    reply = client.post(CHAT, json=HELLO, headers={"X-Request-Id": "it-broke"})
    assert reply.status_code == 500
    assert reply.headers["x-request-id"] == "it-broke"
    assert reply.json()["error"]["type"] == "internal_error"
    assert "secret" not in reply.text
    assert "it-broke" in caplog.text


def test_requests_are_logged_on_wish(make_client: MakeClient, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="pelton.serve"):
        make_client(enable_log_requests=True).post(CHAT, json=HELLO, headers={"X-Request-Id": "look"})
    assert "look" in caplog.text
    assert "'origin': 'request'" in caplog.text


def test_the_document_describes_each_route() -> None:
    made: dict[str, Any] = json.loads(make_document())
    app = make_app()
    served = {route.path.replace("{name:path}", "{id}") for route in app.routes}  # type: ignore[attr-defined]
    assert set(made["paths"]) == served
    assert set(made["paths"]) == {*GETS, *POSTS, "/v1/models/{id}", "/slots/{id}"}
    fields = made["components"]["schemas"]["SamplingFields"]["properties"]
    assert fields["temperature"]["anyOf"][0] == {"type": "number", "minimum": 0, "maximum": 2}


def test_the_document_fits_what_is_answered(client: TestClient) -> None:
    made = client.get("/openapi.json").json()
    for path, body, name in (
        (CHAT, {**HELLO, "logprobs": True, "top_logprobs": 1, "n": 2}, "ChatAnswer"),
        (COMPLETIONS, {"prompt": "x", "logprobs": 1, "echo": True}, "TextAnswer"),
        (COMPLETIONS, {"prompt": 5}, "ErrorAnswer"),
    ):
        schema = {"$ref": f"#/components/schemas/{name}", "components": made["components"]}
        jsonschema.validate(client.post(path, json=body).json(), schema)


def make_document() -> str:
    return json.dumps(document())


ASKED = {"prompt": "hi", "max_tokens": 1}
EACH_ROUTE = [
    *[("GET", path, None) for path in ("/v1/models", "/tokenizer_info", "/health", "/ping", "/version")],
    *[("GET", path, None) for path in ("/metrics", "/load", "/kv/tree", "/slots", "/openapi.json", "/")],
    *[("POST", path, None) for path in ("/ping", "/reset_prefix_cache", "/slots/0?action=erase")],
    ("POST", "/v1/completions", ASKED),
    ("POST", "/v1/completions", {**ASKED, "stream": True}),
    ("POST", "/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}),
    ("POST", "/tokenize", {"prompt": "hi"}),
    ("POST", "/detokenize", {"tokens": [1]}),
    ("POST", "/end_session", {"session_id": "s"}),
]


@pytest.mark.parametrize(("method", "path", "body"), EACH_ROUTE)
def test_what_a_route_does_not_know_of_a_query_is_told(
    method: str, path: str, body: dict[str, object] | None, make_client: MakeClient
) -> None:
    engine = FakeEngine()
    engine.cache.told = b"{}" if path != "/slots/0?action=erase" else b"1"
    client, strict = make_client(engine), make_client(engine, strict=True)
    more = path + ("&" if "?" in path else "?") + "foo=1&bar=2&foo=3"
    plain = client.request(method, path, json=body)
    reply = client.request(method, more, json=body)
    assert plain.status_code == reply.status_code == 200 and "x-pelton-ignored" not in plain.headers
    assert reply.headers["x-pelton-ignored"] == "foo, bar"
    refused = strict.request(method, more, json=body)
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "foo"
    assert strict.request(method, path, json=body).status_code == 200


def test_of_body_and_query_is_told_together(client: TestClient) -> None:
    reply = client.post("/v1/completions?foo=1", json={**ASKED, "bar": 2})
    assert reply.headers["x-pelton-ignored"] == "bar, foo"


def test_a_reset_takes_a_body_of_nothing(client: TestClient) -> None:
    assert client.post("/reset_prefix_cache", content=b"{}").json() == {"reset": True}
    assert client.post("/reset_prefix_cache", json={"a": 1}).headers["x-pelton-ignored"] == "a"
    for raw in (b"{", b"[]", b"\xff\xfe"):
        assert client.post("/reset_prefix_cache", content=raw).status_code == 400
