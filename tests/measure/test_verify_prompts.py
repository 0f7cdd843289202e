"""The built-in prompts, and a user's file of prompts with its errors."""

import json

import pytest
from tests.measure.verify_parts import letters, tiny_prompts

from pelton.core.errors import RequestError
from pelton.measure.verify.cases import Prompt
from pelton.measure.verify.prompts import SHARED, PromptReader, built_in, check_prompts, clipped


def reader() -> PromptReader:
    return PromptReader(letters, lambda messages: [len(messages), *letters(str(messages[0]["content"]))])


def test_built_in_prompts_stand_around_the_borders_of_blocks() -> None:
    lengths = {len(prompt) for prompt in tiny_prompts()}
    assert {31, 32, 33, 64, 65} <= lengths
    assert len({prompt.token_ids for prompt in tiny_prompts()}) == len(tiny_prompts())


def test_with_windows_some_prompts_are_longer_than_these() -> None:
    plain, windowed = built_in(letters), built_in(letters, (16, 70, 4096))
    longer = {prompt.name: len(prompt) for prompt in windowed if prompt not in plain}
    assert longer == {"story, beyond a window of 16": 61, "story, beyond a window of 70": 115}


def test_some_built_in_prompts_share_a_long_beginning() -> None:
    family = [prompt.token_ids for prompt in tiny_prompts() if "library" in prompt.name]
    assert len(family) > 1 and len({ids[:SHARED] for ids in family}) == 1
    assert len({ids[SHARED : SHARED + 8] for ids in family}) == len(family)


def test_each_kind_of_line_is_read() -> None:
    lines = ['{"prompt": "ab"}', "", '{"messages": [{"role": "user", "content": "a"}]}', '{"prompt_token_ids": [3, 4]}']
    prompts = reader().read(lines, "FILE")
    assert [prompt.name for prompt in prompts] == ["line 1", "line 3", "line 4"]
    assert [prompt.token_ids for prompt in prompts] == [(97, 98), (1, 97), (3, 4)]


@pytest.mark.parametrize(
    "line",
    [
        "no json",
        "3",
        "[]",
        "{}",
        '{"prompt": 3}',
        '{"prompt": ""}',
        '{"prompt": "a", "prompt_token_ids": [1]}',
        '{"prompt_token_ids": []}',
        '{"prompt_token_ids": [1, "2"]}',
        '{"prompt_token_ids": [true]}',
        '{"prompt_token_ids": [-1]}',
        '{"prompt_token_ids": 5}',
    ],
)
def test_a_bad_line_is_named(line: str) -> None:
    with pytest.raises(RequestError, match="FILE, line 2: "):
        reader().read([json.dumps({"prompt": "a"}), line], "FILE")


def test_a_file_without_prompts_is_refused() -> None:
    with pytest.raises(RequestError, match="FILE has no prompt"):
        reader().read(["", "  "], "FILE")


def test_prompts_that_cannot_run_are_refused() -> None:
    check_prompts([Prompt("line 1", (1, 2))], vocab=3, longest=2)
    with pytest.raises(RequestError, match=r"line 1 has 2 tokens, and there is room for 1"):
        check_prompts([Prompt("line 1", (1, 2))], vocab=3, longest=1)
    with pytest.raises(RequestError, match=r"line 1 has token 2, and the model has 2"):
        check_prompts([Prompt("line 1", (1, 2))], vocab=2, longest=2)


def test_our_own_prompts_are_cut_where_a_model_takes_fewer_tokens() -> None:
    assert {len(prompt) for prompt in clipped(tiny_prompts(), 40)} == {20, 31, 32, 33, 40}
