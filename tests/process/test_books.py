"""Who waits for what: nothing of an old request is told to a new one of its id, and every answer ends."""

import pytest
from tests.engine.fakes import byte_tokenizer, make_request

from pelton.core.clock import FakeClock
from pelton.core.counters import EngineStats
from pelton.core.errors import RequestError
from pelton.core.events import Event, RequestFinished, RequestScheduled, TokensGenerated
from pelton.core.request import Request
from pelton.engine.outputs import Answers
from pelton.engine.process.answer import Mailbox
from pelton.engine.process.books import Books
from pelton.engine.process.messages import Failure, Refused, Step

FAILURE = Failure("RequestError", "cause", "remedy", "prompt", "context_length_exceeded")


@pytest.fixture
def books() -> Books:
    return Books(byte_tokenizer(), FakeClock())


def step(*events: Event) -> Step:
    return Step(events, EngineStats(), 0.0, 1.0)


def start(books: Books, request: Request) -> Mailbox:
    (mailbox,) = books.start([request])
    return mailbox


def text(name: str, words: str) -> TokensGenerated:
    return TokensGenerated(name, tuple(words.encode()))


def test_an_answer_comes_to_its_mailbox(books: Books) -> None:
    assert books.idle.is_set() and not books.busy
    mailbox = start(books, make_request("1", [65], 5))
    assert books.busy and not books.idle.is_set()
    taken = books.take(step(RequestScheduled("1", 0)))
    assert taken.entered == 1 and not mailbox.news.is_set()
    books.take(step(text("1", "ab")))
    assert mailbox.news.is_set() and not mailbox.ended.is_set()
    taken = books.take(step(text("1", "c"), RequestFinished("1", "length")))
    assert (
        taken.finished == [mailbox.answer]
        and mailbox.ended.is_set()
        and mailbox.answer.output().outputs[0].text == "abc"
    )
    assert not books.busy and books.idle.is_set()
    start(books, make_request("1", [65], 5))


def test_ids_of_open_requests_differ_those_of_their_answers_too(books: Books) -> None:
    start(books, make_request("1", [65], 5, n=2))
    for name in ("1", "1/1"):
        with pytest.raises(RequestError, match="in use"):
            start(books, make_request(name, [65], 5))
    start(books, make_request("1/2", [65], 5))


def test_a_call_with_an_id_in_use_leaves_nothing_open(books: Books) -> None:
    start(books, make_request("2", [65], 5))
    with pytest.raises(RequestError, match="in use"):
        books.start([make_request("1", [65], 5, n=2), make_request("2", [65], 5)])
    assert books.sequences() == ("2",)
    assert [one.answer.request.request_id for one in books.start([make_request("1", [65], 5)])] == ["1"]


def test_what_comes_of_an_aborted_request_is_not_the_next_ones_of_its_id(books: Books) -> None:
    first = start(books, make_request("1", [65], 9))
    books.take(step(text("1", "old")))
    assert books.abort(first) == (("1",), [first.answer])
    assert first.ended.is_set() and first.answer.output().outputs[0].finish_reason == "abort" and books.busy
    second = start(books, make_request("1", [65], 9))
    books.take(step(text("1", " more")))
    assert not second.news.is_set()
    books.take(step(RequestFinished("1", "abort"), text("1", "new")))
    books.take(step(RequestFinished("1", "length")))
    assert first.answer.output().outputs[0].text == "old" and second.answer.output().outputs[0].text == "new"
    assert not books.busy


def test_an_id_may_leave_twice(books: Books) -> None:
    for _ in range(2):
        books.abort(start(books, make_request("1", [65], 9)))
    last = start(books, make_request("1", [65], 9))
    books.take(step(RequestFinished("1", "abort"), text("1", "x"), RequestFinished("1", "abort"), text("1", "y")))
    assert [piece.text for piece in last.answer.pieces()] == ["y"]


def test_aborting_what_is_over_does_nothing(books: Books) -> None:
    mailbox = start(books, make_request("1", [65], 9))
    books.take(step(RequestFinished("1", "length")))
    assert books.abort(mailbox) == ((), [])
    again = start(books, make_request("1", [65], 9))
    assert books.abort(mailbox) == ((), []) and not again.ended.is_set()


def test_of_n_answers_only_the_open_ones_leave(books: Books) -> None:
    mailbox = start(books, make_request("1", [65], 9, n=3))
    books.take(step(text("1/1", "done"), RequestFinished("1/1", "length")))
    assert not mailbox.ended.is_set()
    left, over = books.abort(mailbox)
    assert left == ("1", "1/2") and over == [mailbox.answer]
    assert [one.finish_reason for one in mailbox.answer.output().outputs] == ["abort", "length", "abort"]


def test_a_stop_string_ends_a_sequence_and_the_engine_is_to_stop_it(books: Books) -> None:
    mailbox = start(books, make_request("1", [65], 9, stop="!"))
    taken = books.take(step(text("1", "hey! you")))
    assert taken.stop == ("1",) and taken.finished == [mailbox.answer] and books.busy
    assert mailbox.answer.output().outputs[0].text == "hey"
    books.take(step(text("1", "ignored"), RequestFinished("1", "stop")))
    assert not books.busy


def test_a_stop_string_in_the_last_step_leaves_nothing_to_wait_for(books: Books) -> None:
    start(books, make_request("1", [65], 9, stop="!"))
    taken = books.take(step(text("1", "hey!"), RequestFinished("1", "length")))
    assert taken.stop == ("1",) and not books.busy


def test_a_refused_request_tells_its_reader_why(books: Books) -> None:
    mailbox = start(books, make_request("1", [65], 9, n=2))
    other = start(books, make_request("2", [65], 9))
    books.refuse(Refused("1", FAILURE, ("1/1",)))
    assert isinstance(mailbox.refused, RequestError) and mailbox.refused.code == "context_length_exceeded"
    assert mailbox.ended.is_set() and not other.ended.is_set() and books.busy
    books.take(step(RequestFinished("1", "abort"), RequestFinished("2", "length")))
    assert not books.busy


def test_a_refusal_after_an_abort_is_not_the_next_ones_of_its_id(books: Books) -> None:
    books.abort(start(books, make_request("1", [65], 9, n=2)))
    second = start(books, make_request("1", [65], 9, n=2))
    books.refuse(Refused("1", FAILURE, ("1/1",)))
    assert second.refused is None
    books.take(step(RequestFinished("1", "abort"), text("1/1", "x"), text("1", "y")))
    assert [piece.text for piece in second.answer.pieces()] == ["y", "x"]


def test_all_end_at_once(books: Books) -> None:
    mailboxes = [start(books, make_request(str(number), [65], 9, n=number)) for number in (1, 2)]
    books.abort(start(books, make_request("gone", [65], 9)))
    over = books.end_all("error", "the reason")
    assert over == [mailbox.answer for mailbox in mailboxes] and not books.busy and books.idle.is_set()
    for mailbox in mailboxes:
        output = mailbox.answer.output()
        assert output.error == "the reason" and {one.finish_reason for one in output.outputs} == {"error"}


def test_if_taking_a_step_in_breaks_everybody_is_told(
    books: Books, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    mailboxes = [start(books, make_request(str(number), [65], 9)) for number in range(2)]

    def broken(self: Answers, events: list[Event], began: float, now: float) -> object:
        raise ZeroDivisionError("a bug")

    with monkeypatch.context() as patch:
        patch.setattr(Answers, "take", broken)
        taken = books.take(step(text("0", "x"), RequestFinished("0", "length")))
    assert taken.abort == ("1",) and len(taken.finished) == 2 and books.busy and books.idle.is_set()
    for mailbox in mailboxes:
        assert mailbox.ended.is_set() and "ZeroDivisionError: a bug" in (mailbox.answer.output().error or "")
    assert "a bug" in caplog.text
    later = start(books, make_request("1", [65], 9))
    books.take(step(text("1", "late"), RequestFinished("1", "abort"), text("1", "new"), RequestFinished("1", "length")))
    assert later.answer.output().outputs[0].text == "new" and not books.busy
