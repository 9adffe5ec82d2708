"""Prompts that do not fit: one try more with less, in every dialect in which upstreams say so."""

from __future__ import annotations

import json
from contextlib import ExitStack
from typing import Any

import pytest

from tests.e2e.answer import Message
from tests.e2e.chat import Chat, assert_valid, assistant, large, result, system, user
from tests.e2e.compacting import (
    LIMIT_TOKENS,
    SMALL,
    WINDOW_TOKENS,
    Model,
    SmallGateway,
    messages_of,
    rows,
    talk,
    text_of,
    tokens_of,
    turn,
)
from tests.e2e.conftest import NewClient
from tests.e2e.gateway import Client, Gateway
from tests.e2e.model import frames, raw_messages, reads, refs, says, tool_names
from tests.fakes.upstream import Received, Reply, answer, body, events, pieces

pytestmark = pytest.mark.e2e
TURNS = 30
WINDOW = 2048
ROOMY = {"x-ullage-policy": "roomy"}
Error = tuple[int, Any]


def openai(message: str, status: int = 400, **fields: Any) -> Error:
    """Return an error in OpenAI's shape."""
    kind = {"type": "invalid_request_error", "param": "messages", "code": None}
    return status, {"error": {"message": message, **kind, **fields}}


OVERFLOWS: dict[str, Error] = {
    "OpenAI": openai(
        f"This model's maximum context length is {WINDOW} tokens. However, your messages resulted in 4100 tokens. "
        "Please reduce the length of the messages.",
        code="context_length_exceeded",
    ),
    "OpenAI with the answer": openai(
        f"This model's maximum context length is {WINDOW} tokens. However, you requested 4500 tokens (4100 in the "
        "messages, 400 in the completion). Please reduce the length of the messages or completion.",
        code="context_length_exceeded",
    ),
    "OpenAI Responses": openai(
        "Your input exceeds the context window of this model. Please adjust your input and try again.",
        code="context_length_exceeded",
        param="input",
    ),
    "a code alone": openai("too long", code="context_length_exceeded"),
    "Anthropic": (
        400,
        {
            "type": "error",
            "error": {
                "type": "invalid_request_error",
                "message": f"prompt is too long: 4100 tokens > {WINDOW} maximum",
            },
        },
    ),
    "Anthropic with the answer": (
        400,
        {
            "type": "error",
            "error": {
                "type": "invalid_request_error",
                "message": f"input length and `max_tokens` exceed context limit: 4100 + 400 > {WINDOW}, "
                "decrease input length or `max_tokens` and try again",
            },
        },
    ),
    "Anthropic by size": (
        413,
        {"type": "error", "error": {"type": "request_too_large", "message": "Request exceeds the maximum size"}},
    ),
    "vLLM": (
        400,
        {
            "error": {
                "message": f"This model's maximum context length is {WINDOW} tokens. However, you requested 0 output "
                "tokens and your prompt contains at least 2049 input tokens",
                "type": "BadRequestError",
                "code": 400,
            }
        },
    ),
    "vLLM, older": (
        400,
        {
            "object": "error",
            "message": f"This model's maximum context length is {WINDOW} tokens. However, you requested 4500 tokens "
            "(4100 in the messages, 400 in the completion).",
            "type": "BadRequestError",
            "param": None,
            "code": 400,
        },
    ),
    "SGLang": (
        400,
        {
            "error": {
                "message": f"Input length 4100 exceeds the maximum allowed input length of {WINDOW}",
                "code": "400",
            }
        },
    ),
    "llama.cpp": (
        400,
        {
            "error": {
                "code": 400,
                "type": "exceed_context_size_error",
                "message": "the request exceeds the available context size",
                "n_prompt_tokens": 4100,
                "n_ctx": WINDOW,
            }
        },
    ),
    "llama.cpp, older": (
        500,
        {"error": {"code": 500, "message": "Context size has been exceeded.", "type": "server_error"}},
    ),
    "llama.cpp without shift": (500, {"error": {"message": "context shift is disabled"}}),
    "Ollama's template": (500, {"error": {"message": "no user query found in messages", "type": "api_error"}}),
    "OpenRouter": (
        400,
        {
            "error": {
                "code": 400,
                "message": f"This endpoint's maximum context length is {WINDOW} tokens. However, you requested about "
                "4100 tokens (3900 of text input, 200 of tool input). Please reduce the length of either one.",
                "metadata": {"provider_name": None},
            }
        },
    ),
    "Gemini": (
        400,
        [
            {
                "error": {
                    "code": 400,
                    "message": f"The input token count (4100) exceeds the maximum number of tokens allowed ({WINDOW}).",
                    "status": "INVALID_ARGUMENT",
                }
            }
        ],
    ),
    "Mistral": (
        422,
        {
            "object": "error",
            "message": f"Prompt contains 4100 tokens and 0 draft tokens, too large for model with {WINDOW} maximum "
            "context length",
            "type": "invalid_request_prompt",
            "param": None,
            "code": "3051",
            "raw_status_code": 422,
        },
    ),
    "Groq": openai("Please reduce the length of the messages or completion.", 413, code="context_length_exceeded"),
    "a text for people": (413, b"<html>the prompt is too long for the context window: reduce it</html>"),
}
NO_OVERFLOWS: dict[str, Error] = {
    "tokens per minute": (
        413,
        {
            "error": {
                "message": "Request too large for model m in organization o on tokens per minute (TPM): Limit 6000"
            }
        },
    ),
    "a rate limit": (429, {"error": {"message": "Rate limit reached: too many tokens", "code": "rate_limit_exceeded"}}),
    "an image": openai("The image exceeds the maximum size of 20 MB"),
    "a long answer": openai("max_tokens is too large: 99999. This model supports at most 4096 completion tokens"),
    "a long string": openai("Invalid 'messages[0].name': string too long. Expected a string with maximum length 64"),
    "many parts": openai("Invalid 'stop': array too long. Expected an array with maximum length 4"),
    "a key": openai("the prompt is too long for this key", 401),
    "a server": (500, {"error": {"message": "The server had an error while processing your request"}}),
    "a page": (413, b"<html><h1>413 Request Entity</h1></html>"),
}


def refusal(error: Error, **headers: str) -> Reply:
    """Return an error as an answer with its status."""
    status, value = error
    fields = {"x-request-id": "refused", **headers}
    return body(value, status, fields) if isinstance(value, bytes) else answer(value, status, fields)


def long_chat(client: Client, preset: str = "roomy", word: str = "r", **fields: Any) -> Chat:
    """Return a chat that is too long for the upstream, and far from too long for what the gateway knows."""
    chat = Chat(client, *talk(TURNS, word=word), **fields)
    chat.headers["x-ullage-policy"] = preset
    return chat


def assert_smaller(first: bytes, second: bytes, messages: list[Message]) -> None:
    """Check that a retry is a request of less, and that nothing of what must stay is missing."""
    assert len(second) < len(first)
    assert_valid(messages_of(second))
    assert raw_messages(second)[-1] == raw_messages(first)[-1]
    assert messages_of(second)[-1] == messages[-1]
    told = text_of(second)
    assert all(m["content"] in told for m in messages if m["role"] in ("user", "system"))
    before, after = json.loads(first), json.loads(second)
    assert {**before, "messages": 0} == {**after, "messages": 0}


@pytest.mark.parametrize("error", OVERFLOWS.values(), ids=OVERFLOWS)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_every_dialect_is_answered_by_one_smaller_try(client: Client, model: Model, error: Error, stream: bool) -> None:
    """Status and body say that the prompt is too long; the client sees the answer to the second request alone."""
    chat = long_chat(client, stream=stream)
    asked = list(chat.messages)
    model.script += [refusal(error), says("here you are")]
    got = chat.ask()
    first, second = model.bodies
    assert_smaller(first, second, asked)
    assert got.message["content"] == "here you are"
    assert (got.compaction.state, got.compaction.compactions) == ("applied", 1)
    assert b"refused" not in str(got.headers).encode() + got.data


_AS_OBJECT = ["OpenAI", "a code alone", "Anthropic", "vLLM", "vLLM, older", "llama.cpp", "OpenRouter"]


@pytest.mark.parametrize("name", [*_AS_OBJECT, "Gemini"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_an_error_inside_a_success(client: Client, model: Model, name: str, stream: bool) -> None:
    """Some say 200 and mean an error; a JSON answer to a request for a stream is looked at, too."""
    chat = long_chat(client, stream=stream)
    asked = list(chat.messages)
    model.script += [answer(OVERFLOWS[name][1]), says("here you are")]
    got = chat.ask()
    first, second = model.bodies
    assert_smaller(first, second, asked)
    assert got.message["content"] == "here you are"


_FRONTS: dict[str, tuple[bytes, ...]] = {
    "nothing": (),
    "a comment": (b": OPENROUTER PROCESSING\n\n", b": OPENROUTER PROCESSING\n\n"),
    "blank lines": (b"\n", b"\n\n"),
    "an event's name": (b"event: error\n",),
    "a retry": (b"retry: 3000\n\n",),
}


@pytest.mark.parametrize("front", _FRONTS.values(), ids=_FRONTS)
@pytest.mark.parametrize("name", ["OpenAI", "Anthropic", "vLLM, older", "llama.cpp"])
def test_an_error_as_the_first_event(client: Client, model: Model, name: str, front: tuple[bytes, ...]) -> None:
    """A stream that begins with the error, behind comments or not, is no stream of an answer."""
    chat = long_chat(client, stream=True)
    asked = list(chat.messages)
    model.script += [pieces(*front, *frames(OVERFLOWS[name][1])), says("here you are")]
    got = chat.ask()
    first, second = model.bodies
    assert_smaller(first, second, asked)
    assert got.message["content"] == "here you are"
    assert got.error is None


def _in_inputs() -> list[Message]:
    made = talk(40)
    for number, message in enumerate(made):
        if message.get("tool_calls"):
            message["tool_calls"][0]["function"]["arguments"] = json.dumps({"text": rows(f"in{number}", 10)})
        elif message["role"] == "tool":
            message["content"] = "ok"
    return made


def _in_parts() -> list[Message]:
    made = talk(40)
    for message in made:
        if message["role"] in ("tool", "user"):
            message["content"] = [{"type": "text", "text": f"{message['content']}\n"}]
    return made


@pytest.mark.parametrize("messages", [_in_inputs(), _in_parts()], ids=["inputs", "parts"])
@pytest.mark.parametrize("status", [200, 400])
def test_histories_of_inputs_and_parts_are_tried_smaller(
    client: Client, model: Model, messages: list[Message], status: int
) -> None:
    """Where the texts stand makes no difference to whether they fit."""
    chat = Chat(client, *messages)
    chat.headers = dict(ROOMY)
    model.script += [refusal((status, OVERFLOWS["OpenAI"][1])), says("here you are")]
    got = chat.ask()
    first, second = model.bodies
    assert len(second) < len(first)
    assert_valid(messages_of(second))
    assert raw_messages(second)[-1] == raw_messages(first)[-1]
    assert got.message["content"] == "here you are"


def test_an_error_behind_a_token_is_the_clients(client: Client, model: Model) -> None:
    """What was said to the client is not said again: the stream goes on as it came, and nothing is retried."""
    chunk = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    said = {**chunk, "choices": [{"index": 0, "delta": {"role": "assistant", "content": "so"}, "finish_reason": None}]}
    told = [*frames(said), *frames(OVERFLOWS["OpenAI"][1])]
    model.script.append(pieces(*told))
    got = client.post(long_chat(client, stream=True).body(), ROOMY)
    assert got.data == b"".join(told)
    assert len(model.chats) == 1


@pytest.mark.parametrize("name", ["OpenAI", "Gemini", "llama.cpp, older", "Mistral", "a text for people"])
def test_a_second_refusal_gives_the_first_one(client: Client, model: Model, name: str) -> None:
    """The client gets the first error byte for byte, status and fields included; two requests were made, no more."""
    model.script += [refusal(OVERFLOWS[name], **{"x-should-retry": "false"}), refusal(OVERFLOWS["a code alone"])]
    got = client.post(long_chat(client).body(), ROOMY)
    status, value = OVERFLOWS[name]
    assert got.status == status
    assert got.data == (value if isinstance(value, bytes) else refusal(OVERFLOWS[name]).steps[0])
    assert (got.headers["x-request-id"], got.headers["x-should-retry"]) == ("refused", "false")
    assert len(model.chats) == 2


def test_a_second_refusal_in_a_stream_gives_the_first_one(client: Client, model: Model) -> None:
    """The same where the errors are first events of streams."""
    first = [b": wait\n\n", *frames(OVERFLOWS["OpenAI"][1])]
    model.script += [pieces(*first), pieces(*frames(OVERFLOWS["a code alone"][1]))]
    got = client.post(long_chat(client, stream=True).body(), ROOMY)
    assert got.data == b"".join(first)
    assert len(model.chats) == 2


def test_another_error_of_the_second_try_is_told(client: Client, model: Model) -> None:
    """What the smaller request is answered is the answer, whatever it is, as long as it is no overflow."""
    other = refusal((429, {"error": {"message": "slow down"}}), **{"retry-after": "1"})
    model.script += [refusal(OVERFLOWS["OpenAI"]), other]
    got = client.post(long_chat(client).body(), ROOMY)
    assert (got.status, got.json["error"]["message"]) in [(429, "slow down"), (400, OVERFLOWS["OpenAI"][1])]
    assert len(model.chats) == 2


@pytest.mark.parametrize("error", NO_OVERFLOWS.values(), ids=NO_OVERFLOWS)
def test_other_complaints_are_relayed(client: Client, model: Model, error: Error) -> None:
    """What is about rates, pictures, single fields or the answer's length is told as it came, after one request."""
    model.script.append(refusal(error))
    got = client.post(long_chat(client).body(), ROOMY)
    assert got.status == error[0]
    assert got.data == refusal(error).steps[0]
    assert len(model.chats) == 1


@pytest.mark.parametrize("preset", ["off", "shadow", "safe", "plain"])
def test_presets_that_do_not_compact_send_nothing_else(client: Client, model: Model, preset: str) -> None:
    """They promise not to: the refusal is the client's."""
    model.script.append(refusal(OVERFLOWS["OpenAI"]))
    got = client.post(long_chat(client).body(), {"x-ullage-policy": preset})
    assert (got.status, got.json) == OVERFLOWS["OpenAI"]
    assert len(model.chats) == 1


def test_a_request_that_cannot_get_smaller_is_not_sent_again(client: Client, model: Model) -> None:
    """One message of the user that is all there is stays whole, and a second request would be the same."""
    model.script.append(refusal(OVERFLOWS["OpenAI"]))
    got = client.post(Chat(client, system("s"), user(rows("paste", 120))).body(), ROOMY)
    assert (got.status, got.json) == OVERFLOWS["OpenAI"]
    assert len(model.chats) == 1


@pytest.mark.parametrize("opening", ["the same", "another"])
def test_the_window_is_learnt_for_the_tenant(client: Client, model: Model, opening: str) -> None:
    """The next requests are small at once, of this session and of others."""
    chat = long_chat(client)
    model.script.append(refusal(OVERFLOWS["OpenAI"]))
    chat.ask()
    if opening == "another":
        chat = long_chat(client, word="q")
    chat.ask(*turn(TURNS))
    chat.ask(*turn(TURNS + 1))
    refused, _, *later = model.bodies
    assert len(later) == 2
    assert all(len(body) < len(refused) / 2 for body in later)


def test_the_window_is_not_learnt_for_other_tenants(new_client: NewClient, model: Model) -> None:
    """Another account may have another limit: its request goes whole."""
    model.script.append(refusal(OVERFLOWS["OpenAI"]))
    long_chat(new_client()).ask()
    other = long_chat(new_client())
    sent = other.body()
    other.ask()
    assert raw_messages(model.last) == raw_messages(sent)


def test_the_window_is_known_after_a_restart(own_gateway: Gateway, own_client: Client, model: Model) -> None:
    """The lesson is in the store: the next process compacts a new session before it is refused."""
    model.script.append(refusal(OVERFLOWS["OpenAI"]))
    long_chat(own_client).ask()
    own_gateway.restart()
    other = long_chat(own_client, word="q")
    other.ask()
    refused, _, later = model.bodies
    assert len(later) < len(refused) / 2


def test_the_window_is_learnt_for_the_model_alone(client: Client, model: Model) -> None:
    """Another model at the same upstream has its own."""
    model.script.append(refusal(OVERFLOWS["OpenAI"]))
    long_chat(client).ask()
    other = long_chat(client, word="q")
    sent = other.body(model="another")
    other.client.post(sent, other.headers)
    assert raw_messages(model.last) == raw_messages(sent)


def test_a_retry_is_one_call_of_the_session(client: Client, model: Model) -> None:
    """Statistics count what the client did."""
    model.script.append(refusal(OVERFLOWS["OpenAI"]))
    got = long_chat(client).ask()
    session = client.get(f"/ullage/v1/sessions/{got.session}").json()
    assert (session["calls"], session["compactions"]) == (1, 1)


def test_the_session_goes_on_from_the_retry(client: Client, model: Model) -> None:
    """What the second request was is the prefix of the next ones, also when the refused one comes once more."""
    chat = long_chat(client)
    first = chat.body()
    model.script.append(refusal(OVERFLOWS["OpenAI"]))
    chat.ask()
    chat.ask(user("go on"))
    client.post(first, chat.headers)
    _, retried, longer, again = model.bodies
    assert raw_messages(longer)[: len(raw_messages(retried))] == raw_messages(retried)
    assert again == retried


def test_a_read_in_the_second_answer_is_answered(client: Client, model: Model) -> None:
    """The retry is a turn like any other: what left can be read in it."""
    chat = Chat(client, system("s"), user("goal"), assistant("", ("c", "read_file", "{}")), result(large("alpha"), "c"))
    chat.add(*talk(TURNS)[2:])
    chat.headers["x-ullage-policy"] = "roomy"
    model.script += [refusal(OVERFLOWS["OpenAI"]), says("", reads("history", pattern="alpha 0042")), says("seen")]
    got = chat.ask()
    assert got.message["content"] == "seen"
    assert "alpha 0042 is a line" in messages_of(model.last)[-1]["content"]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_a_refusal_of_a_hidden_round_is_mended(client: Client, model: Model, stream: bool) -> None:
    """Where the page that was read is too much, it is a matter between gateway and upstream: the turn goes on."""
    chat = Chat(client, user("goal"), assistant("", ("c", "read_file", "{}")), result(rows("big", 300), "c"))
    chat.fields["stream"] = stream
    model.script += [says("", reads()), refusal(OVERFLOWS["OpenAI"]), says("seen")]
    got = client.post(chat.body(), ROOMY)
    assert len(model.chats) <= 4
    assert got.status == 200
    assert got.error is None
    assert got.message["content"] == "seen"


def test_a_refusal_of_a_hidden_round_is_learnt_from(client: Client, model: Model) -> None:
    """The client asks again, as clients do: the same round is not as large as before."""
    chat = Chat(client, user("goal"), assistant("", ("c", "read_file", "{}")), result(rows("big", 300), "c"))
    for _ in range(2):
        model.script += [says("", reads()), refusal(OVERFLOWS["OpenAI"]), *([says("seen")] * 4)]
        client.post(chat.body(), ROOMY)
        model.script.clear()
    sizes = [tokens_of(received.body) for received in model.chats]
    refused = sizes[1]
    assert refused > WINDOW
    assert max(sizes[2:]) < WINDOW


@pytest.mark.parametrize("preset", ["roomy", "roomy-told"])
@pytest.mark.parametrize("name", ["OpenAI", "a code alone"])
def test_a_session_lives_in_a_window_that_nobody_told_of(client: Client, model: Model, name: str, preset: str) -> None:
    """The upstream takes 2,048 tokens of whoever asks, for summaries, too: each request of the client is answered."""

    def strict(received: Received) -> Reply:
        fits = tokens_of(received.body) <= WINDOW
        return says("ok", prompt_tokens=0)(received) if fits else refusal(OVERFLOWS[name])

    model.tell = strict
    chat, most = Chat(client, system("s"), user("goal")), 0
    chat.headers["x-ullage-policy"] = preset
    for number in range(40):
        model.script.extend([strict] * 4)
        asked = len(model.chats)
        chat.ask(*turn(number, 8))
        model.script.clear()
        most = max(most, len(model.chats) - asked)
        assert_valid(messages_of(model.last))
    refused = [received for received in model.chats if tokens_of(received.body) > WINDOW]
    assert most <= 2
    assert 1 <= len(refused) <= 6


def test_without_a_store_the_refusal_is_relayed(own_gateway: Gateway, own_client: Client, model: Model) -> None:
    """What was sent was the client's own body; there is nothing else that could be sent."""
    model.script.append(refusal(OVERFLOWS["OpenAI"]))
    with own_gateway.without_store():
        got = own_client.post(long_chat(own_client).body(), ROOMY)
    assert (got.status, got.json) == OVERFLOWS["OpenAI"]
    assert got.compaction.state == "bypassed"
    assert len(model.chats) == 1


def test_a_store_that_fails_before_the_retry_costs_only_the_retry(
    own_gateway: Gateway, own_client: Client, model: Model
) -> None:
    """No ref leaves that is not durable: the first error is told, as it came."""
    with ExitStack() as stack:

        def refuse(_: object) -> Reply:
            stack.enter_context(own_gateway.without_store())
            return refusal(OVERFLOWS["OpenAI"])

        model.script.append(refuse)
        got = own_client.post(long_chat(own_client).body(), ROOMY)
    for sent in model.bodies[1:]:
        assert not refs(sent)
        assert "<earlier-turns" not in text_of(sent)
    assert got.status == (400 if len(model.chats) == 1 else 200)
    if got.status == 400:
        assert got.json == OVERFLOWS["OpenAI"][1]


def test_a_prompt_that_was_cut_silently_is_told_in_the_log(
    own_gateway: SmallGateway, own_client: Client, model: Model
) -> None:
    """A report of far fewer tokens than were sent means that the upstream lost some of them."""
    model.script.append(says("hi", prompt_tokens=900))
    long_chat(own_client).ask()
    told = own_gateway.wait_logged("prompt_cut_by_upstream")
    assert told[0]["reported_tokens"] == 900
    assert told[0]["sent_tokens"] > 1800


def test_an_honest_report_is_no_news(own_gateway: SmallGateway, own_client: Client, model: Model) -> None:
    """Tokenizers differ; a third less is no loss."""
    model.script.append(says("hi", prompt_tokens=2600))
    long_chat(own_client).ask()
    model.script.append(says("hi", prompt_tokens=900))
    long_chat(own_client, word="q").ask()
    (told,) = own_gateway.wait_logged("prompt_cut_by_upstream")
    assert told["reported_tokens"] == 900


def test_reports_that_cannot_be_true_teach_nothing(client: Client, model: Model) -> None:
    """Some servers tell a made-up number each time; the limit stays what it is."""
    prose = "international organisations understand administrative responsibilities " * 60
    for number in range(4):
        model.script.append(says("ok", prompt_tokens=11))
        Chat(client, system("s"), user(f"{number} {prose}"), model=SMALL).ask(headers=ROOMY)
    chat = Chat(client, *talk(75), model=SMALL)
    assert tokens_of(chat.body()) > WINDOW_TOKENS
    got = client.post(chat.body(), {"x-ullage-policy": "told"})
    assert got.status == 200
    assert tokens_of(model.last) <= LIMIT_TOKENS


def test_the_empty_end_of_a_full_window_is_no_success(client: Client, model: Model) -> None:
    """A stream that holds nothing at all is relayed as it is: nothing is made up and nothing is retried behind it."""
    model.script.append(events())
    got = client.post(long_chat(client, stream=True).body(), ROOMY)
    assert got.data == b"data: [DONE]\n\n"
    assert len(model.chats) == 1


def test_the_tool_stays_declared_in_the_retry(client: Client, model: Model) -> None:
    """What names the tool comes with the tool."""
    model.script.append(refusal(OVERFLOWS["OpenAI"]))
    long_chat(client).ask()
    assert tool_names(model.bodies[0]) == tool_names(model.bodies[1])
    assert "read_offloaded(" in text_of(model.bodies[1])
