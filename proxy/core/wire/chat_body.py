"""Whole Chat Completions answers: what they say, and surgical edits of them."""

from __future__ import annotations

from typing import Final

from msgspec import Raw, Struct

from proxy.core.sse import write_frame
from proxy.core.wire.raw import NULL, Fields, is_empty, read_array, read_object, read_text, write

_DONE: Final = b"data: [DONE]\n\n"


class Answer(Struct, frozen=True):
    """A parsed answer; `choice` and `message` are those of choice 0."""

    fields: Fields
    choices: list[Raw]
    position: int  # of choice 0 among the choices
    choice: Fields
    message: Fields
    calls: list[Raw]
    finish: str | None
    usage: Raw | None


def read_answer(data: bytes) -> Answer | None:
    """Return what an answer says; None for an error, an answer without a message, and what is no JSON object."""
    fields = read_object(data)
    if fields is None or not is_empty(fields.get("error")):
        return None
    choices = read_array(fields.get("choices", NULL)) or []
    for position, raw in enumerate(choices):
        choice = read_object(raw) or {}
        message = read_object(choice.get("message", NULL))
        if message is not None and is_empty(choice.get("index")):
            return Answer(
                fields=fields,
                choices=choices,
                position=position,
                choice=choice,
                message=message,
                calls=read_array(message.get("tool_calls", NULL)) or [],
                finish=read_text(choice.get("finish_reason")),
                usage=fields.get("usage"),
            )
    return None


def read_usage(data: bytes) -> Raw | None:
    """Return the usage that a body reports, whatever else it says."""
    usage = (read_object(data) or {}).get("usage")
    return None if usage == NULL else usage


def read_error(data: bytes) -> Raw | None:
    """Return the error object of an error body, in any of the shapes that providers use; None when there is none."""
    listed = read_array(data)
    fields = read_object(listed[0] if listed else data) or {}
    error = fields.get("error")
    if error is not None and read_object(error) is not None:
        return error
    return write(fields) if error is None and "message" in fields else None


def write_error(code: str, message: str) -> bytes:
    """Return an error of the gateway's own."""
    return bytes(write({"error": {"message": message, "type": "ullage_error", "param": None, "code": code}}))


def write_answer(answer: Answer, message: Fields, *, finish: str | None, usage: Raw | None) -> bytes:
    """Return the answer with another message, usage and (if given) finish; everything else stays."""
    choice = {**answer.choice, "message": write(message)}
    if finish is not None:
        choice["finish_reason"] = write(finish)
    choices = list(answer.choices)
    choices[answer.position] = write(choice)
    fields = {**answer.fields, "choices": write(choices)}
    if usage is not None and "usage" in fields:
        fields["usage"] = usage
    return bytes(write(fields))


def write_stream(answer: Answer) -> bytes:
    """Return the answer as an event stream, for an upstream that stops streaming in a later round."""
    calls = [read_object(call) or {} for call in answer.calls]
    delta = dict(answer.message)
    if calls:
        delta["tool_calls"] = write([{"index": index, **call} for index, call in enumerate(calls)])
    choice = {key: value for key, value in answer.choice.items() if key != "message"}
    choice["delta"] = write(delta)
    fields = {key: value for key, value in answer.fields.items() if key != "usage"}
    fields["object"] = write("chat.completion.chunk")
    frames = [write_frame(bytes(write({**fields, "choices": [choice]})))]
    if answer.usage is not None and answer.usage != NULL:
        frames.append(write_frame(bytes(write({**fields, "choices": [], "usage": answer.usage}))))
    return b"".join(frames) + _DONE
