"""What lm-evaluation-harness' `local-completions` asks and reads: echo with log-probabilities, prompts in batches."""

from dataclasses import replace
from operator import itemgetter
from typing import Any

import pytest
from starlette.testclient import TestClient
from tests.serve.conftest import MakeClient
from tests.serve.fakes import SAYS, TEMPLATE, FakeEngine, make_front

from pelton.checkpoint.special_tokens import SpecialTokens

COMPLETIONS = "/v1/completions"


def scores(answer: Any, context_sizes: list[int]) -> list[tuple[float, bool]]:
    """(sum of the continuation's log-probabilities, whether each is the likeliest), read as that client reads them."""
    found = []
    choices = sorted(answer["choices"], key=itemgetter("index"))
    for choice, size in zip(choices, context_sizes, strict=True):
        values = choice["logprobs"]["token_logprobs"][size:-1]
        tops = choice["logprobs"]["top_logprobs"][size:-1]
        assert len(values) == len(tops)
        greedy = all(value == max(top.values()) for value, top in zip(values, tops, strict=True))
        found.append((sum(values), greedy))
    return found


def body(prompts: Any) -> dict[str, Any]:
    return {
        "model": "fake", "prompt": prompts, "temperature": 0, "max_tokens": 1, "logprobs": 1, "seed": 1234, "echo": True
    }  # fmt: skip


@pytest.mark.parametrize("as_ids", [True, False])
def test_log_likelihoods_of_a_batch(client: TestClient, as_ids: bool) -> None:
    pairs = [("Say ", "yes"), ("Is it", " not so?"), ("A", "B")]
    prompts: list[Any] = [context + rest for context, rest in pairs]
    if as_ids:
        prompts = [list(prompt.encode()) for prompt in prompts]
    reply = client.post(COMPLETIONS, json=body(prompts))
    assert reply.status_code == 200 and "x-pelton-ignored" not in reply.headers
    found = scores(reply.json(), [len(context) for context, _ in pairs])
    # The fake gives each token -1.5, and -0.5 to another one.
    assert found == [(-1.5 * len(rest), False) for _, rest in pairs]
    for choice, (context, rest) in zip(reply.json()["choices"], pairs, strict=True):
        lists = choice["logprobs"]
        assert lists["token_logprobs"][0] is None and lists["top_logprobs"][0] is None
        assert "".join(lists["tokens"]) == choice["text"] == context + rest + SAYS[0]
        assert lists["text_offset"] == list(range(len(context + rest) + 1))


def test_one_prompt_alone_and_rolling_windows(client: TestClient) -> None:
    """For perplexity it sends windows whose first token is only context."""
    for prompt, size in ("x" * 40, 40), (list(b"abcdef"), 6), ([list(b"abcdef")], 6):
        reply = client.post(COMPLETIONS, json=body(prompt))
        assert scores(reply.json(), [1]) == [(-1.5 * (size - 1), False)]


def test_without_a_token_of_its_own(client: TestClient) -> None:
    answer = client.post(COMPLETIONS, json={**body(["ab", "c"]), "max_tokens": 0}).json()
    assert [choice["text"] for choice in answer["choices"]] == ["ab", "c"]
    assert [len(choice["logprobs"]["token_logprobs"]) for choice in answer["choices"]] == [2, 1]
    assert answer["usage"]["completion_tokens"] == 0


def test_a_client_may_tokenise_through_the_server(make_client: MakeClient) -> None:
    tokens = SpecialTokens(bos_token="<start>", bos_id=257, eos_token="<end>", eos_id=256)
    client = make_client(FakeEngine(front=replace(make_front(), special_tokens=tokens)))
    info = client.get("/tokenizer_info").json()
    assert (info["bos_token"], info["eos_token"], info["pad_token"]) == ("<start>", "<end>", None)
    assert info["chat_template"] == TEMPLATE and info["model_max_length"] == 256
    asked = client.post("/tokenize", json={"prompt": info["eos_token"], "add_special_tokens": False})
    assert asked.json()["tokens"] == [256]
    assert client.post("/detokenize", json={"tokens": [65, 256]}).json() == {"prompt": "A<end>"}


def test_generations(make_client: MakeClient) -> None:
    engine = FakeEngine()
    engine.says = "yes\n\nno"
    client = make_client(engine)
    asked = {
        "prompt": [list(b"a"), list(b"b")], "model": "fake", "max_tokens": 256 - 10, "temperature": 0,
        "stop": ["\n\n", "<end>"], "seed": 1234,
    }  # fmt: skip
    answer = client.post(COMPLETIONS, json=asked).json()
    texts: list[str | None] = [None] * len(answer["choices"])
    for choice in answer["choices"]:
        texts[choice["index"]] = choice["text"]
    assert texts == ["yes", "yes"]
