"""PromptEncoder: text -> ids of a prompt that the model can take. It reads no Prompt.

Invariant: time and memory are bounded by what fits, however long the text is.
"""

from pelton.core.errors import RequestError
from pelton.tokenize.tokenizer import Tokenizer

TOO_LONG = "context_length_exceeded"
SPARE_TOKENS = 1 << 10
LONG_TEXT = 1 << 18  # characters from which on tokenising takes longer than seeing that it is in vain
USUAL_TOKEN_BYTES = 64  # more than tokens have, where a vocabulary tells no bound


class PromptEncoder:
    """`vocab`: ids are below it; `max_len`: tokens of prompt and answer. RequestErrors are for the field `param`."""

    def __init__(self, tokenizer: Tokenizer, vocab: int, max_len: int) -> None:
        self._tokenizer = tokenizer
        self._vocab = vocab
        self.max_len = max_len

    @property
    def bos(self) -> tuple[int, ...]:
        """What the model wants in front of a text: its first token, or nothing."""
        tokenizer = self._tokenizer
        return (tokenizer.bos_id,) if tokenizer.add_bos and tokenizer.bos_id is not None else ()

    @property
    def most_chars(self) -> int:
        """A text of more characters has tokens that do not fit, as far as that can be told."""
        return self.max_len * (self._tokenizer.longest_token_bytes or USUAL_TOKEN_BYTES)

    def encode(self, text: str, *, bos: bool, param: str, special: bool = True) -> tuple[int, ...]:
        """Token ids of a text; with `bos` the model's first token in front; `special`: special tokens count as such.

        RequestError for a text that cannot fit, before time is spent on it, and for one that needs a token the model
        does not have.
        """
        if len(text) >= LONG_TEXT:
            size, longest = len(text.encode("utf-8", "surrogatepass")), self._tokenizer.longest_token_bytes
            if longest is not None and size >= self.max_len * longest:
                raise self.too_long(f"{size} bytes, which is at least {-(-size // longest)} tokens", param)
            self._refuse_long_start(text, param, special)
        encode = self._tokenizer.encode_prompt if bos else self._tokenizer.encode
        return self._known(encode(text, special=special, param=param), param)

    def encode_any(self, text: str, *, param: str) -> tuple[int, ...]:
        """Token ids of a text of any length, in which special tokens are text like any other."""
        return self._known(self._tokenizer.encode(text, special=False, param=param), param)

    def too_long(self, size: str, param: str) -> RequestError:
        """What to raise for a prompt of that `size`, a number with its unit."""
        return RequestError(
            f"The prompt has {size}; with its answer it may have {self.max_len}.",
            f"Shorten it to at most {self.max_len - 1} tokens.",
            param=param,
            code=TOO_LONG,
        )

    def _known(self, ids: list[int], param: str) -> tuple[int, ...]:
        outside = next((token for token in ids if token >= self._vocab), None)
        if outside is not None:
            raise RequestError(
                f"The text becomes token {outside} ({self._tokenizer.token_text(outside)!r}), and the model has only "
                f"{self._vocab} tokens.",
                "Leave that text out, or use the tokenizer that belongs to the model.",
                param=param,
            )
        return tuple(ids)

    def _refuse_long_start(self, text: str, param: str, special: bool) -> None:
        """RequestError for a text whose beginning alone has many more tokens than fit, so that time and memory are
        bounded by what fits. What follows can join the beginning's last tokens only, not undo half of all.
        """
        size = LONG_TEXT
        while size < len(text):
            count = len(self._tokenizer.encode(text[:size], special=special, param=param))
            if count > 2 * self.max_len + SPARE_TOKENS:
                raise self.too_long(f"more than {count // 2} tokens", param)
            size *= 2
