"""Random bodies made from /openapi.json, good and bad: none gets a 5xx. Without schemathesis' pytest plugin."""

import time
from collections.abc import Callable
from pathlib import Path
from tempfile import gettempdir
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from tests.serve.fakes import make_app
from tests.serve.process import ServerProcess

SECONDS_EACH = 20.0  # of the slow run, for one kind of case of one operation
IDS = 49152  # that SmolLM2 has


def cases_of(schema: Any) -> list[tuple[Any, GenerationMode]]:
    """Every operation with good and with bad cases. What takes nothing cannot be given anything wrong."""
    operations = [found.ok() for found in schema.get_all_operations()]
    return [
        (operation, mode)
        for operation in operations
        for mode in GenerationMode
        if mode is GenerationMode.POSITIVE or operation.body
    ]


def run(operation: Any, mode: GenerationMode, check: Callable[[Any], None], examples: int) -> None:
    """Checks so many random cases."""
    strategy = operation.as_strategy(generation_mode=mode)
    settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck))(
        given(case=strategy)(check)
    )()


CASES = [
    pytest.param(operation, mode, id=f"{operation.label} {mode}")
    for operation, mode in cases_of(
        schemathesis.openapi.from_asgi("/openapi.json", make_app(slot_save_path=gettempdir()))
    )
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("operation", "mode"), CASES)
def test_no_body_gets_a_5xx(operation: Any, mode: GenerationMode) -> None:
    def check(case: Any) -> None:
        case.call_and_validate(checks=[not_a_server_error])

    run(operation, mode, check, 25)


def known(value: Any) -> Any:
    """Whole numbers as token ids of the model, in lists of any depth; 3.0 is whole to JSON Schema."""
    if isinstance(value, list):
        return [known(one) for one in value]
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    return int(value) % IDS if value >= 0 and value == value // 1 else value


def shortened(case: Any) -> None:
    """The answers that a good case asks for are short ones, of ids and slots that there are; what is bad stays so."""
    if isinstance(case.body, dict) and isinstance(case.body.get("max_tokens", 9), int | None):
        case.body |= {"max_tokens": 2, "min_tokens": 0}
        case.body |= {name: known(case.body[name]) for name in ("prompt", "allowed_token_ids") if name in case.body}
        if "messages" in case.body:
            case.body |= {"max_completion_tokens": 2}
        # Few numbers are slots of this server, and a slot is a session already.
        slot = case.body.get("id_slot")
        if isinstance(slot, int) and not isinstance(slot, bool) and slot >= 0:
            case.body |= {"id_slot": slot % 4}
            case.body.pop("session_id", None)


@pytest.mark.slow
@pytest.mark.dist
@pytest.mark.timeout(900)
@pytest.mark.filterwarnings("ignore")
def test_no_body_gets_a_5xx_from_a_real_server(smollm2: Path, tmp_path: Path) -> None:
    """With the model's own answers."""
    statuses: dict[str, set[int]] = {}
    flags = ("--max-model-len", "128", "--disable-access-log", "--slot-save-path", str(tmp_path))
    with ServerProcess(tmp_path, str(smollm2), *flags) as server:
        for operation, mode in cases_of(schemathesis.openapi.from_url(server.url + "/openapi.json")):
            found, end = statuses.setdefault(operation.label, set()), time.monotonic() + SECONDS_EACH
            run(operation, mode, checking(found, end), 30)
        assert server.process.poll() is None and server.complete()["choices"][0]["text"]
        assert server.ask("/load")[1] == {"server_load": 0} and server.ask("/openapi.json")[0] == 200
        assert "Traceback" not in server.told
    for label in ("POST /v1/completions", "POST /v1/chat/completions", "POST /tokenize", "POST /detokenize"):
        assert {200, 400} <= statuses[label], f"{label}: good and bad ones, not {statuses[label]}"
    assert statuses["GET /"] == {200}  # of the document itself, which it has read, schemathesis makes no cases


def checking(statuses: set[int], end: float) -> Callable[[Any], None]:
    """Asks the server until `end`, and notes the statuses."""

    def check(case: Any) -> None:
        if time.monotonic() < end:
            shortened(case)
            reply = case.call(timeout=60)
            case.validate_response(reply, checks=[not_a_server_error])
            statuses.add(reply.status_code)

    return check
