"""CSV of lengths alone, without times: a line with names of columns, of which one is the prompt's tokens and one the
answer's. Known names are those of published files; others may call them prompt_tokens and output_tokens.
"""

from pelton.measure.simulate.trace import Call, Source, Trace, counted

# (prompt, answer), the likeliest first.
PAIRS = (
    ("prompt_tokens", "output_tokens"),
    ("num_prefill_tokens", "num_decode_tokens"),
    ("prompt_tokens_qwen3", "output_tokens_qwen3"),
    ("input_length", "output_length"),
)


class CsvLengths:
    """All calls are there at once, unless a rate is given."""

    def claims(self, first: str) -> bool:
        return _places(first) is not None

    def read(self, source: Source) -> Trace:
        source.no_parts()
        (number, first), *rows = source.lines
        places = _places(first)
        if places is None:
            known = " or ".join(f"{prompt} and {output}" for prompt, output in PAIRS)
            raise source.error(number, "no names of columns that are known", f"Call two of them {known}.")
        if not rows:
            raise source.error(number, "no rows follow the names of the columns")
        return Trace(tuple(_call(source, row, line, places) for row, line in rows), timed=False)


def _places(first: str) -> tuple[int, int] | None:
    names = [name.strip() for name in first.split(",")]
    for prompt, output in PAIRS:
        if prompt in names and output in names:
            return names.index(prompt), names.index(output)
    return None


def _call(source: Source, number: int, line: str, places: tuple[int, int]) -> Call:
    cells = line.split(",")
    if len(cells) <= max(places):
        raise source.error(number, f"{len(cells)} cells are too few")
    prompt, output = (counted(cells[place]) for place in places)
    if prompt is None or output is None:
        raise source.error(number, f"{cells[places[0]]!r} and {cells[places[1]]!r} are no numbers of tokens")
    return Call(0.0, max(prompt, 1), output)  # somebody who said nothing still asks
