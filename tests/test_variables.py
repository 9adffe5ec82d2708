"""Which environment variables are settings, and what is said about others."""

from __future__ import annotations

import pytest

from proxy.variables import settings_in, unknown_in


def test_short_and_long_names() -> None:
    """Both lead to keys; a blank variable says nothing."""
    environ = {"ULLAGE_PORT": "1", "ULLAGE_UPSTREAM__TIMEOUT__READ": "2", "ULLAGE_HOST": " ", "PORT": "3"}
    assert dict(settings_in(environ)) == {
        "ULLAGE_PORT": ("server", "port"),
        "ULLAGE_UPSTREAM__TIMEOUT__READ": ("upstream", "timeout", "read"),
    }


@pytest.mark.parametrize(
    ("name", "mend"),
    [
        ("ULLAGE_PROT", "did you mean ULLAGE_PORT?"),
        ("ULLAGE_SERVER_PORT", "did you mean ULLAGE_SERVER__PORT?"),
        ("ULLAGE_SERVR__DRAIN_SECONDS", "did you mean ULLAGE_SERVER__DRAIN_SECONDS?"),
        ("ULLAGE_UPSTREAM_TIMEOUT_READ", "did you mean ULLAGE_UPSTREAM__TIMEOUT__READ?"),
        ("ULLAGE_QQQQQQQQQQQQQQQQQQQQQQQQ", "`ullage serve --help`"),
    ],
)
def test_a_name_that_is_no_setting(name: str, mend: str) -> None:
    """The nearest name is offered."""
    (sentence,) = unknown_in({name: "x"}, ())
    assert sentence.startswith(f"{name}: ")
    assert mend in sentence


def test_what_is_known_is_not_doubted() -> None:
    """Settings, the name of the file, what a file refers to, and what is blank."""
    environ = {"ULLAGE_PORT": "1", "ULLAGE_CONFIG": "f", "ULLAGE_STORE_KEY": "k", "ULLAGE_PROT": "", "OTHER": "x"}
    assert list(unknown_in(environ, {"ULLAGE_STORE_KEY"})) == []
