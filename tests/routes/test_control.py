"""The control interface: who sees what, lists in pages, exact bytes, odd ids, and its own description."""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from msgspec import Struct

from proxy.app import create_app
from proxy.core.ledger import Wished, decode_entry
from proxy.errors import Unavailable
from proxy.routes.control import control_handlers
from proxy.settings import Server, Settings
from proxy.store.base import PAGE_LIMIT, Original, Page, PageRequest, Session, SessionUse, StoreOptions
from proxy.store.memory import MemoryStore
from proxy.tenants import tenant_of
from tests.fakes.serving import parts

pytestmark = pytest.mark.anyio

SECRET = b"s" * 32
ADMIN_KEY = "adm-1"
ALICE, BOB = tenant_of(b"sk-alice", SECRET), tenant_of(b"sk-bob", SECRET)
SESSION, REF = "ses_alice", "off_" + "a2" * 13
UNKNOWN = "off_" + "q7" * 13
TEXT = b"ALICE'S SECRET \xff\x00\r\n" + bytes(range(256))

# Everything that there is of Alice, what deletes it last.
ROUTES = [
    ("GET", "/sessions"),
    ("HEAD", "/sessions"),
    ("GET", f"/sessions/{SESSION}"),
    ("GET", "/originals"),
    ("GET", f"/originals?session={SESSION}"),
    ("GET", f"/originals/{REF}"),
    ("HEAD", f"/originals/{REF}"),
    ("DELETE", f"/originals/{REF}"),
    ("DELETE", f"/sessions/{SESSION}"),
]
LISTS = {"/sessions", "/originals", f"/originals?session={SESSION}"}
FORWARDED = [
    {"x-forwarded-for": "10.0.0.9"},
    {"forwarded": "for=10.0.0.9"},
    {"via": "1.1 proxy"},
    {"host": "evil.test"},
    {"origin": "http://evil.test"},
    {"sec-fetch-site": "cross-site"},
]
LOCAL, REMOTE = "127.0.0.1", "10.0.0.9"


class Caller(Struct, frozen=True):
    """One row of the matrix: who asks, how the gateway is set up, and what is seen of Alice's things."""

    sees: bool | None  # None: refused
    headers: dict[str, str] = {}
    peer: str = LOCAL
    admin_key: str | None = None


CALLERS = {
    "nobody, local": Caller(sees=True),
    **{f"nobody, {next(iter(h))}": Caller(sees=None, headers=h) for h in FORWARDED},
    "nobody, remote": Caller(sees=None, peer=REMOTE),
    "owner, local": Caller(sees=True, headers={"authorization": "Bearer sk-alice"}),
    "owner, remote": Caller(sees=True, headers={"x-api-key": "sk-alice", "via": "1.1 proxy"}, peer=REMOTE),
    "owner, Azure's header": Caller(sees=True, headers={"api-key": "sk-alice"}, peer=REMOTE),
    "other, local": Caller(sees=False, headers={"authorization": "Bearer sk-bob"}),
    "other, remote": Caller(sees=False, headers={"x-api-key": "sk-bob"}, peer=REMOTE),
    "stranger": Caller(sees=False, headers={"authorization": "Bearer sk-new"}),
    "nobody, local, admin key set": Caller(sees=None, admin_key=ADMIN_KEY),
    "owner, admin key set": Caller(sees=True, headers={"authorization": "Bearer sk-alice"}, admin_key=ADMIN_KEY),
    "other, admin key set": Caller(sees=False, headers={"authorization": "Bearer sk-bob"}, admin_key=ADMIN_KEY),
    "administrator": Caller(sees=True, headers={"authorization": f"Bearer {ADMIN_KEY}"}, admin_key=ADMIN_KEY),
    "administrator, remote": Caller(
        sees=True, headers={"x-api-key": ADMIN_KEY, "x-forwarded-for": REMOTE}, peer=REMOTE, admin_key=ADMIN_KEY
    ),
    "wrong admin key": Caller(sees=False, headers={"authorization": f"Bearer {ADMIN_KEY}2"}, admin_key=ADMIN_KEY),
    "admin key that is not set": Caller(sees=False, headers={"authorization": f"Bearer {ADMIN_KEY}"}),
}


class Configuration:
    """Settings that may change, as a reload does it."""

    def __init__(self, admin_key: str | None = None) -> None:
        self.settings = Settings(server=Server(admin_key=admin_key))

    def current(self) -> Settings:
        """Return what is in force now."""
        return self.settings


class DownStore(MemoryStore):
    """A store that cannot be used."""

    async def list_sessions(self, tenant: str | None, page: PageRequest) -> Page[Session]:
        """Fail."""
        raise Unavailable("the store does not answer")


def original(ref: str, data: bytes, ledger: str = SESSION) -> Original:
    """Return an original of a session."""
    return Original(ref, ledger, "result", "read_file", 7, 3, len(data), 1_700_000_000.0, data)


async def filled_store() -> MemoryStore:
    """Return a store with one session and one original for each of two tenants."""
    store = MemoryStore(StoreOptions(), lambda: 1_700_000_000.5)
    for tenant, session, ref, data in ((BOB, "ses_bob", "off_bob", b"Bob's"), (ALICE, SESSION, REF, TEXT)):
        await store.put_originals(tenant, [original(ref, data, session)])
        use = SessionUse(session, "a key", "gpt-4o", "chat", "balanced", 4, 300, 40, edits=1)
        store.note(tenant, use, [], [])
    return store


@asynccontextmanager
async def client_of(
    store: MemoryStore, configuration: Configuration | None = None, peer: str = LOCAL
) -> AsyncIterator[httpx.AsyncClient]:
    """Give a client of the whole application over this store, without credential."""
    handlers = control_handlers(store, SECRET, (configuration or Configuration()).current)
    app: Any = create_app(parts("http://127.0.0.1:1", handlers=handlers, store=store))
    transport = httpx.ASGITransport(app, client=(peer, 50_000))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:4410/ullage/v1") as client:
        yield client


def is_own_error(response: httpx.Response, status: int) -> bool:
    """Tell whether an answer is an error of the gateway with this status."""
    error = response.json()["error"]
    shape = list(error) == ["message", "type", "param", "code"] and error["type"] == "ullage_error"
    return response.status_code == status and shape and response.headers["content-type"] == "application/json"


@pytest.mark.parametrize("name", CALLERS)
async def test_who_sees_what(name: str) -> None:
    """Every caller on every route: the owner and the administrator, others see that there is nothing, or a 401."""
    caller = CALLERS[name]
    store = await filled_store()
    async with client_of(store, Configuration(caller.admin_key), caller.peer) as client:
        for method, path in ROUTES:
            response = await client.request(method, path, headers=caller.headers)
            if caller.sees:
                assert response.status_code == (204 if method == "DELETE" else 200), (method, path)
                continue
            expected = 401 if caller.sees is None else 200 if path in LISTS else 404
            assert response.status_code == expected, (method, path)
            assert not any(word in response.text for word in ("SECRET", SESSION, REF, ALICE))
            assert method == "HEAD" or expected == 200 or is_own_error(response, expected)
    was_deleted = await store.get_session(None, SESSION) is None
    assert was_deleted == (await store.list_originals(None, SESSION, PageRequest()) == Page([])) == bool(caller.sees)


@pytest.mark.parametrize("name", CALLERS)
async def test_the_description_is_for_who_may_ask_at_all(name: str) -> None:
    """The OpenAPI document and the list of methods are behind the same guard."""
    caller = CALLERS[name]
    async with client_of(await filled_store(), Configuration(caller.admin_key), caller.peer) as client:
        document = await client.get("/openapi.json", headers=caller.headers)
        methods = await client.options("/sessions", headers=caller.headers)
        sessions = await client.get("/sessions", headers=caller.headers)  # describing the guard does not remove it
    expected = (401, 401, 401) if caller.sees is None else (200, 204, 200)
    assert (document.status_code, methods.status_code, sessions.status_code) == expected
    assert (SESSION in sessions.text) == bool(caller.sees)


async def test_the_administrator_sees_all_tenants_and_a_tenant_its_own() -> None:
    """Lists are of everything for the one, and of one tenant for the other."""
    async with client_of(await filled_store()) as client:
        everything = (await client.get("/sessions")).json()
        own = (await client.get("/sessions", headers={"authorization": "Bearer sk-bob"})).json()
        originals = (await client.get("/originals", headers={"authorization": "Bearer sk-bob"})).json()
    assert [s["id"] for s in everything["data"]] == [SESSION, "ses_bob"]
    assert [s["id"] for s in own["data"]] == ["ses_bob"]
    assert [o["ref"] for o in originals["data"]] == ["off_bob"]
    assert everything["next"] is own["next"] is originals["next"] is None


async def test_shapes() -> None:
    """A session and an original are shown with the agreed fields, alone as in a list."""
    async with client_of(await filled_store()) as client:
        session = (await client.get(f"/sessions/{SESSION}")).json()
        sessions = (await client.get("/sessions")).json()["data"]
        originals = (await client.get("/originals", params={"session": SESSION})).json()["data"]
    assert session == sessions[0]
    assert session == {
        "id": SESSION,
        "tenant": ALICE,
        "key": "a key",
        "created": "2023-11-14T22:13:20.500000Z",
        "last_used": "2023-11-14T22:13:20.500000Z",
        "model": "gpt-4o",
        "format": "chat",
        "preset": "balanced",
        "calls": 1,
        "messages": 4,
        "tokens": {"received": 300, "sent": 40},
        "edits": 1,
        "compactions": 0,
        "reads": 0,
        "originals": 1,
        "stored_bytes": len(TEXT),
    }
    assert originals == [
        {
            "ref": REF,
            "session": SESSION,
            "kind": "result",
            "tool": "read_file",
            "tokens": 7,
            "lines": 3,
            "bytes": len(TEXT),
            "created": "2023-11-14T22:13:20Z",
        }
    ]


@pytest.mark.parametrize("data", [b"", TEXT, b"<script>alert(1)</script>", "é€\n".encode()])
async def test_originals_are_exact_bytes_that_no_browser_shows(data: bytes) -> None:
    """The answer is the stored bytes, as a download of no type that nobody keeps; HEAD tells the same."""
    store = await filled_store()
    await store.put_originals(ALICE, [original(UNKNOWN, data)])
    async with client_of(store) as client:
        response = await client.get(f"/originals/{UNKNOWN}")
        head = await client.head(f"/originals/{UNKNOWN}")
    assert response.content == data
    assert dict(response.headers) == {
        "cache-control": "no-store",
        "content-disposition": f'attachment; filename="{UNKNOWN}.txt"',
        "content-length": str(len(data)),
        "content-type": "application/octet-stream",
        "x-content-type-options": "nosniff",
    }
    assert head.headers == response.headers


async def test_a_large_original_is_not_copied() -> None:
    """The very object that the store gave is handed to the server, in one piece."""
    store = await filled_store()
    data = bytes(20_000_000)
    await store.put_originals(ALICE, [original(UNKNOWN, data)])
    handlers = control_handlers(store, SECRET, Settings)
    app: Any = create_app(parts("http://127.0.0.1:1", handlers=handlers, store=store))
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:  # a dict of many shapes
        sent.append(message)

    scope = {
        "type": "http",
        "method": "GET",
        "path": f"/ullage/v1/originals/{UNKNOWN}",
        "raw_path": f"/ullage/v1/originals/{UNKNOWN}".encode(),
        "query_string": b"",
        "headers": [(b"host", b"127.0.0.1")],
        "client": (LOCAL, 50_000),
    }
    await app(scope, receive, send)
    assert sent[1]["body"] is data
    assert len(sent) == 2


async def test_foreign_and_unknown_cannot_be_told_apart() -> None:
    """What belongs to somebody else is answered word for word like what never was."""
    headers = {"authorization": "Bearer sk-bob"}
    async with client_of(await filled_store()) as client:
        for method in ("GET", "DELETE"):
            for foreign, unknown in (
                (f"/originals/{REF}", f"/originals/{UNKNOWN}"),
                (f"/sessions/{SESSION}", "/sessions/x"),
            ):
                one = await client.request(method, foreign, headers=headers)
                other = await client.request(method, unknown, headers=headers)
                assert is_own_error(one, 404)
                assert (one.content, one.headers) == (other.content, other.headers)


async def test_deleting() -> None:
    """What was deleted is gone for everybody; a second time there is nothing to delete; others' things stay."""
    async with client_of(await filled_store()) as client:
        erased = await client.delete(f"/originals/{REF}")
        assert (erased.status_code, erased.content) == (204, b"")
        for method in ("GET", "DELETE"):
            assert is_own_error(await client.request(method, f"/originals/{REF}"), 404)
        assert (await client.get("/originals", params={"session": SESSION})).json()["data"] == []
        assert (await client.get(f"/sessions/{SESSION}")).json()["originals"] == 0
        assert (await client.delete(f"/sessions/{SESSION}")).status_code == 204
        for method in ("GET", "DELETE"):
            assert is_own_error(await client.request(method, f"/sessions/{SESSION}"), 404)
        assert [s["id"] for s in (await client.get("/sessions")).json()["data"]] == ["ses_bob"]


async def pages(client: httpx.AsyncClient, path: str, **params: str | int) -> list[list[dict[str, Any]]]:
    """Return all pages of a list."""
    found = []
    answer: dict[str, Any] = {"next": ""}  # an empty cursor asks for the beginning
    while answer["next"] is not None:
        answer = (await client.get(path, params={**params, "cursor": answer["next"]})).json()
        found.append(answer["data"])
    return found


@pytest.mark.parametrize("limit", [1, 2, 5, 6, 10**30])
async def test_lists_come_in_pages(limit: int) -> None:
    """Following `next` gives every item once, the last made first, and at most so many at once."""
    store = MemoryStore(StoreOptions(), lambda: 1_700_000_000.0)
    for number in range(5):
        await store.put_originals(ALICE, [original(f"off_{number}", b"text", f"ses_{number}")])
        await store.put_originals(BOB, [original(f"off_b{number}", b"text", f"ses_b{number}")])
    headers = {"authorization": "Bearer sk-alice"}
    async with client_of(store) as client:
        client.headers.update(headers)
        sessions = await pages(client, "/sessions", limit=limit)
        originals = await pages(client, "/originals", limit=limit)
    assert [s["id"] for page in sessions for s in page] == [f"ses_{n}" for n in (4, 3, 2, 1, 0)]
    assert [o["ref"] for page in originals for o in page] == [f"off_{n}" for n in (4, 3, 2, 1, 0)]
    assert max(map(len, sessions + originals)) <= limit


async def test_the_largest_page() -> None:
    """Whatever is asked for, a page has an end; without `limit` it has a hundred items."""
    store = MemoryStore(StoreOptions(), lambda: 1_700_000_000.0)
    await store.put_originals(ALICE, [original(f"off_{number}", b"") for number in range(PAGE_LIMIT + 1)])
    async with client_of(store) as client:
        largest = (await client.get("/originals", params={"limit": PAGE_LIMIT + 1})).json()
        usual = (await client.get("/originals")).json()
    assert (len(largest["data"]), len(usual["data"])) == (PAGE_LIMIT, 100)
    assert largest["next"] is not None


async def test_a_cursor_opens_nothing() -> None:
    """Another tenant's cursor leads through one's own list only."""
    store = MemoryStore(StoreOptions(), lambda: 1_700_000_000.0)
    for number in range(3):
        await store.put_originals(BOB, [original(f"off_b{number}", b"", f"ses_b{number}")])
        await store.put_originals(ALICE, [original(f"off_{number}", b"", f"ses_{number}")])
    async with client_of(store) as client:
        alice = (await client.get("/sessions", params={"limit": 1}, headers={"x-api-key": "sk-alice"})).json()
        bob = await client.get("/sessions", params={"cursor": alice["next"]}, headers={"x-api-key": "sk-bob"})
    assert {s["tenant"] for s in bob.json()["data"]} == {BOB}


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("limit=abc", "limit"),
        ("limit=", "limit"),
        ("limit=0", "limit"),
        ("limit=-1", "limit"),
        ("limit=1.5", "limit"),
        ("cursor=x", "cursor"),
        ("cursor=%ff%00", "cursor"),
        ("cursor=" + "p" * 5000, "cursor"),
        (f"cursor={quote('é')}", "cursor"),
    ],
)
async def test_wrong_parameters_are_named(query: str, param: str) -> None:
    """A wrong parameter is a 400 that names it and does not repeat what was sent."""
    async with client_of(await filled_store()) as client:
        for path in ("/sessions", "/originals"):
            response = await client.get(f"{path}?{query}")
            assert is_own_error(response, 400)
            assert response.json()["error"]["param"] == param
            assert query not in response.text


async def test_a_wish_for_a_compaction() -> None:
    """It is taken for the session's next request, and once however often it is told."""
    store = await filled_store()
    async with client_of(store) as client:
        for _ in range(2):
            response = await client.post(f"/sessions/{SESSION}/compact")
            assert response.status_code == 202
            assert response.json() == {
                "success": True,
                "strategy": "summarise",
                "tokensReduced": 0,
                "compressionRatio": 0.0,
                "compressedMessages": 0,
                "pending": True,
            }
    assert [decode_entry(data) for data in await store.load_ledger(ALICE, SESSION)] == [Wished("api")]


async def test_a_wish_for_what_cannot_be_compacted() -> None:
    """A foreign session is not there; one whose preset makes no compactions is told so, with the mend."""
    store = await filled_store()
    store.note(ALICE, SessionUse(SESSION, preset="safe"), [], [])
    async with client_of(store) as client:
        assert is_own_error(await client.post("/sessions/unknown/compact"), 404)
        foreign = await client.post("/sessions/ses_bob/compact", headers={"authorization": "Bearer sk-alice"})
        assert is_own_error(foreign, 404)
        refused = await client.post(f"/sessions/{SESSION}/compact")
        assert is_own_error(refused, 409)
        assert "balanced" in refused.json()["error"]["message"]


async def test_who_asks_comes_before_what_is_asked() -> None:
    """Without admission a wrong parameter and an unknown id are nobody's business."""
    async with client_of(await filled_store(), peer=REMOTE) as client:
        for path in ("/sessions?limit=abc", "/sessions?cursor=x", "/sessions/unknown", "/originals/unknown"):
            assert is_own_error(await client.get(path), 401)


ODD_IDS = [
    "%2e%2e",
    "..%2fx",
    "%2e%2e%2fsessions",
    "%00",
    "%ff",
    "%0d%0aset-cookie:%20a=b",
    "a%20b",
    quote("off_💥"),
    quote("'; DROP TABLE original; --"),
    "*",
    "%25",
    "x" * 60_000,
    REF.upper(),
    REF + "%00",
    "%20" + REF,
]


@pytest.mark.parametrize("odd", ODD_IDS, ids=lambda odd: odd[:24])
async def test_odd_ids_are_unknown_ids(odd: str) -> None:
    """Whatever stands for an id, there is no such thing, and nothing happens to what there is."""
    store = await filled_store()
    async with client_of(store) as client:
        for kind in ("sessions", "originals"):
            for method in ("GET", "HEAD", "DELETE"):
                response = await client.request(method, f"/{kind}/{odd}")
                assert response.status_code == 404
                assert method == "HEAD" or is_own_error(response, 404)
    stats = await store.stats()
    assert (stats.originals, stats.sessions) == (2, 2)


@pytest.mark.parametrize("path", ["/sessions/../x", "/sessions/../../v1", "/sessions/a/b", "/originals//x/y", "", "/x"])
async def test_paths_that_lead_nowhere(path: str) -> None:
    """Dots and slashes do not lead out of the interface."""
    async with client_of(await filled_store()) as client:
        assert is_own_error(await client.get(path), 404)


@pytest.mark.parametrize("path", ["/sessions/", "/originals/"])
async def test_an_empty_id_deletes_nothing(path: str) -> None:
    """Without an id the list is meant, and a list cannot be deleted."""
    store = await filled_store()
    async with client_of(store) as client:
        assert (await client.get(path)).json()["next"] is None
        assert is_own_error(await client.delete(path), 405)
    assert (await store.stats()).sessions == 2


@pytest.mark.parametrize("session", ["", "unknown", "ses_bob", "x" * 10_000, "%00", "%ff"])
async def test_originals_of_a_session_that_is_not_there(session: str) -> None:
    """The originals of no session, of an unknown and of a foreign one are none."""
    async with client_of(await filled_store()) as client:
        response = await client.get(f"/originals?session={session}", headers={"authorization": "Bearer sk-alice"})
    assert (response.status_code, response.json()) == (200, {"data": [], "next": None})


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        ("/sessions", {"GET", "HEAD", "OPTIONS"}),
        ("/sessions/x", {"GET", "HEAD", "DELETE", "OPTIONS"}),
        ("/sessions/x/compact", {"POST", "OPTIONS"}),
        ("/originals", {"GET", "HEAD", "OPTIONS"}),
        ("/originals/x", {"GET", "HEAD", "DELETE", "OPTIONS"}),
        ("/openapi.json", {"GET", "HEAD", "OPTIONS"}),
    ],
)
async def test_methods(path: str, allowed: set[str]) -> None:
    """OPTIONS and a refused method both tell which ones there are; no page of another site is let in."""
    async with client_of(await filled_store()) as client:
        options = await client.options(path, headers={"authorization": "Bearer sk-bob", "origin": "http://evil.test"})
        assert (options.status_code, options.content) == (204, b"")
        assert set(options.headers["allow"].split(", ")) == allowed
        assert not [name for name in options.headers if name.startswith("access-control")]
        for method in {"POST", "PUT", "PATCH", "DELETE", "PROPFIND"} - allowed:
            refused = await client.request(method, path)
            assert is_own_error(refused, 405)
            assert set(refused.headers["allow"].split(", ")) == allowed


@pytest.mark.parametrize(
    "path", ["/sessions", f"/sessions/{SESSION}", "/originals", f"/originals/{REF}", "/openapi.json"]
)
async def test_head_tells_what_get_tells(path: str) -> None:
    """HEAD has the status and the fields of GET."""
    async with client_of(await filled_store()) as client:
        got, head = await client.get(path), await client.head(path)
    assert (head.status_code, head.headers) == (got.status_code, got.headers)
    assert got.headers["cache-control"] == "no-store"


async def test_the_settings_in_force_now_count() -> None:
    """An admin key that a reload brought is asked for at once."""
    configuration = Configuration()
    async with client_of(await filled_store(), configuration) as client:
        assert (await client.get("/sessions")).status_code == 200
        configuration.settings = Configuration(ADMIN_KEY).settings
        assert (await client.get("/sessions")).status_code == 401
        assert (await client.get("/sessions", headers={"x-api-key": ADMIN_KEY})).status_code == 200


async def test_a_store_that_is_away() -> None:
    """The store's failure is the answer, in the gateway's shape."""
    async with client_of(DownStore(StoreOptions(), lambda: 0.0)) as client:
        response = await client.get("/sessions")
    assert is_own_error(response, 503)
    assert response.json()["error"]["code"] == "store_unavailable"


async def test_the_log_holds_ids_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    """Deletions are logged with id and tenant; no text and no credential is logged on any way."""
    caplog.set_level(logging.DEBUG)
    headers = {"authorization": "Bearer sk-alice"}
    async with client_of(await filled_store()) as client:
        for method, path in [*ROUTES, ("GET", f"/originals/{REF}"), ("GET", "/sessions?limit=sk-alice")]:
            await client.request(method, path, headers=headers)
    ours = [record.getMessage() for record in caplog.records if record.name.startswith("proxy")]
    assert ours == [f"original {REF} was erased by {ALICE}", f"session {SESSION} was deleted by {ALICE}"]
    assert not re.search("SECRET|Bearer", caplog.text)


def resolved(document: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    """Follow a reference in an OpenAPI document."""
    reference = schema.get("$ref")
    found: dict[str, Any] = document["components"]["schemas"][reference.rsplit("/", 1)[1]] if reference else schema
    return found


def answers_of(document: dict[str, Any], path: str, method: str) -> dict[str, Any]:
    """Return the resolved schemas of an operation's answers by status, None for those without body."""
    responses = document["paths"][path][method]["responses"]
    content = {status: next(iter(r.get("content", {}).values()), None) for status, r in responses.items()}
    return {status: c and resolved(document, c["schema"]) for status, c in content.items()}


async def test_the_description_names_exactly_these_routes() -> None:
    """The OpenAPI document has our paths and methods, and nothing of the rest of the application."""
    async with client_of(await filled_store()) as client:
        document = (await client.get("/openapi.json")).json()
    methods = {path: set(operations) for path, operations in document["paths"].items()}
    assert methods == {
        "/ullage/v1/sessions": {"get"},
        "/ullage/v1/sessions/{id}": {"get", "delete"},
        "/ullage/v1/sessions/{id}/compact": {"post"},
        "/ullage/v1/originals": {"get"},
        "/ullage/v1/originals/{ref}": {"get", "delete"},
    }
    operations = [operation for item in document["paths"].values() for operation in item.values()]
    assert len({operation["operationId"] for operation in operations}) == 7
    assert all(operation["summary"] and operation["description"] for operation in operations)
    parameters = {
        path: {p["name"] for operation in item.values() for p in operation.get("parameters", [])}
        for path, item in document["paths"].items()
    }
    assert list(parameters.values()) == [{"limit", "cursor"}, {"id"}, {"id"}, {"session", "limit", "cursor"}, {"ref"}]


async def test_the_description_is_true() -> None:
    """The described fields are the fields of the answers, errors included, and bytes are described as bytes."""
    async with client_of(await filled_store()) as client:
        document = (await client.get("/openapi.json")).json()
        for path, item in (("sessions", f"sessions/{SESSION}"), ("originals", None)):
            listed = (await client.get(f"/{path}")).json()
            described = answers_of(document, f"/ullage/v1/{path}", "get")["200"]
            assert set(described["properties"]) == set(described["required"]) == set(listed)
            element = resolved(document, described["properties"]["data"]["items"])
            assert set(element["properties"]) == set(element["required"]) == set(listed["data"][0])
            if item is not None:
                one = answers_of(document, "/ullage/v1/sessions/{id}", "get")["200"]
                assert set(one["properties"]) == set((await client.get(f"/{item}")).json())
        failed = (await client.get("/sessions/unknown")).json()
    for path, methods in document["paths"].items():
        for method in methods:
            answers = answers_of(document, path, method)
            errors = [schema for status, schema in answers.items() if status >= "400"]
            assert {"401", "503"} < set(answers)
            assert all(set(schema["properties"]) == set(failed) for schema in errors)
    assert answers_of(document, "/ullage/v1/sessions/{id}", "delete")["204"] is None
    download = document["paths"]["/ullage/v1/originals/{ref}"]["get"]["responses"]["200"]["content"]
    assert set(download) == {"application/octet-stream"}
