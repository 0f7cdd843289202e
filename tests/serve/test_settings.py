"""ServeSettings: its defaults work, and what cannot work is named."""

from pathlib import Path

import pytest

from pelton.core.errors import SettingError
from pelton.serve.settings import ServeSettings


def test_defaults() -> None:
    settings = ServeSettings()
    assert (settings.host, settings.port, settings.uds) == ("127.0.0.1", 8000, None)
    assert settings.shutdown_timeout == 30 and not settings.strict and not settings.api_keys


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("host", " "),
        ("port", -1),
        ("port", 65536),
        ("uds", ""),
        ("root_path", "v"),
        ("root_path", "/v/"),
        ("served_model_names", ("a", " ")),
        ("allowed_origins", ("",)),
        ("sse_keep_alive_interval", -1.0),
        ("sse_keep_alive_interval", float("nan")),
        ("shutdown_timeout", float("inf")),
        ("request_timeout", -1.0),
        ("watchdog_timeout", 0.0),
        ("log_level", "loud"),
        ("max_body_bytes", 0),
        ("max_head_bytes", 1000),
        ("client_timeout", -1.0),
        ("ssl_keyfile", "/no/such/file"),
    ],
)
def test_what_cannot_work_is_named(name: str, value: object) -> None:
    with pytest.raises(SettingError) as caught:
        ServeSettings(**{name: value})  # type: ignore[arg-type]
    assert name.removesuffix("s") in caught.value.cause and caught.value.remedy


@pytest.mark.parametrize("key", ["", " ", "two\nlines", "schlüssel"])
def test_a_bad_key_is_not_told(key: str) -> None:
    with pytest.raises(SettingError) as caught:
        ServeSettings(api_keys=("good", key))
    assert "api_key" in str(caught.value) and (not key.strip() or key not in str(caught.value))


def test_keys_are_not_shown() -> None:
    assert "secret" not in repr(ServeSettings(api_keys=("secret",)))


def test_ssl_needs_both_files(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.touch()
    with pytest.raises(SettingError, match="belong together"):
        ServeSettings(ssl_keyfile=str(file))
    ServeSettings(ssl_keyfile=str(file), ssl_certfile=str(file))
