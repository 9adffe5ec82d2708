"""The request body as bytes: where its messages and tools are, and how to change them without touching the rest.

Only the top level and the lists `messages` and `tools` are looked at. Everything else stays a slice of the client's
bytes, so unknown fields, number spellings, key order and white space survive every rewrite.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
from msgspec import Raw

_FIELDS = msgspec.json.Decoder(dict[str, Raw])
_ELEMENTS = msgspec.json.Decoder(list[Raw])
_KEY = re.compile(rb'\s*("(?:[^"\\]|\\.)*")\s*:\s*', re.DOTALL)
_SEPARATOR = re.compile(rb"\s*[,\]}]\s*")
_BLANK = re.compile(rb"\s*")
_LONGEST_EMPTY = 64  # bytes of an empty list with white space in it
_LENIENT = json.JSONDecoder(strict=False)


class NotAnEnvelope(ValueError):
    """The body is no JSON object with a list of messages that can be taken apart."""


class Span(NamedTuple):
    """A half-open range of bytes in the body."""

    start: int
    stop: int


class Envelope(NamedTuple):
    """A request body taken apart: `fields` are the raw values of the top level, in order."""

    body: bytes
    fields: dict[str, bytes | Raw]
    spans: dict[str, Span]

    def value(self, name: str) -> object:
        """Return the decoded value of a top-level field, None when it is absent or cannot be decoded."""
        raw = self.fields.get(name)
        return None if raw is None else decode(raw)

    def is_set(self, name: str) -> bool:
        """Say whether a top-level field is there and not null."""
        span = self.spans.get(name)
        return span is not None and self.body[span.start : span.start + 4] != b"null"


def open_envelope(body: bytes) -> Envelope:
    """Take a request body apart; raise NotAnEnvelope when it has no list of messages."""
    fields = _split_object(body)
    if "messages" not in fields:
        raise NotAnEnvelope("the body has no messages")
    spans = _field_spans(body, fields)
    if body[spans["messages"].start : spans["messages"].start + 1] != b"[":
        raise NotAnEnvelope("messages is not a list")
    return Envelope(body, fields, spans)


def decode(raw: bytes | Raw) -> object:
    """Decode a JSON value, lone surrogates included; None when that is impossible."""
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        pass
    try:
        return json.loads(bytes(raw).decode("utf-8", "surrogatepass"), strict=False)
    except (ValueError, RecursionError):
        return None


def split_list(raw: bytes | Raw) -> list[bytes]:
    """Return the raw elements of a JSON list."""
    try:
        return [bytes(x) for x in _ELEMENTS.decode(raw)]
    except msgspec.ValidationError as error:
        raise NotAnEnvelope("messages or tools is not a list") from error
    except msgspec.DecodeError:
        return _split_slowly(bytes(raw), "[")[1]
    except RecursionError as error:
        raise NotAnEnvelope("the body is nested too deeply") from error


def _split_object(body: bytes) -> dict[str, bytes | Raw]:
    try:
        return dict(_FIELDS.decode(body))
    except msgspec.ValidationError as error:
        raise NotAnEnvelope("the body is not a JSON object") from error
    except msgspec.DecodeError:
        keys, values = _split_slowly(body, "{")
        return dict(zip(keys, values, strict=True))
    except RecursionError as error:
        raise NotAnEnvelope("the body is nested too deeply") from error


def _split_slowly(raw: bytes, opening: str) -> tuple[list[str], list[bytes]]:
    """Split with the lenient parser of the standard library, which takes lone surrogates (msgspec does not)."""
    try:
        text = raw.decode("utf-8", "surrogatepass")
        return _split_text(text, opening)
    except (ValueError, IndexError, RecursionError) as error:
        raise NotAnEnvelope("the body is not JSON") from error


def _split_text(text: str, opening: str) -> tuple[list[str], list[bytes]]:
    at = _skip(text, 0)
    closing = "}" if opening == "{" else "]"
    if text[at] != opening:
        raise ValueError(f"expected {opening}")
    keys: list[str] = []
    values: list[bytes] = []
    at = _skip(text, at + 1)
    while text[at] != closing:
        if opening == "{":
            key, at = _LENIENT.raw_decode(text, at)
            keys.append(str(key))
            at = _expect(text, _skip(text, at), ":")
        _, end = _LENIENT.raw_decode(text, at)
        values.append(text[at:end].encode("utf-8", "surrogatepass"))
        at = _skip(text, end)
        if text[at] != closing:
            at = _expect(text, at, ",")
    if text[at + 1 :].strip(" \t\r\n"):
        raise ValueError("trailing text")
    return keys, values


def _skip(text: str, at: int) -> int:
    while text[at] in " \t\r\n":
        at += 1
    return at


def _expect(text: str, at: int, character: str) -> int:
    if text[at] != character:
        raise ValueError(f"expected {character}")
    return _skip(text, at + 1)


def _field_spans(body: bytes, fields: dict[str, bytes | Raw]) -> dict[str, Span]:
    """Walk the top level by the lengths of its values; a repeated key makes the walk end early."""
    spans: dict[str, Span] = {}
    at = body.index(b"{") + 1
    end = b""
    for name, raw in fields.items():
        key = _KEY.match(body, at)
        if key is None or decode(key[1]) != name:
            raise NotAnEnvelope("a key is repeated at the top level of the body")
        spans[name] = Span(key.end(), key.end() + memoryview(raw).nbytes)
        separator = _SEPARATOR.match(body, spans[name].stop)
        if separator is None:
            raise NotAnEnvelope("the top level of the body cannot be walked")
        at, end = separator.end(), separator[0]
    if b"}" not in end:
        raise NotAnEnvelope("a key is repeated at the top level of the body")
    return spans


def locate(body: bytes, start: int, items: Sequence[bytes]) -> list[Span]:
    """Return where these list elements lie, the first of them behind white space from `start` on."""
    spans: list[Span] = []
    at = start
    for item in items:
        blank = _BLANK.match(body, at)
        begin = blank.end() if blank else at
        spans.append(Span(begin, begin + len(item)))
        separator = _SEPARATOR.match(body, begin + len(item))
        at = separator.end() if separator else begin + len(item)
    return spans


def _is_empty(envelope: Envelope, span: Span) -> bool:
    return span.stop - span.start < _LONGEST_EMPTY and not envelope.body[span.start + 1 : span.stop - 1].strip()


class Patch:
    """Collects changes to a body and applies them in one join; without changes the body itself comes back."""

    def __init__(self, envelope: Envelope) -> None:
        self.envelope = envelope
        self._changes: list[tuple[int, int, bytes]] = []

    def replace(self, span: Span, data: bytes) -> None:
        """Put `data` in the place of these bytes."""
        self._changes.append((span.start, span.stop, data))

    def set_field(self, name: str, raw: bytes) -> None:
        """Set a top-level field, replacing its value or adding it at the end of the body."""
        span = self.envelope.spans.get(name)
        if span is not None:
            self.replace(span, raw)
            return
        last = max(s.stop for s in self.envelope.spans.values())
        self.replace(Span(last, last), b',"' + name.encode() + b'":' + raw)

    def append_element(self, name: str, raw: bytes) -> None:
        """Append an element to the list `name`, which is made when it is absent, null or empty."""
        span = self.envelope.spans.get(name)
        if span is None or self.envelope.body[span.start : span.start + 1] != b"[" or _is_empty(self.envelope, span):
            self.set_field(name, b"[" + raw + b"]")
            return
        end = span.stop - 1
        self.replace(Span(end, end), b"," + raw)

    def apply(self) -> bytes:
        """Return the changed body."""
        if not self._changes:
            return self.envelope.body
        pieces: list[bytes] = []
        at = 0
        for start, stop, data in sorted(self._changes, key=lambda change: change[:2]):
            pieces += (self.envelope.body[at:start], data)
            at = stop
        pieces.append(self.envelope.body[at:])
        return b"".join(pieces)
