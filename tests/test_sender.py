"""The upstream requests of one exchange: what each of them takes along of the client's."""

from __future__ import annotations

import pytest

from proxy.access import Provider
from proxy.exchange import Exchange
from proxy.headers import Headers
from proxy.sender import Sender
from proxy.target import Reach, make_target
from proxy.tenants import Caller
from proxy.upstream import UpstreamRequest

BODY = b'{"messages":[]}'
OTHER = b'{"messages":[1]}'
PROVIDER = Provider(make_target("http://up.test/v1", Reach(), {}))
OF_ONE_REQUEST = [b"idempotency-key", b"x-idempotency-key", b"x-request-id", b"x-client-request-id"]
OF_ALL: Headers = [
    (b"authorization", b"Bearer sk-1"),
    (b"x-api-key", b"sk-2"),
    (b"openai-organization", b"org"),
    (b"openai-project", b"proj"),
    (b"http-referer", b"https://app.test"),
    (b"x-stainless-retry-count", b"1"),
    (b"x-own", b"a"),
    (b"x-own", b"b"),
]


def sender(*headers: tuple[bytes, bytes], caller: Caller | None = None) -> Sender:
    """A sender for a request with these fields."""
    exchange = Exchange(
        method="POST",
        path="/v1/chat/completions",
        raw_query=b"api-version=2024-10-21&a=b%2Fc",
        headers=list(headers),
        peer="127.0.0.1",
        body=BODY,
    )
    return Sender(exchange, PROVIDER, caller or Caller("t"))


def of_both(made: Sender) -> list[UpstreamRequest]:
    """The client's own request, and one of the gateway's."""
    return [made.first(BODY, readable=False), made.further(OTHER)]


@pytest.mark.parametrize("name", OF_ONE_REQUEST)
def test_what_names_one_request_goes_with_the_first_alone(name: bytes) -> None:
    """A further request under the same key would get the first one's answer."""
    first, further = of_both(sender((name, b"k-1"), *OF_ALL))
    assert (name, b"k-1") in first.headers
    assert name not in dict(further.headers)


def test_everything_else_goes_with_all() -> None:
    """Credentials, account, application and the client's own fields, in their order, repeated ones too."""
    for request in of_both(sender(*OF_ALL)):
        assert [pair for pair in request.headers if pair[0] != b"accept-encoding"] == OF_ALL


def test_a_lent_credential_goes_with_all() -> None:
    """A client without a key is served with the configured one, in each round."""
    lent = (b"authorization", b"Bearer sk-lent")
    for request in of_both(sender((b"x-own", b"a"), caller=Caller("t", (lent,)))):
        assert [pair for pair in request.headers if pair[0] == b"authorization"] == [lent]


def test_all_go_to_one_place() -> None:
    """Method, path and query as they came; the upstream is the same even if a reload changes it meanwhile."""
    for request in of_both(sender(*OF_ALL)):
        assert (request.target, request.method, request.path) == (PROVIDER.target, "POST", "/v1/chat/completions")
        assert request.raw_query == b"api-version=2024-10-21&a=b%2Fc"


def test_bodies_are_those_that_were_given() -> None:
    """Each request has its own body."""
    assert [request.body for request in of_both(sender())] == [BODY, OTHER]


def test_our_own_fields_and_those_of_the_connection_stay_here() -> None:
    """Keys of ours and what is between client and gateway are nobody else's affair."""
    private = [
        (b"x-ullage-key", b"ulg-1"),
        (b"x-ullage-policy", b"deep"),
        (b"connection", b"x-mine"),
        (b"x-mine", b"1"),
    ]
    for request in of_both(sender(*private, *OF_ALL)):
        assert not {name for name, _ in request.headers} & {name for name, _ in private}


def test_an_answer_that_is_read_here_comes_without_a_coding() -> None:
    """A relayed one comes as the client asked for it; a body that was made here is read here."""
    made = sender((b"accept-encoding", b"br, zstd"))
    codings = [
        dict(request.headers)[b"accept-encoding"]
        for request in (made.first(BODY, readable=False), made.first(BODY, readable=True), made.further(OTHER))
    ]
    assert codings == [b"br, zstd", b"identity", b"identity"]


def test_a_changed_body_loses_what_described_the_old_one() -> None:
    """Digests, coding and length of the client's body are of no other body."""
    described = [(b"content-length", b"15"), (b"content-md5", b"x"), (b"digest", b"x"), (b"content-digest", b"x")]
    made = sender(*described)
    for request in (made.first(OTHER, readable=False), made.further(OTHER)):
        assert not {name for name, _ in request.headers} & {name for name, _ in described}


KEYED = Provider(make_target("http://other.test/v1", Reach(), {}), "sk-other")
KEYLESS = Provider(make_target("http://local.test/v1", Reach(), {}))


def credentials(request: UpstreamRequest) -> list[tuple[bytes, bytes]]:
    """The credentials in a request."""
    return [pair for pair in request.headers if pair[0] in (b"authorization", b"x-api-key", b"api-key")]


@pytest.mark.parametrize("caller", [Caller("t"), Caller("t", ((b"authorization", b"Bearer sk-lent"),))])
def test_another_models_upstream_gets_its_own_key(caller: Caller) -> None:
    """A narrative that another upstream writes is paid for with that one's key, and it sees no other."""
    request = sender(*OF_ALL, (b"api-key", b"sk-3"), caller=caller).towards(KEYED).further(OTHER)
    assert request.target == KEYED.target
    assert credentials(request) == [(b"authorization", b"Bearer sk-other")]


@pytest.mark.parametrize("caller", [Caller("t"), Caller("t", ((b"authorization", b"Bearer sk-lent"),))])
def test_another_models_upstream_without_a_key_gets_none(caller: Caller) -> None:
    """The client gave its key for the upstream that it asked, and so did the administrator with a lent one."""
    request = sender(*OF_ALL, (b"api-key", b"sk-3"), caller=caller).towards(KEYLESS).further(OTHER)
    assert request.target == KEYLESS.target
    assert credentials(request) == []


def test_another_model_at_the_same_upstream_is_asked_as_the_client_is() -> None:
    """There the client's key is good for both."""
    assert credentials(sender(*OF_ALL).towards(PROVIDER).further(OTHER)) == OF_ALL[:2]
