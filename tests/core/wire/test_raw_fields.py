"""Objects as raw values."""

from __future__ import annotations

import json

from proxy.core.wire.raw_fields import encode_lenient, encode_text, join_fields, split_fields


def test_fields_are_split_and_joined() -> None:
    """Splitting keeps raw values; lone surrogates take a slower way to the same end; what is no object has none."""
    assert join_fields(split_fields(b'{"a": 1.0,"b" :"x"}')) == b'{"a":1.0,"b":"x"}'
    assert json.loads(join_fields(split_fields(b'{"a":"\\ud800"}'))) == {"a": "\ud800"}
    assert split_fields(b'["\\ud800"]') == {}


def test_texts_that_have_no_utf8_are_escaped() -> None:
    """Lone surrogates survive; everything else is written as it is."""
    assert encode_text("é") == '"é"'.encode()
    assert json.loads(encode_text("\ud800")) == "\ud800"
    assert json.loads(encode_lenient({"a": ["\ud800", 1]})) == {"a": ["\ud800", 1]}
