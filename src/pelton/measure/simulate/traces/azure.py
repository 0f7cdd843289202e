"""CSV in the form of the Azure LLM inference traces: TIMESTAMP, ContextTokens, GeneratedTokens. None share a prompt."""

from datetime import UTC, datetime

from pelton.measure.simulate.trace import Call, Source, Trace, counted, in_order

COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
FRACTION = 6  # digits of a second that datetime reads; the files have seven


class Azure:
    """The first time is the beginning."""

    def claims(self, first: str) -> bool:
        return tuple(name.strip() for name in first.split(",")) == COLUMNS

    def read(self, source: Source) -> Trace:
        source.no_parts()
        number, names = source.lines[0]
        if not self.claims(names):
            raise source.error(number, f"{names[:60]!r} are not the columns {','.join(COLUMNS)}")
        rows = source.lines[1:]
        if not rows:
            raise source.error(source.lines[0][0], "no rows follow the names of the columns")
        calls = in_order([_call(source, number, line) for number, line in rows])
        first = calls[0].at
        return Trace(tuple(Call(call.at - first, call.prompt, call.output) for call in calls))


def _call(source: Source, number: int, line: str) -> Call:
    cells = line.split(",")
    if len(cells) != len(COLUMNS):
        raise source.error(number, f"{len(cells)} cells, not {len(COLUMNS)}")
    prompt, output = counted(cells[1]), counted(cells[2])
    if not prompt or output is None:
        raise source.error(number, f"{cells[1]!r} and {cells[2]!r} are no numbers of tokens")
    return Call(_seconds(source, number, cells[0].strip()), prompt, output)


def _seconds(source: Source, number: int, text: str) -> float:
    whole, dot, fraction = text.partition(".")
    try:
        moment = datetime.fromisoformat(whole + dot + fraction[:FRACTION].ljust(FRACTION, "0") if dot else whole)
    except ValueError as error:
        raise source.error(number, f"{text!r} is no time", "Write it like 2023-11-16 18:17:03.97.") from error
    # Times without a zone are all of one: only differences count.
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
