"""Logs: aligned and coloured on a terminal, JSON lines otherwise; on stderr, never with content or keys."""

from __future__ import annotations

import logging
import os
import sys
from typing import Any, TextIO

import msgspec
import structlog

_LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}


def configure_logs(stream: TextIO | None = None, level: str | None = None) -> None:
    """Send all logs, those of libraries too, to one stream in one form."""
    stream = stream or sys.stderr
    name = (level or os.environ.get("LOG_LEVEL") or "info").lower()
    threshold = _LEVELS.get(name, logging.INFO)
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.make_filtering_bound_logger(threshold),
        cache_logger_on_first_use=True,
    )
    renderer = _console() if stream.isatty() else structlog.processors.JSONRenderer(_dump)
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared,
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(formatter)
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(threshold)


def _console() -> structlog.dev.ConsoleRenderer:
    return structlog.dev.ConsoleRenderer(colors="NO_COLOR" not in os.environ)


def _dump(event: dict[str, Any], **_: object) -> str:
    return msgspec.json.encode(event, enc_hook=str).decode()
