"""Overflows in the words of every provider, and what only sounds like one."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.overflow import Overflow, is_truncated, recognise, recognise_event, recognise_stream

BAD = "invalid_request_error"
REDUCE = "Please reduce the length of the messages."


def error(message: str, **more: object) -> dict[str, object]:
    """Return the usual body around a message."""
    return {"error": {"message": message, **more}}


# Status, body, window, prompt and answer as told.
OVERFLOWS: dict[str, tuple[int, object, int | None, int | None, int | None]] = {
    "openai": (
        400,
        error(
            "This model's maximum context length is 8192 tokens. However, your messages resulted in 9731 tokens. "
            + REDUCE,
            type=BAD,
            param="messages",
            code="context_length_exceeded",
        ),
        8192,
        9731,
        None,
    ),
    "openai with an answer": (
        400,
        error(
            "This model's maximum context length is 8192 tokens. However, you requested 9731 tokens "
            "(8731 in the messages, 1000 in the completion). " + REDUCE
        ),
        8192,
        8731,
        1000,
    ),
    "openai with functions": (
        400,
        error(
            "This model's maximum context length is 8192 tokens. However, you requested 9731 tokens (8231 in the "
            "messages, 500 in the functions, and 1000 in the completion)."
        ),
        8192,
        8731,
        1000,
    ),
    "openai code alone": (400, error("no", code="context_length_exceeded"), None, None, None),
    "openai responses": (
        400,
        error("Your input exceeds the context window of this model. Please adjust your input and try again."),
        None,
        None,
        None,
    ),
    "openai configured limit": (
        400,
        error("Input tokens exceed the configured limit of 272000 tokens. Your messages resulted in 300000 tokens."),
        272_000,
        300_000,
        None,
    ),
    "azure": (
        400,
        error("too long", type=BAD, code="context_length_exceeded", innererror={"code": "x"}),
        None,
        None,
        None,
    ),
    "anthropic": (
        400,
        {"type": "error", "error": {"type": BAD, "message": "prompt is too long: 213462 tokens > 200000 maximum"}},
        200_000,
        213_462,
        None,
    ),
    "anthropic with an answer": (
        400,
        error("input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000, decrease input length"),
        200_000,
        190_000,
        20_000,
    ),
    "anthropic 413": (
        413,
        {"type": "error", "error": {"type": "request_too_large", "message": "Request exceeds the maximum size"}},
        None,
        None,
        None,
    ),
    "vllm": (
        400,
        error(
            "This model's maximum context length is 8192 tokens. However, you requested 0 output tokens and your "
            "prompt contains at least 8193 input tokens, for a total of at least 8193 tokens. " + REDUCE,
            type="BadRequestError",
            param="input_tokens",
            code=400,
        ),
        8192,
        None,
        0,
    ),
    "vllm old": (
        400,
        {
            "object": "error",
            "message": "This model's maximum context length is 8192 tokens. However, you requested 9731 tokens "
            "(9231 in the messages, 500 in the completion).",
            "type": "BadRequestError",
            "param": None,
            "code": 400,
        },
        8192,
        9231,
        500,
    ),
    "vllm passed": (
        400,
        error(
            "You passed 9001 input tokens and requested 100 output tokens. However, the model's context length is only "
            "8192 tokens, resulting in a maximum input length of 8092 tokens. Please reduce the length of the prompt."
        ),
        8192,
        9001,
        100,
    ),
    "vllm answer too large": (
        400,
        error(
            "'max_tokens' or 'max_completion_tokens' is too large: 40000. This model's maximum context length is 32768 "
            "tokens and your request has 1000 input tokens (40000 > 32768 - 1000)."
        ),
        32_768,
        1000,
        40_000,
    ),
    "sglang": (
        400,
        error("The input (9731 tokens) is longer than the model's context length (8192 tokens).", code=400),
        8192,
        9731,
        None,
    ),
    "sglang with an answer": (
        400,
        error(
            "Requested token count exceeds the model's maximum context length of 8192 tokens. You requested a total of "
            "9731 tokens: 8731 tokens from the input messages and 1000 tokens for the completion."
        ),
        8192,
        8731,
        1000,
    ),
    "llama.cpp": (
        400,
        error(
            "the request exceeds the available context size, try increasing it",
            code=400,
            type="exceed_context_size_error",
            n_prompt_tokens=9731,
            n_ctx=8192,
        ),
        8192,
        9731,
        None,
    ),
    "llama.cpp in words": (
        400,
        error("request (9731 tokens) exceeds the available context size (8192 tokens), try increasing it"),
        8192,
        9731,
        None,
    ),
    "llama.cpp 500": (500, error("Context size has been exceeded.", code=500, type="server_error"), None, None, None),
    "llama.cpp without shift": (500, error("context shift is disabled"), None, None, None),
    "llama.cpp lost the user": (500, error("no user query found in messages", type="api_error"), None, None, None),
    "ollama": (400, {"error": "prompt too long; exceeded max context length by 12 tokens"}, None, None, None),
    "ollama length": (400, error("the input length exceeds the context length"), None, None, None),
    "lm studio": (
        400,
        {
            "error": "Trying to keep the first 5000 tokens when context the overflows. However, the model is loaded "
            "with context length of only 4096 tokens, which is not enough."
        },
        4096,
        None,
        None,
    ),
    "tgi": (
        422,
        {
            "error": "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. "
            "Given: 5000 `inputs` tokens and 20 `max_new_tokens`",
            "error_type": "validation",
        },
        4096,
        5000,
        20,
    ),
    "openrouter": (
        400,
        error(
            "This endpoint's maximum context length is 8192 tokens. However, you requested about 9731 tokens "
            "(9031 of text input, 200 of tool input, 500 in the output).",
            code=400,
            metadata={"provider_name": None},
        ),
        8192,
        9231,
        500,
    ),
    "openrouter passes on": (
        400,
        error(
            "Provider returned error",
            code=400,
            metadata={"raw": json.dumps(error("prompt is too long: 213462 tokens > 200000 maximum"))},
        ),
        200_000,
        213_462,
        None,
    ),
    "gemini": (
        400,
        [
            error(
                "The input token count (9731) exceeds the maximum number of tokens allowed (8192).",
                code=400,
                status="INVALID_ARGUMENT",
            )
        ],
        8192,
        9731,
        None,
    ),
    "mistral": (
        400,
        {
            "object": "error",
            "message": "Prompt contains 40000 tokens and 0 draft tokens, too large for model with 32768 maximum "
            "context length",
            "type": "invalid_request_prompt",
            "code": "3051",
            "raw_status_code": 400,
        },
        32_768,
        40_000,
        None,
    ),
    "groq": (
        400,
        error(
            "Please reduce the length of the messages or completion.", param="messages", code="context_length_exceeded"
        ),
        None,
        None,
        None,
    ),
    "cerebras": (
        400,
        error("Please reduce the length of the messages or completion. Current length is 9731 while limit is 8192"),
        8192,
        9731,
        None,
    ),
    "xai": (
        400,
        {"code": "x", "error": "This model's maximum prompt length is 131072 but the request contains 537812 tokens."},
        131_072,
        537_812,
        None,
    ),
    "deepseek": (
        400,
        error(
            "This model's maximum context length is 131072 tokens. However, you requested 140000 tokens (139000 in the "
            "messages, 1000 in the completion). " + REDUCE,
            type=BAD,
        ),
        131_072,
        139_000,
        1000,
    ),
    "cohere": (
        400,
        {"message": "too many tokens: total number of tokens in the prompt cannot exceed 4081 - received 5000."},
        4081,
        5000,
        None,
    ),
    "bedrock": (400, {"message": "Input is too long for requested model."}, None, None, None),
    "copilot": (
        400,
        error(
            "prompt token count of 130000 exceeds the limit of 128000",
            code="model_max_prompt_tokens_exceeded",
        ),
        128_000,
        130_000,
        None,
    ),
    "github models": (
        413,
        error("Request body too large for gpt-4o model. Max size: 8000 tokens.", code="tokens_limit_reached"),
        8000,
        None,
        None,
    ),
    "moonshot": (400, error("Your request exceeded model token limit: 131072"), 131_072, None, None),
    "minimax": (400, error("invalid params, context window exceeds limit (2013)"), None, None, None),
    "fireworks": (
        400,
        error("The prompt is too long: 140000, model maximum context length: 131071"),
        131_071,
        140_000,
        None,
    ),
    "dashscope": (400, error("Range of input length should be [1, 30720]"), 30_720, None, None),
    "z.ai": (400, error("Prompt exceeds max length", code="1261"), None, None, None),
    "a gateway": (
        400,
        error("request uses 51234 input tokens; limit is 16000", type=BAD),
        16_000,
        51_234,
        None,
    ),
    "input length": (
        400,
        error("Input length 9000 exceeds the maximum allowed input length of 8192 tokens", code="400"),
        8192,
        9000,
        None,
    ),
    "separators": (
        400,
        error(
            "This model's maximum context length is 131,072 tokens. However, your messages resulted in 140,001 tokens."
        ),
        131_072,
        140_001,
        None,
    ),
    "fastapi": (422, {"detail": [{"msg": "prompt is too long: 9731 tokens > 8192 maximum"}]}, 8192, 9731, None),
}


@pytest.mark.parametrize(("status", "body", "window", "prompt", "answer"), OVERFLOWS.values(), ids=OVERFLOWS)
def test_every_dialect_is_recognised(
    status: int, body: object, window: int | None, prompt: int | None, answer: int | None
) -> None:
    """With the numbers that are told, and no others."""
    assert recognise(status, json.dumps(body).encode()) == Overflow(window, prompt, answer)


INSIDE = {name: entry[1] for name, entry in OVERFLOWS.items() if isinstance(entry[1], dict) and "error" in entry[1]}


@pytest.mark.parametrize("body", INSIDE.values(), ids=INSIDE)
def test_it_may_come_inside_a_success(body: object) -> None:
    """As the whole body or as the first event of a stream, whatever precedes it that says nothing."""
    data = json.dumps(body).encode()
    found = recognise(200, data)
    assert found is not None
    assert recognise_event(data) == found
    assert recognise_stream(b": keep-alive\n\nevent: error\r\ndata: " + data + b"\r\n\r\n") == found
    assert recognise_stream(b"data: " + data) == found


def test_responses_tell_it_in_their_own_events() -> None:
    """Both forms of the Responses API."""
    told = {"code": "context_length_exceeded", "message": "Your input exceeds the context window of this model."}
    assert recognise_event(json.dumps({"type": "error", **told}).encode()) == Overflow()
    failed = {"type": "response.failed", "response": {"status": "failed", "error": told}}
    assert recognise_event(json.dumps(failed).encode()) == Overflow()


def test_plain_text_counts_as_a_message() -> None:
    """Some servers know no JSON when they fail."""
    assert recognise(400, b"prompt is too long: 9731 tokens > 8192 maximum") == Overflow(8192, 9731)
    assert recognise(413, b"<html><h1>413 Request Entity Too Large</h1></html>") == Overflow()


TPM = (
    "Request too large for model `m` in organization `o` service tier `on_demand` on tokens per minute (TPM): "
    "Limit 6000, Requested 9731, please reduce your message size and try again."
)
OTHERS: dict[str, tuple[int, object]] = {
    "tpm 413": (413, error(TPM, type="tokens", code="rate_limit_exceeded")),
    "tpm in short": (413, error("Request too large for model m in organization o on tokens per minute (TPM)")),
    "tpm by code": (413, error("Request too large for m", code="rate_limit_exceeded")),
    "tpm 429": (429, error(TPM)),
    "429 with the words": (429, error("maximum context length is 8192 tokens", code="context_length_exceeded")),
    "long context costs extra": (429, error("Usage credits are required for long context requests.")),
    "answer too long": (
        400,
        error(
            "max_tokens is too large: 200000. This model supports at most 16384 completion tokens", param="max_tokens"
        ),
    ),
    "anthropic answer too long": (
        400,
        error("max_tokens: 200000 > 64000, which is the maximum allowed number of output tokens for claude"),
    ),
    "one text too long": (
        400,
        error(
            "Invalid 'messages[1].content': string too long. Expected a string with maximum length 10485760, but got a "
            "string with length 10485761 instead.",
            code="string_above_max_length",
        ),
    ),
    "too many messages": (
        400,
        error(
            "Invalid 'messages': array too long. Expected an array with maximum length 2048",
            code="array_above_max_length",
        ),
    ),
    "a cache key": (400, error("Invalid 'prompt_cache_key': string too long. Expected maximum length 64")),
    "an image": (400, error("The input image exceeds the maximum size of 5242880 bytes")),
    "a filter": (400, error("The response was filtered due to the prompt triggering ...", code="content_filter")),
    "a tool": (400, error("tool call validation failed", code="tool_use_failed", failed_generation="context length")),
    "pairs": (400, error("An assistant message with 'tool_calls' must be followed by tool messages")),
    "a field": (400, error("Unrecognized request argument supplied: stream_options", type=BAD)),
    "an echo": (
        422,
        {"detail": [{"type": "x", "msg": "Field required", "input": "maximum context length is 8192 tokens"}]},
    ),
    "no model": (404, error("The model `m` does not exist", code="model_not_found")),
    "no credential": (401, error("prompt is too long: 9 tokens > 8 maximum")),
    "overloaded": (503, error("maximum context length is 8192 tokens")),
    "crashed": (500, error("Internal server error", type="server_error")),
    "answered": (
        200,
        {"object": "chat.completion", "choices": [{"message": {"content": 'an "error": prompt is too long'}}]},
    ),
    "no error": (200, {"error": None, "choices": [], "message": "prompt is too long"}),
}


@pytest.mark.parametrize(("status", "body"), OTHERS.values(), ids=OTHERS)
def test_nothing_else_is_taken_for_one(status: int, body: object) -> None:
    """Neither rates nor answers nor single fields, nor what a request echoes."""
    assert recognise(status, json.dumps(body).encode()) is None


def test_only_the_beginning_of_a_stream_counts() -> None:
    """What follows text that the client has cannot be asked for again."""
    told = b"data: " + json.dumps(error("prompt is too long: 9731 tokens > 8192 maximum")).encode() + b"\n\n"
    chunk = b'data: {"object":"chat.completion.chunk","choices":[{"delta":{"content":"a"}}]}\n\n'
    assert recognise_stream(told) == Overflow(8192, 9731)
    assert recognise_stream(chunk + told) is None
    assert recognise_stream(b"") is None
    assert recognise_stream(b"data: [DONE]\n\n") is None


def test_numbers_that_contradict_each_other_are_left_out() -> None:
    """A prompt that would have fitted was not the count, a tiny window is none."""
    assert recognise(400, b'{"error":"prompt is too long: 5 tokens > 8192 maximum"}') == Overflow(8192)
    assert recognise(400, b'{"error":"prompt is too long: 500 tokens > 10 maximum"}') == Overflow(None, 500)


def test_odd_bodies_break_nothing() -> None:
    """Deep, large, empty or binary ones."""
    assert recognise(400, b"[" * 100_000) is None
    assert recognise(400, b"[" * 1_000 + b"]" * 1_000) is None
    assert recognise(400, b"prompt is too long " * 10_000) is None
    assert recognise(400, b"") is None
    assert recognise(400, b"\xff\xfe\x00") is None
    assert recognise(400, json.dumps(error("\ud83d prompt is too long")).encode()) == Overflow()


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=30)
    | st.sampled_from(["prompt is too long: 9 > 8", TPM]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["error", "message", "code", "detail", "n_ctx", "metadata", "raw"]), inner, max_size=4
        )
    ),
    max_leaves=12,
)


@given(
    status=st.sampled_from([200, 400, 413, 422, 429, 500]), body=VALUES.map(json.dumps).map(str.encode) | st.binary()
)
def test_any_answer_can_be_judged(status: int, body: bytes) -> None:
    """Nothing raises, numbers are sensible, and a 429 is never an overflow."""
    found = recognise(status, body)
    recognise_event(body)
    recognise_stream(body)
    if found is not None:
        assert status != 429
        assert found.window_tokens is None or found.window_tokens >= 256
        assert found.prompt_tokens is None or found.prompt_tokens > 0


@pytest.mark.parametrize(
    ("counted", "reported", "expected"),
    [
        (8_000, 3_280, True),
        (8_000, 4_000, False),
        (8_000, 8_000, False),
        (8_000, 24_000, False),
        (1_000, 10, False),
        (8_000, 0, False),
        (8_000, -5, False),
    ],
)
def test_a_cut_prompt_shows_in_the_count(counted: int, reported: int, expected: bool) -> None:
    """Less than half of the tokens that were sent, however they are counted."""
    assert is_truncated(counted, reported) is expected
