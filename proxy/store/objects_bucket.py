"""A bucket and a prefix in it, or a folder: put, get, list and delete whole objects, with errors that say what to mend.

All calls are bounded in time. The sync calls are for threads and for small objects: a request may take `REQUEST`, a
call with all its attempts about twice that. The `a…` ones are for the event loop and for objects of any size: they take
`ANSWER` and what the bytes need at the least bearable speed.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit

import obstore
from msgspec import Struct
from obstore import exceptions
from obstore.store import AzureStore, GCSStore, LocalStore, S3Store

from proxy.errors import ConfigError, StoreError, Unavailable

T = TypeVar("T")
ObjectStore = S3Store | GCSStore | AzureStore | LocalStore

CONNECT = timedelta(seconds=1.5)
REQUEST = timedelta(seconds=3)
TRANSFER = timedelta(seconds=60)
ANSWER = 5.0  # seconds
SLOWEST = 1024 * 1024  # bytes per second
AT_ONCE = 16  # transfers of one process that run together

_RETRY: Any = {
    "max_retries": 2,
    "retry_timeout": REQUEST,
    "backoff": {"init_backoff": timedelta(milliseconds=50), "max_backoff": timedelta(milliseconds=500), "base": 2},
}
_TRUE = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


class Found(Struct, frozen=True):
    """An object in a list; `modified` is by the clock of the object store."""

    key: str
    modified: datetime


class Bucket:
    """The objects below one place; keys are relative to it."""

    def __init__(self, url: str) -> None:
        """Name a place; nothing is contacted. Raises ConfigError for a URL that names none."""
        self.place = urlsplit(url)._replace(query="", fragment="").geturl()
        self._make = _maker(url)
        self._stores: dict[timedelta, ObjectStore] = {}
        self._limit = asyncio.Semaphore(AT_ONCE)

    def _store(self, timeout: timedelta) -> ObjectStore:
        """Return the client whose requests take at most so long; a folder comes into being with it."""
        if timeout not in self._stores:
            self._stores[timeout] = self._make(timeout)
        return self._stores[timeout]

    @property
    def _quick(self) -> ObjectStore:
        return self._store(REQUEST)

    @property
    def _patient(self) -> ObjectStore:
        return self._store(TRANSFER)

    # -- for threads

    def create(self, key: str, data: bytes) -> bool:
        """Put an object if there is none of that key; returns whether it was put."""
        try:
            obstore.put(self._quick, key, data, mode="create", use_multipart=False)
        except (exceptions.AlreadyExistsError, exceptions.PreconditionError):
            return False
        except Exception as error:  # the library raises several unrelated classes
            raise self._explain(error, "write") from error
        return True

    def put(self, key: str, data: bytes) -> None:
        """Put an object of any size."""
        try:
            obstore.put(self._patient, key, data, use_multipart=False)
        except Exception as error:  # as above
            raise self._explain(error, "write") from error

    def put_all(self, objects: Mapping[str, bytes]) -> None:
        """Put objects side by side; raises Unavailable if one of them could not be put."""
        if len(objects) == 1:
            self.put(*next(iter(objects.items())))
        elif objects:
            with ThreadPoolExecutor(min(len(objects), AT_ONCE)) as threads:
                list(threads.map(self.put, objects.keys(), objects.values()))

    def get(self, key: str) -> bytes | None:
        """Return an object, None if there is none."""
        try:
            return bytes(obstore.get(self._quick, key).bytes())
        except Exception as error:  # as above
            if _is_missing(error):
                return None
            raise self._explain(error, "read") from error

    def get_all(self, keys: Sequence[str]) -> list[bytes | None]:
        """Return objects, None for those that are not there."""
        with ThreadPoolExecutor(min(len(keys), AT_ONCE) or 1) as threads:
            return list(threads.map(self.get, keys))

    def walk(self, prefix: str, after: str | None = None) -> Iterator[list[Found]]:
        """Yield what lies below a prefix (a whole segment of keys), in parts, in the order of keys."""
        try:
            parts: Iterable[Any] = obstore.list(self._quick, f"{prefix}/", offset=after)
            if isinstance(self._quick, LocalStore):  # a folder has no order
                parts = [sorted((meta for part in parts for meta in part), key=lambda meta: meta["path"])]
            for part in parts:
                yield [Found(meta["path"], meta["last_modified"]) for meta in part]
        except Exception as error:  # as above
            raise self._explain(error, "list") from error

    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects; those that are not there are no error."""
        one_by_one = isinstance(self._quick, LocalStore)  # it stops at the first that is missing
        for batch in [[key] for key in keys] if one_by_one else [list(keys)] if keys else []:
            try:
                obstore.delete(self._quick, batch)
            except Exception as error:  # as above
                if not _is_missing(error):
                    raise self._explain(error, "delete") from error

    def delete_below(self, prefix: str) -> None:
        """Delete all that lies below a prefix."""
        for part in self.walk(prefix):
            self.delete([found.key for found in part])

    # -- for the event loop

    async def aput(self, objects: Mapping[str, bytes]) -> None:
        """Put objects side by side; raises Unavailable if one of them could not be put."""
        calls = [self._aput(key, data) for key, data in objects.items()]
        await self._together("write", calls, sum(map(len, objects.values())))

    async def _aput(self, key: str, data: bytes) -> None:
        async with self._limit:
            await obstore.put_async(self._patient, key, data, use_multipart=False)

    async def aget(self, keys: Sequence[str], size_bytes: int = 0) -> list[bytes | None]:
        """Return objects, together about so large, None for those that are not there."""
        return await self._together("read", [self._aget(key) for key in keys], size_bytes)

    async def _aget(self, key: str) -> bytes | None:
        try:
            async with self._limit:
                found = await obstore.get_async(self._patient, key)
                return bytes(await found.bytes_async())
        except Exception as error:
            if _is_missing(error):
                return None
            raise

    async def adelete(self, keys: Sequence[str]) -> None:
        """Delete objects in a thread, as far as that is possible now."""
        if keys:
            with contextlib.suppress(StoreError):
                await asyncio.to_thread(self.delete, keys)

    async def _together(self, doing: str, calls: Sequence[Awaitable[T]], size_bytes: int) -> list[T]:
        """Return what the calls return; raises the first error once all of them have ended."""
        try:
            async with asyncio.timeout(ANSWER + size_bytes / SLOWEST):
                results = await asyncio.gather(*calls, return_exceptions=True)
        except TimeoutError as error:
            raise self._explain(error, doing) from error
        for result in results:
            if isinstance(result, Exception):
                raise self._explain(result, doing) from result
        return [result for result in results if not isinstance(result, BaseException)]

    def _explain(self, error: Exception, doing: str) -> StoreError:
        """Return what an error of the library means for callers."""
        if isinstance(error, StoreError):
            return error
        text = str(error).partition("\n\nDebug source:")[0].strip()
        return Unavailable(f"the store at {self.place} failed to {doing}: {_mend(error, text)}")


def _is_missing(error: Exception) -> bool:
    """Whether an error says that there is no such object; a missing bucket is something else."""
    return isinstance(error, FileNotFoundError) and "NoSuchBucket" not in str(error)


def _mend(error: Exception, text: str) -> str:
    """Return a reason in one line, and what to do about it where that can be told."""
    line = " ".join(text.split())[:300]
    if isinstance(error, FileNotFoundError) or "NoSuchBucket" in text:
        return f"there is no such bucket; create it, or correct store.url ({line})"
    if isinstance(error, exceptions.PermissionDeniedError | exceptions.UnauthenticatedError | PermissionError):
        return f"access is denied; the credential needs to get, put, list and delete objects there ({line})"
    if "169.254.169.254" in text:
        return "there are no credentials; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give the machine a role"
    if isinstance(error, TimeoutError) or "timed out" in text or "timeout" in text.lower():
        return f"it does not answer in time; is it reachable from here? {line}".rstrip()
    return line


Maker = Callable[[timedelta], ObjectStore]


def _maker(url: str) -> Maker:
    """Return what makes clients for a place, having tried it."""
    parts = urlsplit(url)
    if parts.scheme == "file":
        folder = _folder(url)
        return lambda _: LocalStore(folder, mkdir=True)
    if parts.scheme not in ("s3", "gs", "az"):
        raise wrong_url(f'the scheme "{parts.scheme}:" is none of an object store')
    if not parts.netloc or "@" in parts.netloc or ":" in parts.netloc:
        raise wrong_url(
            f'"{parts.scheme}://" is followed by a bucket and perhaps a prefix; credentials come from the usual '
            "variables of the provider"
        )
    make = _remote(
        parts.scheme, parts.netloc, _prefix(parts.path), dict(parse_qsl(parts.query, keep_blank_values=True))
    )
    try:
        make(REQUEST)
    except Exception as error:
        text = " ".join(str(error).partition("\n\nDebug source:")[0].split())
        raise wrong_url(f"the place cannot be used as it is configured: {text}") from error
    return make


def _remote(scheme: str, bucket: str, prefix: str | None, parameters: Mapping[str, str]) -> Maker:
    config = _s3_config(parameters) if scheme == "s3" else {}
    if parameters and scheme != "s3":
        raise wrong_url(f"{', '.join(parameters)}: only s3 URLs have parameters")

    def make(timeout: timedelta) -> ObjectStore:
        kind: Any = {"s3": S3Store, "gs": GCSStore, "az": AzureStore}[scheme]
        client = {"timeout": timeout, "connect_timeout": CONNECT, "allow_http": True}
        made: ObjectStore = kind(bucket, prefix=prefix, client_options=client, retry_config=_RETRY, **config)
        return made

    return make


def _s3_config(options: Mapping[str, str]) -> dict[str, Any]:
    config: dict[str, Any] = {}
    for name, value in options.items():
        if name in ("endpoint", "region"):
            config[name] = value
        elif name == "path_style" and value.lower() in _TRUE:
            config["virtual_hosted_style_request"] = not _TRUE[value.lower()]
        elif name == "path_style":
            raise wrong_url("path_style is true or false")
        else:
            raise wrong_url(f"{name} is no parameter; there are endpoint, region and path_style")
    if "endpoint" in config and urlsplit(config["endpoint"]).scheme not in ("http", "https"):
        raise wrong_url("endpoint is a URL that begins with http:// or https://")
    return config


def _folder(url: str) -> Path:
    parts = urlsplit(url)
    path = unquote(parts.path)
    if parts.netloc or not path.strip("/") or "\0" in path or parts.query:
        raise wrong_url('"file:" is followed by three slashes and the absolute path of a folder')
    return Path(path)


def _prefix(path: str) -> str | None:
    segments = [unquote(segment) for segment in path.split("/") if segment]
    if any(segment in (".", "..") or "/" in segment or "\0" in segment for segment in segments):
        raise wrong_url("a prefix holds no dots alone")
    return "/".join(segments) or None


def wrong_url(what: str) -> ConfigError:
    """Return the error for a URL that names no place."""
    return ConfigError(f"store.url: {what}", param="store.url")
