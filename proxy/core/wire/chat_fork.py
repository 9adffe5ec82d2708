"""A Chat Completions request for a summary, forked on a live one: the same prefix with one more question.

A provider reads from its cache what it has seen a moment ago, so a summary of a hundred thousand tokens costs a tenth
of what their transcript would. All that stands in front of the question must stay as it was: the model, the tools, the
messages. Fields about the form of the client's answer go, since they are about another answer.
"""

from __future__ import annotations

from typing import Final

from proxy.core.envelope import Envelope, decode, split_list
from proxy.core.wire.chat_tools import ChatTools
from proxy.core.wire.raw_fields import join_fields, split_fields

LEAST_OUTPUT_TOKENS: Final = 4_000
"""Room for a record, and for thoughts before it; a smaller limit of the client's is raised to this."""

# These change what the model sees or what the question costs; a plain transcript does without them.
_OBSTACLES: Final = ("functions", "function_call", "audio", "prediction", "web_search_options")
_OF_THE_ANSWER: Final = frozenset(
    {"stop", "logprobs", "top_logprobs", "n", "store", "metadata", "parallel_tool_calls", "response_format"}
)
_LIMITS: Final = ("max_completion_tokens", "max_tokens", "max_output_tokens")


def fork(envelope: Envelope, question: str) -> tuple[bytes, ...]:
    """Return the body of the summary request; none where the request has fields that forbid it.

    A second body has the question in the user's last message, for templates that refuse two of them in a row.
    """
    if any(envelope.is_set(name) for name in _OBSTACLES) or not _is_text(envelope):
        return ()
    fields = {name: bytes(raw) for name, raw in envelope.fields.items() if name not in _OF_THE_ANSWER}
    fields |= {"stream": b"true"} | _limits(envelope) | _usage(envelope) | _choice(envelope)
    asked = _with_question(split_list(envelope.fields["messages"]), question)
    return tuple(join_fields({**fields, "messages": b"[" + b",".join(messages) + b"]"}) for messages in asked)


def _is_text(envelope: Envelope) -> bool:
    form, modalities = envelope.value("response_format"), envelope.value("modalities")
    is_plain = form is None or (isinstance(form, dict) and form.get("type") == "text")
    return is_plain and modalities in (None, ["text"])


def _with_question(messages: list[bytes], question: str) -> list[list[bytes]]:
    tools, last = ChatTools(), messages[-1]
    apart = [*messages, tools.merge(None, question)]
    if decode(split_fields(last).get("role", b"null")) != "user":
        return [apart]
    return [apart, [*messages[:-1], tools.merge(last, question)]]


def _limits(envelope: Envelope) -> dict[str, bytes]:
    limits = {name: envelope.value(name) for name in _LIMITS if envelope.is_set(name)}
    return {
        name: b"%d" % max(limit, LEAST_OUTPUT_TOKENS)
        for name, limit in limits.items()
        if isinstance(limit, int) and not isinstance(limit, bool)
    }


def _usage(envelope: Envelope) -> dict[str, bytes]:
    """Ask for usage as the client does; upstreams that do not know the field refuse it."""
    return {"stream_options": b'{"include_usage":true}'} if envelope.is_set("stream_options") else {}


def _choice(envelope: Envelope) -> dict[str, bytes]:
    """Forbid calls, except for models whose cached prefix depends on that."""
    model = envelope.value("model")
    if not envelope.is_set("tools") or (isinstance(model, str) and "claude" in model.casefold()):
        return {}
    return {"tool_choice": b'"none"'}
