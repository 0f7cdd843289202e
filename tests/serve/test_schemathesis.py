"""Random bodies made from /openapi.json, good and bad: none gets a 5xx. Without schemathesis' pytest plugin."""

from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from tests.serve.fakes import make_app

schema = schemathesis.openapi.from_asgi("/openapi.json", make_app())
OPERATIONS: list[Any] = [found.ok() for found in schema.get_all_operations()]
# What takes nothing cannot be given anything wrong.
CASES = [
    pytest.param(operation, mode, id=f"{operation.label} {mode}")
    for operation in OPERATIONS
    for mode in GenerationMode
    if mode is GenerationMode.POSITIVE or operation.body
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("operation", "mode"), CASES)
def test_no_body_gets_a_5xx(operation: Any, mode: GenerationMode) -> None:
    @settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
    @given(case=operation.as_strategy(generation_mode=mode))
    def check(case: Any) -> None:
        case.call_and_validate(checks=[not_a_server_error])

    check()
