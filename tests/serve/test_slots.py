"""/slots in the shape of llama.cpp's server, and id_slot, over a double of the engine."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from tests.serve.conftest import MakeClient
from tests.serve.fakes import FakeEngine

from pelton.core.errors import PeltonError, RequestError
from pelton.engine.process.messages import DescribeSlots, EndSession, Question, RestoreSession, SaveSession

COMPLETIONS, CHAT, INFILL = "/v1/completions", "/v1/chat/completions", "/infill"
ASK = {"prompt": "hello", "max_tokens": 2}
FILE = {"filename": "x.bin"}


class Refusing(FakeEngine):
    """Refuses what it is asked."""

    def __init__(self, error: PeltonError) -> None:
        super().__init__()
        self._error = error

    async def ask(self, question: Question) -> bytes | None:
        raise self._error


def test_all_slots_are_told(make_client: MakeClient) -> None:
    engine = FakeEngine()
    client = make_client(engine)
    engine.cache.told = b'[{"id":0,"is_processing":true},{"id":1,"is_processing":false}]'
    assert [slot["id"] for slot in client.get("/slots").json()] == [0, 1]
    assert client.get("/slots?fail_on_no_slot=1").status_code == 200
    engine.cache.told = b'[{"id":0,"is_processing":true}]'
    full = client.get("/slots?fail_on_no_slot=1")
    assert full.status_code == 503 and "retry-after" in full.headers and client.get("/slots").status_code == 200
    assert engine.cache.asked == [DescribeSlots()] * 4
    engine.cache.told = None
    assert client.get("/slots").status_code == 503


def test_a_query_is_told_what_of_it_takes_no_effect(make_client: MakeClient) -> None:
    engine = FakeEngine()
    engine.cache.told = b"[]"
    client, strict = make_client(engine), make_client(engine, strict=True)
    for path in ("/slots", "/kv/tree"):
        assert client.get(f"{path}?foo=1").headers["x-pelton-ignored"] == "foo"
        assert strict.get(f"{path}?foo=1").json()["error"]["param"] == "foo"
        assert client.get(f"{path}?foo=1&foo=2").headers["x-pelton-ignored"] == "foo"
        assert "x-pelton-ignored" not in client.get(path).headers
    assert client.get("/slots?fail_on_no_slot=yes").json()["error"]["param"] == "fail_on_no_slot"
    assert client.get("/kv/tree?runs=1&runs=2").json()["error"]["param"] == "runs"


def test_save_restore_and_erase(make_client: MakeClient, tmp_path: Path) -> None:
    engine = FakeEngine()
    client = make_client(engine, slot_save_path=str(tmp_path))
    path = os.fsencode(tmp_path / "x.bin")
    engine.cache.told = b'{"n_saved":84,"n_written":999,"timings":{"save_ms":1.5}}'
    saved = client.post("/slots/2?action=save", json=FILE)
    assert saved.status_code == 200 and "x-pelton-ignored" not in saved.headers
    assert saved.json() == {"id_slot": 2, **FILE, "n_saved": 84, "n_written": 999, "timings": {"save_ms": 1.5}}
    engine.cache.told = b'{"n_restored":84,"n_read":999,"timings":{"restore_ms":1.5}}'
    restored = client.post("/slots/0?action=restore", json={**FILE, "cache_salt": "salt", "other": 1})
    assert restored.json() == {"id_slot": 0, **FILE, **json.loads(engine.cache.told)}
    assert restored.headers["x-pelton-ignored"] == "other"
    for told, tokens in ((b"84", 84), (b"", 0)):
        engine.cache.told = told
        assert client.post("/slots/1?action=erase").json() == {"id_slot": 1, "n_erased": tokens}
    named = client.post("/slots/1?action=erase", json=FILE)
    assert named.headers["x-pelton-ignored"] == "filename"
    erased = EndSession(("", "slot-1"))
    assert engine.cache.asked == [
        SaveSession(("", "slot-2"), path),
        RestoreSession(("salt", "slot-0"), path),
        erased,
        erased,
        erased,
    ]


BAD: list[tuple[str, Any, int, str | None]] = [
    ("/slots/0", FILE, 400, "action"),
    ("/slots/0?action=load", FILE, 400, "action"),
    ("/slots/0?action=save&action=erase", FILE, 400, "action"),
    ("/slots/x?action=save", FILE, 400, "id_slot"),
    ("/slots/-1?action=save", FILE, 400, "id_slot"),
    ("/slots/32?action=save", FILE, 400, "id_slot"),
    ("/slots/" + "9" * 5000 + "?action=save", FILE, 400, "id_slot"),
    ("/slots/%C2%B2?action=save", FILE, 400, "id_slot"),
    ("/slots/0?action=save", {}, 400, "filename"),
    ("/slots/0?action=restore", None, 400, "filename"),
    ("/slots/0?action=save", [], 400, None),
    ("/slots/0?action=save", {"filename": 5}, 400, "filename"),
    ("/slots/0?action=save", {**FILE, "cache_salt": ""}, 400, "cache_salt"),
    ("/slots/0/1?action=save", FILE, 404, None),
]


@pytest.mark.parametrize(("path", "body", "status", "param"), BAD)
def test_what_cannot_be(
    path: str, body: Any, status: int, param: str | None, make_client: MakeClient, tmp_path: Path
) -> None:
    engine = FakeEngine()
    reply = make_client(engine, slot_save_path=str(tmp_path)).post(path, json=body)
    assert (reply.status_code, reply.json()["error"]["param"]) == (status, param) and not engine.cache.asked
    assert param != "id_slot" or reply.json()["error"]["message"].startswith("id_slot=")


NAMES = [
    *("", ".", "..", ".hidden", " x", "x ", "x.", "a/b", "/etc/passwd", "../x", "a\\b", "a\0b", "a\nb", "a:b", "a*"),
    *("x" * 256, "ö" * 128, "a\u202eb", "a\u2028b", "con|", '"', "a?", "<", ">"),
]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("action", ["save", "restore"])
def test_names_that_leave_the_folder_or_are_none(
    name: str, action: str, make_client: MakeClient, tmp_path: Path
) -> None:
    engine = FakeEngine()
    client = make_client(engine, slot_save_path=str(tmp_path))
    reply = client.post(f"/slots/0?action={action}", json={"filename": name})
    assert reply.status_code == 400 and reply.json()["error"]["param"] == "filename" and not engine.cache.asked


@pytest.mark.parametrize("name", ["x", "a b.bin", "größe-1_2.kv", "ö" * 127, "a..b", "~x", "-x"])
def test_names_that_are_good(name: str, make_client: MakeClient, tmp_path: Path) -> None:
    engine = FakeEngine()
    client = make_client(engine, slot_save_path=str(tmp_path))
    assert client.post("/slots/0?action=save", json={"filename": name}).json()["filename"] == name
    assert engine.cache.asked == [SaveSession(("", "slot-0"), os.fsencode(tmp_path / name))]


def test_without_a_folder_nothing_is_saved_and_the_error_names_the_flag(make_client: MakeClient) -> None:
    engine = FakeEngine()
    client = make_client(engine)
    for action in ("save", "restore"):
        reply = client.post(f"/slots/0?action={action}", json=FILE)
        error = reply.json()["error"]
        assert reply.status_code == 501 and error["type"] == "not_supported_error"
        assert "--slot-save-path" in error["message"] and not engine.cache.asked
    assert client.post("/slots/0?action=erase").status_code == 200


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (RequestError("Busy.", code="slot_busy"), 409),
        (RequestError("Bad.", param="filename", code="invalid_slot_file"), 400),
        (PeltonError("The disk is full."), 500),
    ],
)
def test_the_engines_refusals(error: PeltonError, status: int, make_client: MakeClient, tmp_path: Path) -> None:
    client = make_client(Refusing(error), slot_save_path=str(tmp_path))
    reply = client.post("/slots/0?action=restore", json=FILE)
    assert reply.status_code == status and error.cause in reply.json()["error"]["message"]


def test_keys_are_asked_for(make_client: MakeClient, tmp_path: Path) -> None:
    client = make_client(slot_save_path=str(tmp_path), api_keys=("sesame",))
    for reply in (client.get("/slots"), client.post("/slots/0?action=save", json=FILE)):
        assert reply.status_code == 401
    assert client.get("/slots", headers={"Authorization": "Bearer sesame"}).status_code == 200


def test_a_request_names_its_slot(make_client: MakeClient) -> None:
    engine = FakeEngine()
    client = make_client(engine)
    header = {"X-Session-Id": "h"}
    messages = [{"role": "user", "content": "hello"}]
    gap = {"input_prefix": "a", "input_suffix": "b", "n_predict": 2}
    for path, body, session in (
        (COMPLETIONS, {**ASK, "id_slot": 3}, ("", "slot-3")),
        (COMPLETIONS, {**ASK, "id_slot": 3, "cache_salt": "x"}, ("x", "slot-3")),
        (COMPLETIONS, {**ASK, "id_slot": -1}, ("", "h")),
        (CHAT, {"messages": messages, "id_slot": 0, "max_tokens": 2}, ("", "slot-0")),
        (INFILL, {**gap, "id_slot": 1}, ("", "slot-1")),
        (INFILL, gap, ("", "h")),
    ):
        reply = client.post(path, json=body, headers=header)
        assert reply.status_code == 200 and "x-pelton-ignored" not in reply.headers, reply.text
        assert engine.submitted[-1].session == session
    reply = client.post(INFILL, json={**gap, "id_slot": 1, "cache_prompt": False})
    assert reply.headers["x-pelton-ignored"] == "id_slot" and engine.submitted[-1].session is None
    for path, body in ((COMPLETIONS, ASK), (INFILL, gap)):
        for value, param in ((32, "id_slot"), (-2, "id_slot"), ("0", "id_slot")):
            reply = client.post(path, json={**body, "id_slot": value})
            assert reply.status_code == 400 and reply.json()["error"]["param"] == param
    both = client.post(COMPLETIONS, json={**ASK, "id_slot": 0, "session_id": "s"})
    assert both.status_code == 400 and both.json()["error"]["param"] == "id_slot"
