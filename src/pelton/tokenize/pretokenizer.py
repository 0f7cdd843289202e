"""Pretokenizer: how text is cut into words before merges are applied. A GGUF names one, a tokenizer.json spells it out.

It does not merge bytes. Invariant: it only cuts; joined again, the pieces are the (normalised) text.
"""

from dataclasses import dataclass

Json = dict[str, object]


@dataclass(frozen=True, slots=True)
class Pretokenizer:
    """One named way to cut text for byte-level BPE.

    `splits`: regexes applied one after another, each isolates its matches in the pieces that the ones before left.
    `normalizer`: a Unicode form (such as "NFC") applied to the text first, or None.
    `ignore_merges`: a piece that is a whole vocabulary entry becomes that token even where merges would not reach it.
    `add_bos`: whether a prompt starts with the BOS token if the file does not say.
    `ranked`: in a file that lists no merges, the neighbours that make the token with the lowest id are joined first.
    """

    splits: tuple[str, ...]
    normalizer: str | None = None
    ignore_merges: bool = False
    add_bos: bool = False
    ranked: bool = False

    def pre_tokenizer(self) -> Json:
        """The `pre_tokenizer` section of a tokenizer.json."""
        steps: list[Json] = [
            {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}
            for regex in self.splits
        ]
        steps.append({"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False})
        return {"type": "Sequence", "pretokenizers": steps}

    def normalizer_section(self) -> Json | None:
        """The `normalizer` section of a tokenizer.json."""
        return None if self.normalizer is None else {"type": self.normalizer}
