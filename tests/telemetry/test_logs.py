"""Logs are one JSON object a line where nobody watches."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from proxy.telemetry.logs import configure_logs


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    """Return where logs go, and put everything back afterwards."""
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    yield io.StringIO()
    root.handlers, root.level = handlers, level
    structlog.reset_defaults()


def test_lines_are_json_with_level_and_time(stream: io.StringIO) -> None:
    """Our own events and those of libraries have one form; values that are no JSON are written as text."""
    configure_logs(stream)
    structlog.get_logger().info("bypassed", reason="body", odd=b"x")
    logging.getLogger("uvicorn.error").warning("listening on %s", "here")
    first, second = map(json.loads, stream.getvalue().splitlines())
    assert (first["event"], first["reason"], first["level"]) == ("bypassed", "body", "info")
    assert (second["event"], second["level"]) == ("listening on here", "warning")
    assert first["timestamp"].endswith("Z")


def test_the_level_is_a_setting(stream: io.StringIO) -> None:
    """What is below the level is not written; an unknown name means info."""
    configure_logs(stream, "warning")
    structlog.get_logger().info("quiet")
    assert stream.getvalue() == ""
    configure_logs(stream, "nonsense")
    structlog.get_logger().info("heard")
    assert "heard" in stream.getvalue()


def test_exceptions_are_part_of_their_line(stream: io.StringIO) -> None:
    """A traceback does not spread over lines that nobody can parse."""
    configure_logs(stream)
    try:
        int("boom")
    except ValueError:
        structlog.get_logger().exception("failed")
    (line,) = stream.getvalue().splitlines()
    assert "ValueError: invalid literal" in json.loads(line)["exception"]


def test_a_terminal_gets_columns(monkeypatch: pytest.MonkeyPatch, stream: io.StringIO) -> None:
    """Where a person watches, lines are for reading; NO_COLOR is honoured."""
    monkeypatch.setattr(stream, "isatty", lambda: True)
    monkeypatch.setenv("NO_COLOR", "1")
    configure_logs(stream)
    structlog.get_logger().info("started", port=4410)
    assert "started" in stream.getvalue()
    assert "\x1b" not in stream.getvalue()
