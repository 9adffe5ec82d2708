"""The JSON of the control interface, field by field."""

from __future__ import annotations

import re

import msgspec
import pytest

from proxy.routes import shapes
from proxy.store.base import Original, Page, Session

SESSION = Session(
    id="ses_1",
    tenant="t_1",
    key="a key",
    created=1_700_000_000.25,
    last_used=1_700_000_001.0,
    model="gpt-4o",
    format="chat",
    preset="balanced",
    calls=1,
    messages=2,
    received_tokens=300,
    sent_tokens=40,
    edits=5,
    compactions=6,
    reads=7,
    originals=8,
    stored_bytes=9,
)
ORIGINAL = Original(
    ref="off_1",
    ledger="ses_1",
    kind="result",
    tool="read_file",
    tokens=10,
    lines=11,
    size_bytes=12,
    created=1_700_000_000.0,
    data=b"a secret text",
)


def test_a_session_has_the_agreed_fields() -> None:
    """The fields, their order and their values are those that clients rely on."""
    assert msgspec.json.encode(shapes.show_session(SESSION)).decode() == (
        '{"id":"ses_1","tenant":"t_1","key":"a key","created":"2023-11-14T22:13:20.250000Z",'
        '"last_used":"2023-11-14T22:13:21Z","model":"gpt-4o","format":"chat","preset":"balanced","calls":1,'
        '"messages":2,"tokens":{"received":300,"sent":40},"edits":5,"compactions":6,"reads":7,"originals":8,'
        '"stored_bytes":9}'
    )


def test_an_original_has_the_agreed_fields_and_no_text() -> None:
    """What is shown about an original never holds its bytes, whatever the store gave."""
    assert msgspec.json.encode(shapes.show_original(ORIGINAL)).decode() == (
        '{"ref":"off_1","session":"ses_1","kind":"result","tool":"read_file","tokens":10,"lines":11,"bytes":12,'
        '"created":"2023-11-14T22:13:20Z"}'
    )


def test_what_there_is_not_is_null() -> None:
    """No key, no tool and no session are null, not an empty text."""
    nameless = msgspec.structs.replace(SESSION, key=None)
    loose = msgspec.structs.replace(ORIGINAL, ledger="", tool=None)
    assert msgspec.to_builtins(shapes.show_session(nameless))["key"] is None
    shown = msgspec.to_builtins(shapes.show_original(loose))
    assert (shown["session"], shown["tool"]) == (None, None)


@pytest.mark.parametrize("seconds", [0.0, 0.0004, 1.9999, 1_700_000_000.123456, 4_102_444_800.0])
def test_times_are_rfc_3339_in_utc(seconds: float) -> None:
    """Every time ends in Z and is exact to the millisecond."""
    shown = shapes.show_session(msgspec.structs.replace(SESSION, created=seconds))
    text = msgspec.to_builtins(shown)["created"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", text)
    assert abs(shown.created.timestamp() - seconds) <= 0.001


def test_lists_are_data_and_next() -> None:
    """A list holds its items and the cursor of the rest, which is null at the end."""
    sessions = msgspec.to_builtins(shapes.list_sessions(Page([SESSION, SESSION], "c")))
    originals = msgspec.to_builtins(shapes.list_originals(Page([ORIGINAL])))
    assert (list(sessions), [s["id"] for s in sessions["data"]], sessions["next"]) == (
        ["data", "next"],
        ["ses_1", "ses_1"],
        "c",
    )
    assert (list(originals), [o["ref"] for o in originals["data"]], originals["next"]) == (
        ["data", "next"],
        ["off_1"],
        None,
    )
