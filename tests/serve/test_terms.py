"""How long a request may take, and whose it is: by fields, headers, keys and settings."""

import json

import pytest
from starlette.testclient import TestClient
from tests.serve.conftest import MakeClient
from tests.serve.fakes import FakeEngine

from pelton.core.request import Request, owner_of_key
from pelton.engine.load.deadlines import LATE

CHAT, COMPLETIONS, INFILL = "/v1/chat/completions", "/v1/completions", "/infill"
BODIES: dict[str, dict[str, object]] = {
    CHAT: {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1},
    COMPLETIONS: {"prompt": "Hi", "max_tokens": 1},
    INFILL: {"input_prefix": "a", "input_suffix": "b", "n_predict": 1},
}
TIMEOUT = {"X-Request-Timeout": "7"}


def asked(client: TestClient, engine: FakeEngine, path: str, headers: dict[str, str], **fields: object) -> Request:
    reply = client.post(path, json={**BODIES[path], **fields}, headers=headers)
    assert reply.status_code == 200, reply.text
    return engine.submitted[-1]


def seconds(request: Request) -> float | None:
    return None if request.deadline is None else request.deadline - request.arrival


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_field_header_and_setting(make_client: MakeClient, path: str) -> None:
    engine = FakeEngine()
    client = make_client(engine)
    assert seconds(asked(client, engine, path, {})) is None
    assert seconds(asked(client, engine, path, {}, timeout=2.5)) == 2.5
    assert seconds(asked(client, engine, path, TIMEOUT)) == 7
    assert seconds(asked(client, engine, path, TIMEOUT, timeout=2.5)) == 2.5, "the shorter one"
    assert seconds(asked(client, engine, path, TIMEOUT, timeout=9)) == 7
    client = make_client(engine, request_timeout=60.0)
    assert seconds(asked(client, engine, path, {})) == 60
    assert seconds(asked(client, engine, path, {}, timeout=90)) == 90, "who says it himself may have more"


def test_infill_has_the_header(make_client: MakeClient) -> None:
    engine = FakeEngine()
    client = make_client(engine)
    assert seconds(asked(client, engine, INFILL, TIMEOUT)) == 7


@pytest.mark.parametrize("value", [0, -1, "x", "1_0", "1e-400", 1e7])
def test_what_is_no_time_is_refused(client: TestClient, value: object) -> None:
    reply = client.post(CHAT, json={**BODIES[CHAT], "timeout": value})
    assert reply.status_code == 400 and reply.json()["error"]["param"] == "timeout"
    reply = client.post(CHAT, json=BODIES[CHAT], headers={"X-Request-Timeout": str(value)})
    assert reply.status_code == 400 and "X-Request-Timeout" in reply.json()["error"]["message"]


@pytest.mark.parametrize("stream", [False, True])
def test_who_is_late_is_told_so(make_client: MakeClient, stream: bool) -> None:
    engine = FakeEngine(fault=("error", 0 if not stream else 2), fault_code=LATE)
    client = make_client(engine)
    reply = client.post(COMPLETIONS, json={"prompt": "Hi", "max_tokens": 5, "stream": stream})
    if not stream:
        assert reply.status_code == 408 and reply.headers["x-should-retry"] == "false"
        error = reply.json()["error"]
    else:
        events = [line.removeprefix("data: ") for line in reply.text.splitlines() if line.startswith("data: ")]
        error = json.loads(events[-2])["error"]
    assert (error["code"], error["type"]) == (LATE, "timeout_error") and "Bad weather." in error["message"]


def test_timeouts_are_counted_by_what_the_request_was_at(make_client: MakeClient) -> None:
    client = make_client()
    text = client.get("/metrics").text
    for state in ("waiting", "running"):
        assert any(
            line.startswith("pelton:request_timeouts_total") and f'state="{state}"' in line
            for line in text.splitlines()
        )


def test_a_request_is_its_keys_else_its_users(make_client: MakeClient) -> None:
    engine = FakeEngine()
    client = make_client(engine)
    assert asked(client, engine, CHAT, {}).owner == ""
    assert asked(client, engine, CHAT, {}, user="ann").owner == "ann"
    assert asked(client, engine, COMPLETIONS, {"Authorization": "Bearer any"}, user="ann").owner == "ann", "no key"
    client = make_client(engine, api_keys=("one", "two"))
    for key in ("one", "two"):
        headers = {"Authorization": f"Bearer {key}"}
        assert asked(client, engine, CHAT, headers, user="ann").owner == owner_of_key(key)
    client = make_client(engine, api_keys=("one",))
    assert asked(client, engine, CHAT, {"Authorization": "Bearer one"}, user="bob").owner == "bob", (
        "one key tells nothing"
    )
