"""Errors a user may meet. Each says what happened (cause) and what to do about it (remedy)."""


class PeltonError(Exception):
    """Base of all errors that Pelton raises on purpose.

    `cause` names the setting and its value or the file and the place in it; `remedy` is one sentence the user can
    act on.
    """

    def __init__(self, cause: str, remedy: str = "") -> None:
        super().__init__(f"{cause} {remedy}".strip())
        self.cause = cause
        self.remedy = remedy


class SettingError(PeltonError):
    """A setting has a value that cannot work (flag, environment variable, argument of LLM)."""


class UnknownNameError(SettingError):
    """A name is not registered; the message lists the nearest and the known ones."""


class CheckpointError(PeltonError):
    """A model file is missing, truncated, corrupt or of a kind that is not supported."""


class TermsError(CheckpointError):
    """A model comes under terms that nobody accepted here; the message names them and says how to."""


class UnsupportedModelError(PeltonError):
    """The checkpoint is readable but asks for something that Pelton does not implement; the config field is named."""


class RequestError(PeltonError):
    """One request is invalid; others are not affected.

    `param` is the name of the offending parameter, `code` a word for programs such as context_length_exceeded, or None.
    """

    def __init__(self, cause: str, remedy: str = "", *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(cause, remedy)
        self.param = param
        self.code = code


class CapacityError(PeltonError):
    """Something does not fit in memory; the message says what would."""


class BackendError(PeltonError):
    """No kernel can run the Program, or the machine lacks something a backend needs."""


class OverloadedError(PeltonError):
    """Too many requests wait already. `retry_after`: seconds after which it is worth to ask again."""

    def __init__(self, cause: str, remedy: str = "", *, retry_after: float = 1.0) -> None:
        super().__init__(cause, remedy)
        self.retry_after = retry_after


class EngineDeadError(PeltonError):
    """The engine process is gone or hangs; requests it had are lost, and it is started again."""


def beyond(length: int, context: int) -> SettingError:
    """The error for a max_model_len of `length` tokens with a model that was made for `context`."""
    return SettingError(
        f"max_model_len={length} is beyond the {context} tokens this model was made for.",
        f"Set at most {context}, or have its positions scaled by hf_overrides (docs/positions.md).",
    )
