"""What one process encodes the other decodes to the same values, however odd they are."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pelton.core.config import resolve
from pelton.core.counters import EngineStats
from pelton.core.errors import (
    CheckpointError,
    EngineDeadError,
    OverloadedError,
    PeltonError,
    RequestError,
    UnknownNameError,
)
from pelton.core.events import PromptScored, RequestFinished, RequestPreempted, RequestScheduled, TokensGenerated
from pelton.core.params import MAX_SEED, SamplingParams
from pelton.core.plan import Lookup, TokenLogprobs
from pelton.core.request import Request
from pelton.engine.process.messages import (
    TEXT,
    Abort,
    Add,
    Ask,
    DescribeCache,
    DescribeSlots,
    EndSession,
    Failure,
    Figures,
    Finishing,
    Frames,
    Gone,
    Inbound,
    Outbound,
    Ready,
    Refused,
    ResetPrefixCache,
    RestoreSession,
    SaveSession,
    Shutdown,
    Start,
    StartFailed,
    Step,
    Stop,
    Told,
    WireRequest,
    config_of,
    config_text,
    decode_inbound,
    decode_outbound,
    encode,
)
from pelton.engine.prompts import PromptLimits
from pelton.engine.report import StartReport
from pelton.sampling.follow import follow

SCORE = TokenLogprobs(-math.inf, 7, (1, 2), (-0.5, -math.inf))


def body(message: Inbound | Outbound) -> bytes:
    (only,) = Frames().feed(encode(message))
    return only


def make_request(params: SamplingParams, **changes: object) -> Request:
    return Request("7", (1, 2, 3), params, frozenset({2, 9}), 11, 12.25, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "message",
    [
        Start('{"model": "x"}', 12, 30),
        Add(WireRequest.of(make_request(SamplingParams(seed=MAX_SEED, n=3))), ("7", "7/1", "7/2")),
        Stop(("a", "b")),
        Abort(("a",)),
        Ask(3, ResetPrefixCache()),
        Ask(6, DescribeSlots()),
        Ask(7, SaveSession(("salt", "id"), b"/a\xff")),
        Ask(8, RestoreSession(("salt", "id"), b"/a")),
        Ask(4, DescribeCache(20, True)),
        Ask(5, EndSession(("salt", "id"))),
        Shutdown(),
    ],
)
def test_to_the_engine(message: Inbound) -> None:
    assert decode_inbound(body(message)) == message


@pytest.mark.parametrize(
    "message",
    [
        StartFailed(Failure("CheckpointError", "cause", "remedy")),
        Step(
            (
                TokensGenerated("7", (1, 2), (SCORE, SCORE)),
                PromptScored("7", 3, (SCORE,)),
                RequestScheduled("8", 32, Lookup("diverged", 35, 7, 9)),
                RequestScheduled("9"),
                RequestPreempted("8"),
                RequestFinished("7", "stop", stop_token=2),
                RequestFinished("8", "error", error="why"),
            ),
            EngineStats(running=3, kv_usage=0.25),
            1.5,
            2.5,
            9,
        ),
        Refused("7", Failure("RequestError", "cause", "", "prompt", "context_length_exceeded"), ("7",), 4),
        Figures(EngineStats(sessions=3)),
        Told(4, b"", EngineStats(), Failure.of(RequestError("a", "b", param="c", code="d"))),
        Told(4, b"\x00{}", EngineStats(sessions=2)),
        Finishing(),
        Gone("because"),
    ],
)
def test_from_the_engine(message: Outbound) -> None:
    assert decode_outbound(body(message)) == message


def test_a_report_arrives_as_it_is_with_paths_that_are_no_unicode() -> None:
    report = StartReport(
        "/tmp/\udce9", 1, "bfloat16", ((2, 3, None),), 32, 4, "cpu", "avx2", 2, (("open", 0.5),), ("a note",)
    )
    limits = PromptLimits(100, 50, frozenset({1, 2}))
    ready = decode_outbound(body(Ready.of(report, limits)))
    assert isinstance(ready, Ready)
    assert ready.start_report() == report and ready.limits == limits


def test_settings_arrive_as_they_are() -> None:
    config = resolve("/tmp/\udce9", {"max_num_seqs": 7, "seed": MAX_SEED, "kv_cache_memory_bytes": 1 << 40})
    start = decode_inbound(body(Start(config_text(config), 1, 10)))
    assert isinstance(start, Start)
    assert config_of(start.config) == config


def test_no_setting_leaves_the_whole_text_to_defaults() -> None:
    assert config_of(config_text(resolve("m", {}))) == resolve("m", {})


@given(
    st.builds(
        SamplingParams,
        n=st.integers(1, 1024),
        temperature=st.floats(0, 1e300),
        top_p=st.floats(0, 1, exclude_min=True),
        top_k=st.integers(-1, MAX_SEED),
        seed=st.integers(0, MAX_SEED),
        logit_bias=st.dictionaries(st.integers(0, 1 << 20), st.floats(-100, 100)),
        allowed_token_ids=st.none() | st.lists(st.integers(0, 1 << 20), min_size=1),
        stop_token_ids=st.lists(st.integers(0, 1 << 20)),
        ignore_eos=st.booleans(),
        logprobs=st.none() | st.integers(0, 20),
        prompt_logprobs=st.none() | st.integers(0, 20),
        max_tokens=st.none() | st.integers(0, MAX_SEED),
    ),
    st.text(st.characters(exclude_categories=()), max_size=20),
)
def test_requests_arrive_as_they_are(params: SamplingParams, salt: str) -> None:
    params = replace(params, bad_words=[TEXT], stop=[TEXT])
    request = make_request(params, priority=-3, bad_word_ids=((1, 2), (3,)), cache_salt=salt, owner=salt[::-1])
    request = replace(request, deadline=request.arrival + 2.5)
    add = decode_inbound(body(Add(WireRequest.of(request), ("7",))))
    assert isinstance(add, Add)
    assert add.request.request() == request


def test_texts_stay_here_and_numbers_beyond_the_wire_are_cut() -> None:
    params = SamplingParams(seed=1, stop=["\ud800"], bad_words=["x"], max_tokens=10**30, top_k=10**30)
    request = make_request(params, prompt="\udfff" * 3)
    add = decode_inbound(body(Add(WireRequest.of(request), ("7",))))
    assert isinstance(add, Add)
    arrived = add.request.request()
    assert arrived.prompt is None and arrived.params.stop == arrived.params.bad_words == (TEXT,)
    assert arrived.params.top_k == arrived.params.max_tokens == MAX_SEED
    assert arrived.max_tokens == 11


def test_bad_words_are_still_wanted_where_they_arrive() -> None:
    request = make_request(SamplingParams(seed=1, bad_words=["AA"]), bad_word_ids=((65, 65),))
    edits = follow(WireRequest.of(request).request(), [65])
    assert edits is not None and edits.records()["token"].tolist() == [65]
    assert follow(WireRequest.of(make_request(SamplingParams(seed=1))).request()) is None


def test_parameters_as_by_default_do_not_travel() -> None:
    assert WireRequest.of(make_request(SamplingParams())).params == {}


def test_an_error_text_that_is_no_unicode_stops_no_step() -> None:
    events = (RequestFinished("7", "error", error="bad \ud800"), TokensGenerated("8", (1,)))
    step = decode_outbound(body(Step(events, EngineStats(), 0.0, 0.0)))
    assert isinstance(step, Step)
    assert step.events == (RequestFinished("7", "error", error="bad \\ud800"), TokensGenerated("8", (1,)))


@pytest.mark.parametrize(
    "error",
    [
        CheckpointError("cause", "remedy"),
        UnknownNameError("cause"),
        RequestError("cause", "remedy", param="prompt", code="context_length_exceeded"),
        OverloadedError("cause", retry_after=7.0),
        EngineDeadError("cause"),
    ],
)
def test_errors_arrive_as_they_are(error: PeltonError) -> None:
    arrived = Failure.of(error).error()
    assert type(arrived) is type(error) and vars(arrived) == vars(error) and str(arrived) == str(error)


def test_another_error_arrives_as_one_of_the_engine() -> None:
    arrived = Failure.of(KeyError("\ud800")).error()
    assert type(arrived) is EngineDeadError and arrived.cause == "KeyError: '\\ud800'"


@given(st.lists(st.binary(max_size=300)), st.integers(1, 50))
def test_frames_come_out_whole_however_the_stream_is_cut(bodies: list[bytes], size: int) -> None:
    stream = b"".join(len(one).to_bytes(4, "little") + one for one in bodies)
    frames, found = Frames(), []
    for at in range(0, len(stream), size):
        found += frames.feed(stream[at : at + size])
    assert found == bodies
