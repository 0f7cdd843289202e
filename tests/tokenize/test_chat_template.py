"""Chat templates: byte-exact prompts of real templates, and errors that carry the template's own words."""

from copy import deepcopy
from datetime import datetime
from pathlib import Path

import pytest
from tests.conftest import DATA
from tests.tokenize.vocabularies import json_lines

from pelton.checkpoint.special_tokens import SpecialTokens
from pelton.core.errors import RequestError
from pelton.tokenize.chat_template import ChatTemplate, build_chat_template

TOKENS = {"bos_token": "<BOS>", "eos_token": "<EOS>"}
ASKED = [{"role": "user", "content": "Hi"}]
PLAIN = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}>{% endif %}"
)
TRIMMED = PLAIN.replace("m.content", "m.content | trim")


def noon() -> datetime:
    return datetime(2025, 7, 26, 12)


def render(source: str, messages: list[dict] = ASKED, **options: object) -> str:
    return ChatTemplate(source, TOKENS, now=noon).render(messages, **options)


# ---------------------------------------------------------------------------------------------------
# goldens


TEMPLATES = sorted(path.name for path in (DATA / "chat_templates").glob("*.jinja")) or ["of the test data"]


@pytest.fixture(scope="module")
def goldens(data: Path) -> dict[str, list[dict]]:
    """Rows by template."""
    found: dict[str, list[dict]] = {}
    for row in json_lines(data / "chat_templates" / "goldens.jsonl"):
        found.setdefault(row["template"], []).append(row)
    return found


def test_every_golden_belongs_to_a_template(goldens: dict[str, list[dict]]) -> None:
    assert list(goldens) == TEMPLATES
    assert sum(len(rows) for rows in goldens.values()) == 1029


@pytest.mark.parametrize("name", TEMPLATES)
def test_goldens_of_a_real_template(data: Path, goldens: dict[str, list[dict]], name: str) -> None:
    """To the byte; where the row has an error, the template refuses the conversation here too."""
    conversations = {row["name"]: row for row in json_lines(data / "chat_templates" / "conversations.jsonl")}
    untouched = deepcopy(conversations)
    template = ChatTemplate((data / "chat_templates" / name).read_text(encoding="utf-8"), TOKENS, now=noon)
    for row in goldens[name]:
        conversation = conversations[row["conversation"]]
        options = {"tools": conversation["tools"], "add_generation_prompt": row["add_generation_prompt"]} | row[
            "kwargs"
        ]
        if row["error"] is None:
            assert template.render(conversation["messages"], **options) == row["rendered"]
        else:
            with pytest.raises(RequestError) as caught:
                template.render(conversation["messages"], **options)
            assert caught.value.param == "messages"
    assert conversations == untouched


# ---------------------------------------------------------------------------------------------------
# what a template sees


def test_blocks_are_trimmed_and_loops_can_be_left() -> None:
    source = "{% for m in messages %}\n    {% if loop.index > 1 %}{% break %}{% endif %}\n{{ m.content }}\n{% endfor %}"
    assert render(source, ASKED * 3) == "Hi\n"


def test_json_is_not_escaped() -> None:
    value = {"b": "<é中>", "a": [1, True, None]}
    assert render("{{ x | tojson }}", x=value) == '{"b": "<é中>", "a": [1, true, null]}'
    assert render("{{ x | tojson(indent=1, sort_keys=True) }}", x={"b": 1, "a": 2}) == '{\n "a": 2,\n "b": 1\n}'


def test_absent_things_are_none() -> None:
    assert render("{{ tools is none }} {{ documents is none }} {{ pad_token is defined }}") == "True True False"
    assert render("{{ tools is none }}", tools=[]) == "True"
    assert render("{{ tools[0].name }}", tools=[{"name": "add"}]) == "add"


def test_the_date_is_the_clocks() -> None:
    assert render("{{ strftime_now('%d %b %Y %H:%M') }}") == "26 Jul 2025 12:00"


def test_the_generation_tag_shows_its_content() -> None:
    source = "{% set x = 1 %}{% generation %}{% set x = 2 %}a{{ messages[0].content }}{% endgeneration %}b{{ x }}"
    assert render(source) == "aHib1"


def test_a_checkpoints_tokens_reach_the_template() -> None:
    tokens = SpecialTokens(bos_token="<s>", eos_token="</s>", unk_token="<unk>")
    template = build_chat_template("{{ bos_token }}{{ eos_token }}{{ unk_token }}{{ pad_token }}", tokens)
    assert template.render(ASKED) == "<s></s><unk>"


def test_a_namespace_and_a_dict_work() -> None:
    assert render("{% set n = namespace(a=1, self=2) %}{% set n.a = n.a + n.self %}{{ n.a }}") == "3"
    assert render("{{ dict(a=1).a }}") == "1"


# ---------------------------------------------------------------------------------------------------
# continuing the last message

UNFINISHED = [*ASKED, {"role": "assistant", "content": "The answer "}]


def test_a_continued_message_ends_the_text() -> None:
    assert render(PLAIN, UNFINISHED) == "[user]Hi<EOS>[assistant]The answer <EOS>>"
    assert render(PLAIN, UNFINISHED, continue_final_message=True) == "[user]Hi<EOS>[assistant]The answer "
    assert render(TRIMMED, UNFINISHED, continue_final_message=True) == "[user]Hi<EOS>[assistant]The answer"


def test_a_continued_message_is_shown_without_a_generation_prompt() -> None:
    source = "{% if add_generation_prompt %}asked{% endif %}{{ messages[-1].content }}"
    assert render(source, UNFINISHED, continue_final_message=True) == "The answer "


def test_the_last_text_part_is_continued() -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}, {"type": "image"}]
    source = "{% for p in messages[-1].content %}{{ p.text }}|{% endfor %}"
    assert render(source, [{"role": "assistant", "content": parts}], continue_final_message=True) == "one|two"


@pytest.mark.parametrize(
    "messages", [[], [{"role": "assistant"}], [{"role": "assistant", "content": [{"type": "image"}]}]]
)
def test_nothing_to_continue_is_refused(messages: list[dict]) -> None:
    with pytest.raises(RequestError, match="no text to continue"):
        render(PLAIN, messages, continue_final_message=True)


def test_a_template_that_hides_the_message_cannot_continue_it() -> None:
    with pytest.raises(RequestError, match="does not show the last message"):
        render("{{ messages[0].content }}", UNFINISHED, continue_final_message=True)


# ---------------------------------------------------------------------------------------------------
# errors


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("{{ raise_exception('Roles must alternate') }}", "Roles must alternate"),
        ("{{ messages[0].nothing.deeper }}", "has no attribute 'nothing'"),
        ("{{ messages[0].content + 1 }}", "str"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ raise_exception.__globals__.items() }}", "unsafe"),
        ("{% set n = namespace(_x=1) %}", "_x"),
        ("{% set n = namespace() %}{% set n.__class__ = 1 %}", "__class__"),
        ("{% for i in range(100001) %}{% endfor %}", "Range too big"),
        ("{% include 'file' %}", "no loader"),
        ("{{ 1 / 0 }}", "division by zero"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion"),
    ],
)
def test_a_failing_template_is_this_requests_error(source: str, words: str) -> None:
    with pytest.raises(RequestError, match=words) as caught:
        render(source)
    assert caught.value.param == "messages"


def test_a_template_that_does_not_compile_is_refused_with_its_line() -> None:
    with pytest.raises(RequestError, match=r"does not compile: .*\(line 2\)"):
        ChatTemplate("\n{% if %}")


@pytest.mark.parametrize("source", [None, ""])
def test_a_model_without_a_template_says_so(source: str | None) -> None:
    with pytest.raises(RequestError, match="no chat template"):
        ChatTemplate(source)
