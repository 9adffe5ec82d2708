"""What leaves for the client: frames as they came, frames held back, and edited chunks of a spliced turn."""

from __future__ import annotations

from typing import Final, NamedTuple

from msgspec import Raw

from proxy.core.calls import Owner, Route, restored_routes
from proxy.core.rounds import Round
from proxy.core.signals import InterceptOptions
from proxy.core.sse import Splitter, read_frame, write_frame
from proxy.core.wire.chat_stream import Chunk, Splice, read_chunk

_DONE: Final = b"data: [DONE]\n\n"
_KEPT_BYTES: Final = 4 << 20  # frames kept unread; longer answers are read as they go


class Piece(NamedTuple):
    """A frame with what was read in it."""

    frame: bytes
    chunk: Chunk | None = None
    routes: tuple[Route, ...] = ()


class Outlet:
    """Collects the bytes that go to the client next; `round` is the upstream round that is running."""

    def __init__(self, options: InterceptOptions, first: Round) -> None:
        self.round = first
        self._options = options
        self._splice = Splice()
        self._held: list[Piece] = []
        self._is_spliced = False
        self._out: list[bytes] = []

    def take(self) -> bytes:
        """Return what has been collected, and start anew."""
        data = self._out[0] if len(self._out) == 1 else b"".join(self._out)
        self._out.clear()
        return data

    # -- a turn that passes

    def keep(self, frames: bytes) -> None:
        """Keep whole frames that leave as they came, to be read if a call of ours shows up."""
        if not self._options.relays_only:
            self.round.kept.append(frames)
            self.round.kept_bytes += len(frames)
            if self.round.kept_bytes > _KEPT_BYTES:
                self._read_kept()

    def let(self, piece: Piece) -> None:
        """Let a frame leave as it came, unless it is usage that the gateway asked for and the client did not."""
        if self._is_unasked(piece):
            return
        if piece.chunk is not None:
            self._splice.number(piece.routes)
            self.keep(piece.frame)
        self._out.append(piece.frame)

    def let_plain(self, frame: bytes) -> None:
        """Let a frame of plain text leave."""
        self.keep(frame)
        self._out.append(frame)

    def has_held(self) -> bool:
        """Say whether frames are held back."""
        return bool(self._held)

    def hold(self, piece: Piece) -> None:
        """Hold a frame back."""
        self._held.append(piece)

    def release(self) -> None:
        """Let the frames leave that were held back."""
        held, self._held = self._held, []
        for piece in held:
            self.let(piece)

    def drop_held(self) -> None:
        """Let the frames leave that were held back, but for calls that may be ours, and from a copied stub on none."""
        if self._is_spliced:
            if not self.round.has_copies():
                self._flush()
            return
        held, self._held = self._held, []
        for piece in held:
            if all(route.call.owner is Owner.THEIRS for route in piece.routes):
                self.let(piece)
            elif piece.chunk is not None:
                self._send(self._splice.edit(piece.chunk, piece.routes))

    # -- a turn that is spliced

    def splice_in(self, piece: Piece) -> None:
        """Go over to editing: read what has left, then edit what was held back and the frame at hand."""
        self._read_kept()
        self._is_spliced = True
        held, self._held = self._held, []
        for held_piece in held:
            self.edit(held_piece)
        self.edit(piece)

    def edit(self, piece: Piece) -> None:
        """Send what the client may see of a chunk, or hold it back with all that follows a copied stub."""
        self._held.append(piece)
        if not self.round.must_wait():
            self._flush()

    def overdue(self) -> None:
        """Send what was held back and has no reason to wait any longer."""
        if not self.round.must_wait():
            self._flush()
            self._send(self._splice.overdue(self.round.calls))

    def ending(self, reason: str | None, usage: Raw | None) -> None:
        """Send the finish and what came after it, with the turn's usage last."""
        last = self.round
        if last.ending is not None:
            self._send(self._splice.finish(last.ending, is_bare=last.ending_is_bare, reason=reason))
        self._out += last.tail
        if self._options.wants_usage and usage is not None and last.usage_chunk is not None:
            self._send(self._splice.usage(last.usage_chunk, usage))
        if last.is_done:
            self._out.append(_DONE)

    # -- either

    def event(self, data: bytes, *, after_rest: bool = False) -> None:
        """Send an event of our own, a blank line before it if the last one came without."""
        self._out.append(b"\n\n" + write_frame(data) if after_rest else write_frame(data))

    def forward(self, piece: Piece) -> None:
        """Send a frame with plain line ends: where others are dropped, the rest of a divided one may be among them."""
        if not self._is_unasked(piece):
            self._out.append(piece.frame.rstrip(b"\r\n") + b"\n\n")

    def whole(self, body: bytes) -> None:
        """Send a whole body."""
        self._out.append(body)

    def _flush(self) -> None:
        """Send chunks that were held back, with the arguments that the client gets."""
        held, self._held = self._held, []
        for piece, routes in zip(held, restored_routes([piece.routes for piece in held]), strict=True):
            if piece.chunk is not None:
                self._edit(piece.chunk, routes)

    def _edit(self, chunk: Chunk, routes: tuple[Route, ...]) -> None:
        """Send what the client may see of a chunk; from the finish on, all but text waits for the end."""
        running = self.round
        running.draft.add(chunk.delta)
        data = self._splice.edit(chunk, routes)
        if data is not None and running.ending is not None and not chunk.has_delta:
            running.tail.append(write_frame(data))
        else:
            self._send(data)
        if chunk.finish is not None and running.ending is None:
            running.ending, running.ending_is_bare = chunk, data is not None

    def _is_unasked(self, piece: Piece) -> bool:
        is_usage = piece.chunk is not None and piece.chunk.is_usage_only
        return is_usage and self._options.added_usage and not self._options.wants_usage

    def _send(self, data: bytes | None) -> None:
        if data is not None:
            self._out.append(write_frame(data))

    def _read_kept(self) -> None:
        """Read the frames that left unread."""
        running = self.round
        kept, running.kept, running.kept_bytes = b"".join(running.kept), [], 0
        for frame in Splitter().feed(kept):
            data = read_frame(frame).data
            chunk = read_chunk(data) if data else None
            if chunk is not None:
                self._splice.passed(chunk)
                running.draft.add(chunk.delta)
        running.route(())
