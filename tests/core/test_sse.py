"""The splitter keeps every byte, in any split and with any line ends."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.sse import BOM, Splitter, is_harmless_rest, read_frame, write_frame

# Bytes in which line ends, fields and marks are frequent.
streams = st.lists(
    st.sampled_from(
        [b"\n", b"\r", b"\r\n", b"\n\n", b"data: {}", b"data:x", b": c", b"event: e", b"\xef", b"\xbb", BOM, b"a"]
    )
).map(b"".join)


def split(parts: list[bytes]) -> tuple[list[bytes], bytes]:
    """Return the frames of a stream that comes in parts, and the rest."""
    splitter = Splitter()
    frames = [frame for part in parts for frame in splitter.feed(part)]
    return frames, splitter.close()


def without_lone_feeds(frames: list[bytes]) -> list[bytes]:
    """Return the frames with a line feed that came late joined to its frame."""
    joined: list[bytes] = []
    for frame in frames:
        if frame == b"\n" and joined:
            joined[-1] += frame
        else:
            joined.append(frame)
    return joined


@given(streams | st.binary(), st.data())
def test_no_byte_is_lost_or_moved(data: bytes, draw: st.DataObject) -> None:
    """Frames and rest, joined, are the stream, wherever it was cut."""
    cuts = sorted(draw.draw(st.lists(st.integers(0, len(data)))))
    parts = [data[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(data)], strict=True)]
    frames, rest = split(parts)
    assert b"".join(frames) + rest == data


@given(streams)
def test_frames_do_not_depend_on_the_split(data: bytes) -> None:
    """One byte at a time gives the frames of the whole, but for a line feed that came after its frame had left."""
    frames, rest = split([data])
    singly, same_rest = split([data[i : i + 1] for i in range(len(data))])
    assert without_lone_feeds(singly) == without_lone_feeds(frames)
    assert b"".join(singly) + same_rest == b"".join(frames) + rest


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_every_kind_of_line_end_ends_an_event(end: bytes) -> None:
    """LF, CRLF and CR are line ends, two of them a blank line."""
    first, second = b"data: 1" + end + end, b": c" + end + b"data: 2" + end + end
    assert split([first + second]) == ([first, second], b"")


def test_an_event_of_a_cr_stream_leaves_at_once() -> None:
    """The splitter does not wait for a line feed that may never come; one that comes belongs to the frame before."""
    splitter = Splitter()
    assert splitter.feed(b"data: 1\r\n\r") == [b"data: 1\r\n\r"]
    assert not splitter.at_boundary()
    assert splitter.feed(b"\ndata: 2\n\n") == [b"\n", b"data: 2\n\n"]
    assert splitter.at_boundary()


@pytest.mark.parametrize("cut", [0, 1, 2, 3])
def test_a_byte_order_mark_is_no_part_of_the_first_event(cut: int) -> None:
    """It is a frame of its own, however it was cut."""
    data = BOM + b"data: 1\n\n"
    assert split([data[:cut], data[cut:]]) == ([BOM, b"data: 1\n\n"], b"")


def test_half_a_byte_order_mark_is_kept() -> None:
    """What could have become one is given back as the rest."""
    assert split([b"\xef\xbb"]) == ([], b"\xef\xbb")


def test_a_mark_after_frames_that_were_not_fed_is_data() -> None:
    """Only the very start of a stream may hold one."""
    splitter = Splitter()
    splitter.skip()
    assert splitter.feed(BOM + b"\n\n") == [BOM + b"\n\n"]


@pytest.mark.parametrize(
    ("frame", "name", "data"),
    [
        (b'data: {"a":1}\n\n', b"", b'{"a":1}'),
        (b"data:x\r\n\r\n", b"", b"x"),
        (b"data:  x\n\n", b"", b" x"),
        (b"data: {\ndata: }\n\n", b"", b"{\n}"),
        (b"event: error\nid: 7\nretry: 10\ndata: x\n\n", b"error", b"x"),
        (b"data\n\n", b"", b""),
        (b": data: x\n\n", b"", None),
        (b"\n\n", b"", None),
        (b"\ndata: x", b"", b"x"),
        (b"datas: x\n\n", b"", None),
    ],
)
def test_what_a_frame_says(frame: bytes, name: bytes, data: bytes | None) -> None:
    """Name and data are found in every framing; comments and other fields are no data."""
    assert read_frame(frame) == (name, data)


def test_a_written_frame_is_one_line() -> None:
    """Line ends between JSON tokens become blanks; JSON strings hold none."""
    assert write_frame(b'{\r\n"a":\n1}') == b'data: { "a": 1}\n\n'
    assert read_frame(write_frame(b'{"a":1}')).data == b'{"a":1}'


@pytest.mark.parametrize(
    ("rest", "harmless"),
    [(b"", True), (b"\r\n", True), (b": ping", True), (b": a\n: b\n", True), (b"dat", False), (b": a\ndata: {", False)],
)
def test_which_rest_is_half_an_event(rest: bytes, harmless: bool) -> None:
    """Comments and blanks may stand at the end of a stream; the beginning of anything else is half of it."""
    assert is_harmless_rest(rest) is harmless


def test_a_long_event_in_small_reads_is_not_scanned_again_and_again() -> None:
    """A frame of a megabyte in reads of a hundred bytes comes out whole."""
    frame = b"data: " + b"x" * 1_000_000 + b"\r\n\r\n"
    frames, rest = split([frame[i : i + 100] for i in range(0, len(frame), 100)])
    assert (frames, rest) == ([frame], b"")
