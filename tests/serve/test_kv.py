"""/kv/tree, /end_session, sessions of requests and the header about the cache, over a double of the engine."""

from dataclasses import replace

import pytest
from starlette.testclient import TestClient
from tests.serve.conftest import MakeClient
from tests.serve.fakes import CACHED, FakeEngine, make_front

from pelton.core.config import resolve
from pelton.core.plan import Lookup
from pelton.engine.process.messages import DescribeCache, EndSession

COMPLETIONS = "/v1/completions"
ASK = {"prompt": "hello", "max_tokens": 2}


def test_the_tree_is_what_the_engine_tells(make_client: MakeClient) -> None:
    engine = FakeEngine()
    client = make_client(engine)
    engine.cache.told = b'{"nodes":3}'
    assert client.get("/kv/tree").json() == {"nodes": 3}
    assert client.get("/kv/tree?runs=5&tokens=false").status_code == 200
    assert client.get("/kv/tree?requests=7").status_code == 200
    assert engine.cache.asked == [
        DescribeCache(200, False, 200),
        DescribeCache(5, False, 200),
        DescribeCache(200, False, 7),
    ]


@pytest.mark.parametrize(
    "query",
    ["runs=-1", "requests=x", "requests=2001", "runs=x", "runs=2001", "runs=%C2%B2", "tokens=1", "runs=" + "9" * 5000],
)
def test_questions_that_cannot_be(query: str, make_client: MakeClient) -> None:
    engine = FakeEngine()
    reply = make_client(engine).get(f"/kv/tree?{query}")
    assert reply.status_code == 400 and reply.json()["error"]["param"] in query and not engine.cache.asked


def test_tokens_are_told_only_where_the_server_says_so(make_client: MakeClient) -> None:
    refused = make_client(FakeEngine()).get("/kv/tree?tokens=true")
    assert refused.status_code == 400 and "--show-cached-tokens" in refused.json()["error"]["message"]
    engine = FakeEngine()
    assert make_client(engine, show_cached_tokens=True).get("/kv/tree?tokens=true").status_code == 200
    assert engine.cache.asked == [DescribeCache(200, True, 200)]


def test_an_engine_that_ends_meanwhile_is_a_503(make_client: MakeClient) -> None:
    engine = FakeEngine()
    engine.cache.told = None
    client = make_client(engine)
    assert client.get("/kv/tree").status_code == 503
    assert client.post("/end_session", json={"session_id": "s"}).status_code == 503


def test_the_end_of_a_session(make_client: MakeClient) -> None:
    engine = FakeEngine()
    client = make_client(engine)
    engine.cache.told = b"1"
    assert client.post("/end_session", json={"session_id": "s"}).json() == {"ended": True}
    engine.cache.told = b""
    assert client.post("/end_session", json={"session_id": "s", "cache_salt": "x"}).json() == {"ended": False}
    assert engine.cache.asked == [EndSession(("", "s")), EndSession(("x", "s"))]
    assert client.post("/end_session", json={}).json()["error"]["param"] == "session_id"


def test_a_session_is_named_in_the_body_or_else_by_the_header(make_client: MakeClient) -> None:
    engine = FakeEngine()
    client = make_client(engine)
    header = {"X-Session-Id": "from the header"}
    for body, headers, session in (
        (ASK, {}, None),
        (ASK, header, ("", "from the header")),
        ({**ASK, "session_id": "s", "cache_salt": "x"}, header, ("x", "s")),
    ):
        assert client.post(COMPLETIONS, json=body, headers=headers).status_code == 200
        assert engine.submitted[-1].session == session
    children = engine.submitted[-1].children()
    assert [child.session for child in children] == [("x", "s")]
    reply = client.post(COMPLETIONS, json=ASK, headers={"X-Session-Id": "s" * 257})
    assert reply.status_code == 400 and "X-Session-Id" in reply.json()["error"]["message"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("lookup", "told"), [
    (Lookup("diverged", 3, 7, 9), "reason=diverged; index=3"),
    (Lookup("namespace"), "reason=unseen; index=0"),
    (None, None),
])  # fmt: skip
def test_the_header_tells_why_no_more_was_cached_and_nothing_of_others_prompts(
    lookup: Lookup | None, told: str | None, stream: bool, make_client: MakeClient
) -> None:
    engine = FakeEngine()
    engine.cache.lookup = lookup
    client: TestClient = make_client(engine)
    reply = client.post(COMPLETIONS, json={**ASK, "stream": stream})
    prompt = len(engine.submitted[0].prompt_token_ids)
    wanted = None if told is None else f"cached={CACHED}; prompt={prompt}; {told}"
    assert reply.headers.get("x-pelton-cache") == wanted
    several = client.post(COMPLETIONS, json={**ASK, "prompt": ["a", "b"], "stream": stream})
    assert "x-pelton-cache" not in several.headers


def test_a_session_ends_by_its_header_or_slot_too_and_unknown_fields_are_told(make_client: MakeClient) -> None:
    engine = FakeEngine()
    client = make_client(engine)
    engine.cache.told = b"70"
    header = {"X-Session-Id": "from the header"}
    reply = client.post("/end_session", headers=header)
    assert reply.json() == {"ended": True} and "x-pelton-ignored" not in reply.headers
    reply = client.post("/end_session", json={"cache_salt": "x", "sesion": 1}, headers=header)
    assert reply.json() == {"ended": True} and reply.headers["x-pelton-ignored"] == "sesion"
    assert client.post("/end_session", json={"id_slot": 3}, headers=header).status_code == 200
    assert client.post("/end_session", json={"session_id": "s"}, headers=header).status_code == 200
    names = [("", "from the header"), ("x", "from the header"), ("", "slot-3"), ("", "s")]
    assert engine.cache.asked == [EndSession(name) for name in names]
    strict = make_client(engine, strict=True).post("/end_session", json={"sesion": 1}, headers=header)
    assert strict.status_code == 400 and strict.json()["error"]["param"] == "sesion"
    both = client.post("/end_session", json={"session_id": "s", "id_slot": 1})
    assert both.status_code == 400 and both.json()["error"]["param"] == "id_slot"


@pytest.mark.parametrize("settings", [{"enable_prefix_caching": False}, {"session_seconds": 0}])
def test_a_session_that_would_have_no_effect_is_refused(settings: dict[str, object], make_client: MakeClient) -> None:
    front = make_front()
    config = resolve("fake", settings)
    client = make_client(FakeEngine(front=replace(front, config=config)))
    assert client.post(COMPLETIONS, json=ASK).status_code == 200
    for body, headers in (({"session_id": "s"}, {}), ({"id_slot": 0}, {}), ({}, {"X-Session-Id": "s"})):
        reply = client.post(COMPLETIONS, json={**ASK, **body}, headers=headers)
        error = reply.json()["error"]
        param = "id_slot" if body == {"id_slot": 0} else "session_id"
        assert reply.status_code == 400 and error["param"] == param and "no effect" in error["message"]
