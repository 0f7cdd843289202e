"""`suffix` in /v1/completions, and /infill in the shape of llama.cpp's server."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from starlette.testclient import TestClient
from tests.serve.conftest import MakeClient
from tests.serve.fakes import CACHED, FIM, MODEL, SAYS, FakeEngine, make_front

from pelton.serve.schema.infill import InfillAnswer, InfillFields

INFILL, COMPLETIONS = "/infill", "/v1/completions"
GAP = {"input_prefix": "def f(", "input_suffix": "): pass"}
PROMPT = [FIM.prefix, *b"def f(", FIM.suffix, *b"): pass", FIM.middle]


def ask(client: TestClient, **fields: Any) -> Any:
    reply = client.post(INFILL, json={**GAP, "n_predict": 12, **fields})
    assert reply.status_code == 200, reply.text
    return reply.json()


def events(client: TestClient, **fields: Any) -> list[Any]:
    reply = client.post(INFILL, json={**GAP, "n_predict": 12, "stream": True, **fields})
    assert reply.status_code == 200 and reply.headers["content-type"].startswith("text/event-stream")
    blocks = reply.text.strip().split("\n\n")
    assert all(block.startswith("data: {") for block in blocks), "llama.cpp sends no mark at the end"
    return [json.loads(block.removeprefix("data: ")) for block in blocks]


def test_a_completion_with_a_suffix(make_client: MakeClient) -> None:
    engine = FakeEngine()
    client = make_client(engine)
    reply = client.post(COMPLETIONS, json={"prompt": ["def f(", "x"], "suffix": "): pass", "max_tokens": 12})
    assert reply.status_code == 200
    assert [choice["text"] for choice in reply.json()["choices"]] == [SAYS.encode()[:12].decode()] * 2
    assert list(engine.submitted[0].prompt_token_ids) == PROMPT
    assert engine.submitted[0].stop_token_ids == {256, 257, 258, 259}
    ids = client.post(COMPLETIONS, json={"prompt": list(b"def f("), "suffix": "): pass", "max_tokens": 1})
    assert ids.json()["usage"]["prompt_tokens"] == len(PROMPT)
    assert list(engine.submitted[-1].prompt_token_ids) == PROMPT


def test_a_model_without_marks_says_so(make_client: MakeClient) -> None:
    client = make_client(FakeEngine(front=make_front(fim=None)))
    for path, body, param in (
        (COMPLETIONS, {"prompt": "a", "suffix": "b"}, "suffix"),
        (INFILL, GAP, "input_suffix"),
    ):
        error = client.post(path, json=body).json()["error"]
        assert (error["param"], error["code"]) == (param, "unsupported_parameter")
        assert "no tokens for filling in the middle" in error["message"]
    assert client.post(COMPLETIONS, json={"prompt": "a", "suffix": ""}).status_code == 200


def test_the_answer_has_the_shape_of_llama_cpp(make_client: MakeClient) -> None:
    engine = FakeEngine()
    client = make_client(engine)
    answer = ask(client, seed=7)
    timings = answer.pop("timings")
    assert answer == {
        "index": 0,
        "content": SAYS.encode()[:12].decode(),
        "tokens": [],
        "stop": True,
        "model": MODEL,
        "tokens_predicted": 12,
        "tokens_evaluated": len(PROMPT),
        "tokens_cached": CACHED,
        "generation_settings": {
            "n_predict": 12, "seed": 7, "temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05,
            "repeat_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0, "logit_bias": [], "stop": [],
            "ignore_eos": False, "n_probs": 0, "stream": False,
        },
        "prompt": "<start>def f(<pad>): pass<poison>",
        "has_new_line": False,
        "truncated": False,
        "stop_type": "limit",
        "stopping_word": "",
    }  # fmt: skip
    assert (timings["prompt_n"], timings["cache_n"], timings["predicted_n"]) == (len(PROMPT) - CACHED, CACHED, 12)
    assert list(engine.submitted[0].prompt_token_ids) == PROMPT


def test_a_stream_has_its_chunks_and_all_the_rest_at_the_end(client: TestClient) -> None:
    *chunks, last = events(client, stop=["世"], n_predict=40)
    assert "".join(chunk["content"] for chunk in chunks) == SAYS[: SAYS.index("世")] and last["content"] == ""
    assert [chunk["stop"] for chunk in chunks] == [False] * len(chunks) and last["stop"]
    assert [token for chunk in chunks for token in chunk["tokens"]] == list(SAYS.encode()[:12])
    assert (last["stop_type"], last["stopping_word"], last["tokens_predicted"]) == ("word", "世", 12)
    assert chunks[-1]["tokens_predicted"] == 12 and chunks[0]["tokens_evaluated"] == len(PROMPT)
    assert set(chunks[0]) == {"index", "content", "tokens", "stop", "tokens_predicted", "tokens_evaluated"}


def test_each_ending_has_its_name(make_client: MakeClient) -> None:
    engine = FakeEngine()
    engine.says = "ab\n"
    client = make_client(engine)
    assert ask(client, stop="b")["stop_type"] == "word"
    assert ask(client)["has_new_line"]
    object.__setattr__(engine.requests._limits, "end_ids", frozenset({ord("b")}))
    ended = ask(client)
    assert (ended["stop_type"], ended["stopping_word"], ended["content"]) == ("eos", "", "a")
    assert ask(client, ignore_eos=True)["stop_type"] == "limit"


def test_other_files_and_what_is_begun(make_client: MakeClient) -> None:
    engine = FakeEngine(max_len=400)
    client = make_client(engine)
    ask(client, prompt="x", input_extra=[{"filename": "a.py", "text": "A"}, {"text": "B"}])
    ids = bytes(token for token in engine.submitted[0].prompt_token_ids if token < 256)
    assert ids == b"\n\n--- snippet ---\n\nA\n\n--- snippet ---\n\nBdef f(x): pass"


def test_a_long_file_is_cut_and_that_is_told(make_client: MakeClient) -> None:
    engine = FakeEngine(max_len=64)
    client = make_client(engine)
    answer = ask(client, input_prefix="p" * 5000, input_suffix="s" * 5000)
    assert answer["truncated"] and answer["tokens_evaluated"] == 64 - 1 - 12
    open_end = ask(client, input_prefix="p" * 5000, n_predict=-1)
    assert open_end["tokens_evaluated"] == 31 and open_end["generation_settings"]["n_predict"] == 33


def test_probabilities(client: TestClient) -> None:
    places = ask(client, n_probs=2, n_predict=3)["completion_probabilities"]
    assert [place["id"] for place in places] == list(SAYS.encode()[:3])
    assert places[0] == {
        "id": 71, "token": "G", "bytes": [71], "logprob": -1.5,
        "top_logprobs": [{"id": 72, "token": "H", "bytes": [72], "logprob": -0.5},
                         {"id": 71, "token": "G", "bytes": [71], "logprob": -1.5}],
    }  # fmt: skip
    *chunks, last = events(client, n_probs=2, n_predict=3)
    assert [place for chunk in chunks for place in chunk["completion_probabilities"]] == places
    assert "completion_probabilities" not in last


def test_fields_by_wish(client: TestClient) -> None:
    wanted = ["content", "timings/prompt_n", "generation_settings/seed", "nonsense", "content/x"]
    assert ask(client, seed=3, response_fields=wanted) == {
        "content": SAYS.encode()[:12].decode(),
        "timings/prompt_n": len(PROMPT) - CACHED,
        "generation_settings/seed": 3,
    }


def test_values_reach_the_engine(make_client: MakeClient) -> None:
    engine = FakeEngine(values={"temperature": 0.3, "top_k": 9})
    client = make_client(engine)
    ask(client, top_k=5, repeat_penalty=1.2, seed=-1, logit_bias=[[65, 1.5], [66, False]], return_tokens=True)
    params = engine.submitted[0].params
    assert (params.temperature, params.top_k, params.min_p) == (0.3, 5, 0.05), "the model's own before llama.cpp's"
    assert params.repetition_penalty == 1.2 and dict(params.logit_bias or {}) == {65: 1.5, 66: -100}
    assert engine.submitted[0].cache_salt == ""
    ask(client, cache_prompt=False), ask(client, cache_prompt=False)
    salts = [request.cache_salt for request in engine.submitted[1:]]
    assert len({"", *salts}) == 3, "without the cache: with salts of their own"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input_prefix": None}, "input_prefix"),
        ({"input_suffix": 5}, "input_suffix"),
        ({"input_extra": [{"filename": "x"}]}, "input_extra[0].text"),
        ({"n_predict": -2}, "n_predict"),
        ({"n_probs": 21}, "n_probs"),
        ({"typical_p": 0.5}, "typical_p"),
        ({"mirostat": 2}, "mirostat"),
        ({"grammar": "root ::= x"}, "grammar"),
        ({"json_schema": {"type": "object"}}, "json_schema"),
        ({"lora": [{"id": 0, "scale": 1}]}, "lora"),
        ({"post_sampling_probs": True}, "post_sampling_probs"),
        ({"repeat_last_n": 64}, "repeat_last_n"),
        ({"logit_bias": [["Hello", 1]]}, "logit_bias"),
        ({"logit_bias": [[5, True]]}, "logit_bias"),
        ({"logit_bias": 3}, "logit_bias"),
        ({"stop": [""]}, "stop"),
        ({"prompt": "x" * 300}, "prompt"),
        ({"input_prefix": "\ud800"}, "input_prefix"),
    ],
)
def test_a_bad_field_is_told_by_its_name(client: TestClient, fields: dict[str, Any], param: str) -> None:
    reply = client.post(INFILL, content=json.dumps({**GAP, **fields}))
    assert reply.status_code == 400, reply.text
    assert reply.json()["error"]["param"] == param


def test_a_seed_beyond_what_there_is(client: TestClient) -> None:
    message = client.post(INFILL, json={**GAP, "seed": 2**64}).json()["error"]["message"]
    assert f"between 0 and {2**64 - 1}, or -1 for a fresh one" in message


@pytest.mark.parametrize("biases", [[[1, True]], [[1, "1"]], [[1, None]], {"1": True}, {"1": "x"}])
def test_a_bias_of_a_wrong_type_is_not_out_of_range(client: TestClient, biases: object) -> None:
    error = client.post(INFILL, json={**GAP, "logit_bias": biases}).json()["error"]
    assert error["param"] == "logit_bias" and "no pair of a token id and a number" in error["message"]
    for far in ([[1, 101]], {"1": -101}, [[1, 10**400]]):
        assert "out of range" in client.post(INFILL, content=json.dumps({**GAP, "logit_bias": far})).text


def test_what_editors_send_besides_is_told_and_not_refused(make_client: MakeClient) -> None:
    hints = {"n_indent": 4, "samplers": ["top_k", "infill"], "t_max_predict_ms": 500}
    client = make_client(strict=True)
    reply = client.post(INFILL, json={**GAP, **hints, "cache_prompt": True, "n_predict": 1})
    assert reply.status_code == 200
    assert reply.headers["x-pelton-ignored"] == "n_indent, samplers, t_max_predict_ms"
    assert client.post(INFILL, json={**GAP, "nonsense": 1}).json()["error"]["param"] == "nonsense"


def test_a_failed_answer_is_an_error(make_client: MakeClient) -> None:
    client = make_client(FakeEngine(fault=("error", 2)))
    assert client.post(INFILL, json=GAP).status_code == 500
    *_, last = events(client)
    assert last["error"]["code"] == "answer_failed"


def test_the_description_knows_the_fields(client: TestClient) -> None:
    schemas = client.get("/openapi.json").json()["components"]["schemas"]
    assert set(schemas["InfillFields"]["properties"]) == set(InfillFields.__struct_fields__)
    assert set(schemas["InfillAnswer"]["properties"]) == set(InfillAnswer.__struct_fields__)


def test_the_data_of_humaneval_as_bodies(data: Path, make_client: MakeClient) -> None:
    engine = FakeEngine(max_len=6000, delay=0)
    client = make_client(engine)
    lines = (data / "prompts" / "humaneval_infill_randomspan.jsonl").read_text(encoding="utf-8").strip().split("\n")
    for row in map(msgspec.json.decode, lines):
        gap = {"input_prefix": row["prompt"], "input_suffix": row["suffix"], "n_predict": 1}
        answer = client.post(INFILL, json=gap).json()
        assert answer["content"] == "G" and not answer["truncated"]
        reply = client.post(COMPLETIONS, json={"prompt": row["prompt"], "suffix": row["suffix"], "max_tokens": 1})
        assert reply.status_code == 200
        whole, plain = engine.submitted[-2:]
        assert whole.prompt_token_ids == plain.prompt_token_ids
