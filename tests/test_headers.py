"""The header policy: what stays on its side, what passes, what a changed body loses."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.headers import Headers, as_text, request_headers, response_headers, size_of

HOP_BY_HOP = ["connection", "keep-alive", "proxy-authorization", "te", "trailer", "transfer-encoding", "upgrade"]


def pairs(*names: str) -> Headers:
    """Return fields with these names."""
    return [(name.encode(), b"v") for name in names]


def names(headers: Headers) -> list[str]:
    """Return the names of fields."""
    return [name.decode() for name, _ in headers]


class TestUp:
    """Towards the upstream."""

    def test_what_stays(self) -> None:
        """Fields of the connection, the framing, expectations and ours do not go up."""
        assert request_headers(pairs(*HOP_BY_HOP, "host", "content-length", "expect", "x-ullage-key")) == []

    def test_what_connection_names(self) -> None:
        """A field that Connection names is of the connection; others of a similar name are not."""
        given = [(b"connection", b"close, X-Mine"), (b"x-mine", b"1"), (b"x-mine-too", b"2"), (b"close", b"3")]
        assert request_headers(given) == [(b"x-mine-too", b"2")]

    def test_order_and_duplicates(self) -> None:
        """Everything else passes in its order, as often as it came."""
        given = pairs("b", "authorization", "b", "accept-encoding", "content-encoding", "cookie", "x-forwarded-for")
        assert request_headers(given) == given

    def test_a_changed_body(self) -> None:
        """With another body its old digests, length and coding do not go, and no coding is accepted."""
        given = pairs("content-md5", "digest", "content-digest", "content-encoding", "accept-encoding", "content-type")
        assert request_headers(given, changed=True) == [(b"content-type", b"v"), (b"accept-encoding", b"identity")]

    def test_an_answer_to_be_read(self) -> None:
        """To read an answer here, only the accepted coding is changed."""
        given = pairs("content-md5", "content-encoding", "accept-encoding")
        assert request_headers(given, readable=True) == [*given[:2], (b"accept-encoding", b"identity")]


class TestDown:
    """Towards the client."""

    def test_what_stays(self) -> None:
        """Fields of the upstream's connection do not come down, in whatever case they are written."""
        given = [(b"Connection", b"X-Foo"), (b"X-FOO", b"1"), (b"Keep-Alive", b"t"), (b"Transfer-Encoding", b"chunked")]
        assert response_headers(given, 200) == []

    def test_what_passes(self) -> None:
        """Everything else comes as it was sent: case, order, duplicates, length, date and server."""
        given = pairs("Set-Cookie", "Content-Length", "Date", "Set-Cookie", "Server", "Content-Encoding", "ETag")
        assert response_headers(given, 200) == given

    @pytest.mark.parametrize("status", [204, 304])
    def test_a_length_without_a_body(self, status: int) -> None:
        """Where no body follows, none is declared."""
        assert names(response_headers(pairs("Content-Length", "ETag"), status)) == ["ETag"]

    def test_a_length_beside_chunks(self) -> None:
        """A length beside a transfer coding is void."""
        assert response_headers(pairs("Content-Length", "Transfer-Encoding"), 200) == []

    def test_a_changed_body(self) -> None:
        """What describes the old body goes with it."""
        given = pairs("Content-Length", "ETag", "Content-MD5", "Content-Encoding", "Accept-Ranges", "X-Request-Id")
        assert names(response_headers(given, 200, changed=True)) == ["X-Request-Id"]

    def test_control_characters(self) -> None:
        """Control characters of a value and fields whose name is no token are left out."""
        given = [(b"a", b"x\x00y\r\nz"), (b"b c", b"1"), (b"", b"2"), (b"d", "\tü".encode())]
        assert response_headers(given, 200) == [(b"a", b"xyz"), (b"d", "\tü".encode())]

    @given(st.lists(st.tuples(st.binary(max_size=6), st.binary(max_size=6)), max_size=6), st.sampled_from([200, 304]))
    def test_whatever_comes_can_be_sent(self, headers: Headers, status: int) -> None:
        """No field that passes holds a byte that a server would refuse."""
        for name, value in response_headers(headers, status):
            assert name.isascii()
            assert not set(name) & set(b" \r\n\x00:")
            assert not set(value) & set(b"\r\n\x00\x7f")


@given(st.text())
def test_text_survives(text: str) -> None:
    """What is UTF-8 is encoded to the same bytes again."""
    try:
        raw = text.encode()
    except UnicodeEncodeError:
        return
    assert as_text(raw).encode() == raw


def test_other_bytes_are_readable() -> None:
    """What is no UTF-8 is taken for Latin-1."""
    assert as_text(b"caf\xe9") == "café"


def test_the_size_of_fields() -> None:
    """Names and values count, nothing in between."""
    assert size_of([(b"ab", b"cde"), (b"f", b"")]) == 6
