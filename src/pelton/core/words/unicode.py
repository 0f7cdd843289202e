"""Text that UTF-8 can carry: half a character can neither be tokenised nor sent to another process."""

from pelton.core.errors import RequestError


def expect_utf8(param: str, text: str) -> None:
    """RequestError for `param` if the text holds a lone surrogate."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise RequestError(
            f"{param} holds the lone surrogate U+{ord(text[error.start]):04X} at character {error.start}.",
            "Send well-formed Unicode text.",
            param=param,
        ) from error
