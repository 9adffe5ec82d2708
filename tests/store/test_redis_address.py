"""What a URL of a Redis store says."""

from __future__ import annotations

import pytest
from msgspec import structs

from proxy.errors import ConfigError
from proxy.store import StoreOptions, open_store
from proxy.store.redis import RedisStore
from proxy.store.redis_address import Address, parse_address

ONE = Address("standalone", (("host", 6379),))


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("redis://host", ONE),
        ("redis://host/", ONE),
        ("redis://host:7000/3", structs.replace(ONE, hosts=(("host", 7000),), database=3)),
        ("redis://[::1]:7000", structs.replace(ONE, hosts=(("::1", 7000),))),
        ("redis://user:p%40ss%3A@host", structs.replace(ONE, username="user", password="p@ss:")),
        ("redis://:pass@host", structs.replace(ONE, password="pass")),
        ("redis://user@host", structs.replace(ONE, username="user")),
        ("redis://host?prefix=my.app", structs.replace(ONE, prefix="my.app")),
        ("rediss://host", structs.replace(ONE, tls=True)),
        ("rediss://host?ca_file=/x/ca%20.pem", structs.replace(ONE, tls=True, ca_file="/x/ca .pem")),
        (
            "redis+sentinel://:p@a,b:1,[::2]/main/4?sentinel_username=u&sentinel_password=q",
            Address(
                "sentinel",
                (("a", 26379), ("b", 1), ("::2", 26379)),
                service="main",
                database=4,
                password="p",
                sentinel_username="u",
                sentinel_password="q",
            ),
        ),
        ("rediss+cluster://a:1,b", Address("cluster", (("a", 1), ("b", 6379)), tls=True)),
    ],
)
def test_what_a_url_says(url: str, address: Address) -> None:
    """Hosts, credentials, database and options are found, and decoded."""
    assert parse_address(url) == address
    assert isinstance(open_store(url, StoreOptions()), RedisStore)


@pytest.mark.parametrize(
    ("url", "what"),
    [
        ("redis:host", "two slashes"),
        ("redis://", "host is missing"),
        ("redis://a,", "host is missing"),
        ("redis://:7000", "name or name:port"),
        ("redis://host:x", "name or name:port"),
        ("redis://host:0", "no port 0"),
        ("redis://host:70000", "no port 70000"),
        ("redis://a,b", "one host"),
        ("redis://host/name", "database is a number"),
        ("redis://host/1/2", "database is a number"),
        ("redis+sentinel://host", "name of the service"),
        ("redis+sentinel://host/main/x", "database is a number"),
        ("redis+cluster://host/1", "no database but 0"),
        ("redis://host?colour=red", '"colour" is not known; there are ca_file'),
        ("redis://host?ca_file=x", 'use "rediss"'),
        ("redis://host?sentinel_password=x", "for Sentinels"),
        ("redis://host?prefix=", "must not be empty"),
        ("redis://host?prefix={a}", "letters, digits"),
    ],
)
def test_a_wrong_url_is_refused(url: str, what: str) -> None:
    """The message says what is wrong; no password is in it."""
    with pytest.raises(ConfigError, match=what) as caught:
        open_store(url, StoreOptions())
    assert caught.value.message.startswith("store.url: ")
    assert caught.value.param == "store.url"
