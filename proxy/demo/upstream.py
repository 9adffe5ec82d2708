"""Serves a scripted model as an OpenAI-compatible provider on a loopback port."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Protocol, Self

import msgspec

from proxy.demo.model import Call, Reply

_PIECE_CHARS = 60  # of text in one event
_USAGE = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}


class Model(Protocol):
    """What answers."""

    def answer(self, body: bytes) -> Reply:
        """Answer one request; called from a thread for each connection."""
        ...


class ScriptedUpstream:
    """The server, in a thread of its own while the context is open."""

    def __init__(self, model: Model) -> None:
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Handler, model))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, name="upstream", daemon=True)

    @property
    def url(self) -> str:
        """The OpenAI base URL, with /v1."""
        return f"http://127.0.0.1:{self._server.server_port}/v1"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def __init__(self, model: Model, *args: Any) -> None:  # noqa: ANN401  # the server's own arguments
        self._model = model
        super().__init__(*args)

    def do_POST(self) -> None:
        """Answer a request."""
        body = self.rfile.read(int(self.headers["content-length"]))
        request: dict[str, Any] = msgspec.json.decode(body)
        reply = self._model.answer(body)
        if request.get("stream"):
            self._stream(reply, request)
        else:
            self._send("application/json", msgspec.json.encode(completion(reply, request["model"])))

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the server's own name for it
        """Say nothing."""

    def _send(self, kind: str, data: bytes) -> None:
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _stream(self, reply: Reply, request: dict[str, Any]) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for chunk in chunks(reply, request["model"]):
            self._event(msgspec.json.encode(chunk))
        self._event(b"[DONE]")
        self.wfile.write(b"0\r\n\r\n")

    def _event(self, data: bytes) -> None:
        event = b"data: %b\n\n" % data
        self.wfile.write(b"%x\r\n%b\r\n" % (len(event), event))


def completion(reply: Reply, model: str) -> dict[str, Any]:
    """Return a reply as one object."""
    message: dict[str, Any] = {"role": "assistant", "content": reply.text or None}
    if reply.calls:
        message["tool_calls"] = [_call(call) for call in reply.calls]
    choice = {"index": 0, "message": message, "finish_reason": _finish(reply)}
    return _head("chat.completion", model) | {"choices": [choice], "usage": _USAGE}


def chunks(reply: Reply, model: str) -> Iterator[dict[str, Any]]:
    """Yield a reply as the objects of a stream."""
    for delta in _deltas(reply):
        choice = {"index": 0, "delta": delta, "finish_reason": None}
        yield _head("chat.completion.chunk", model) | {"choices": [choice]}
    choice = {"index": 0, "delta": {}, "finish_reason": _finish(reply)}
    yield _head("chat.completion.chunk", model) | {"choices": [choice]}


def _deltas(reply: Reply) -> Iterator[dict[str, Any]]:
    yield {"role": "assistant", "content": ""}
    for at in range(0, len(reply.text), _PIECE_CHARS):
        yield {"content": reply.text[at : at + _PIECE_CHARS]}
    for index, call in enumerate(reply.calls):
        begun = _call(msgspec.structs.replace(call, arguments=""))
        yield {"tool_calls": [{"index": index, **begun}]}
        for at in range(0, len(call.arguments), _PIECE_CHARS):
            piece = {"arguments": call.arguments[at : at + _PIECE_CHARS]}
            yield {"tool_calls": [{"index": index, "function": piece}]}


def _call(call: Call) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _finish(reply: Reply) -> str:
    return "tool_calls" if reply.calls else "stop"


def _head(kind: str, model: str) -> dict[str, Any]:
    return {"id": "chatcmpl-scripted", "object": kind, "created": 1, "model": model}
