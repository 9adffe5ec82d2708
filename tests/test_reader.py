"""Reads are answered from the store, else from the request; every failure is an answer."""

from __future__ import annotations

import json
import time
from typing import Any

import msgspec
import pytest

from proxy.compaction import Compacted
from proxy.core.intercept import ToolUse
from proxy.errors import Unavailable
from proxy.reader import Reader, ReadScope
from proxy.store.base import Erased, Original, StoreOptions
from tests.core.test_plan import BIG, asked
from tests.test_compaction import COUNTER, Desk, Troubled

pytestmark = pytest.mark.anyio


class Fading(Troubled):
    """A store that loses originals, or cannot be asked."""

    is_empty = False
    is_down = False

    async def get_original(self, tenant: str | None, ref: str) -> Original | Erased | None:
        """Find, lose or fail."""
        if self.is_down:
            raise Unavailable("gone")
        return None if self.is_empty else await super().get_original(tenant, ref)


class Table:
    """A reader beside a compactor on one store."""

    def __init__(self) -> None:
        self.store = Fading(StoreOptions(), time.time)
        self.desk = Desk(self.store)
        self.reader = Reader(self.store, self.desk.compactor.adapter, COUNTER)

    async def read(self, compacted: Compacted, tenant: str = "t", **arguments: Any) -> str:
        """Answer a read in the scope of a request."""
        scope = ReadScope(tenant, compacted.ledger, compacted.history, compacted.plan, read_tokens=2000)
        return await self.reader.answer(ToolUse("h", "read_offloaded", json.dumps(arguments)), scope)


async def offloaded(table: Table) -> tuple[Compacted, str]:
    """Offload a result; return the request and its ref."""
    compacted = await table.desk.compact(asked())
    (entry,) = compacted.plan.stubs.values()
    return compacted, entry.ref


async def test_rows_and_hits() -> None:
    """Ranges and searches give the original's own rows."""
    table = Table()
    compacted, ref = await offloaded(table)
    assert (await table.read(compacted, ref=ref, offset=2, limit=2)).endswith("\nline 0001\nline 0002")
    assert "100: line 0099" in await table.read(compacted, ref=ref, pattern="line 0099$")


async def test_the_index_and_the_history() -> None:
    """The index names what was moved out; the history has every message, moved texts whole."""
    table = Table()
    compacted, ref = await offloaded(table)
    assert f"{ref} · result · f ·" in await table.read(compacted, ref="index")
    history = await table.read(compacted, ref="history")
    assert "--- message 3 · tool · z · f ---\nline 0000" in history


async def test_the_history_holds_what_the_client_no_longer_sends() -> None:
    """A client that trims its front leaves nothing behind: the record has it, with originals put back."""
    table = Table()
    told = [*asked(), {"role": "assistant", "content": "ok"}, {"role": "user", "content": "more"}]
    await table.desk.compact(told)
    trimmed = await table.desk.compact([*told[1:], {"role": "assistant", "content": "end"}])
    assert trimmed.plan.recognition.shift == 1
    history = await table.read(trimmed, ref="history")
    assert history.splitlines()[1:3] == ["--- message 1 · user ---", "x"]
    rest = [*told[3:], {"role": "assistant", "content": "end"}, {"role": "user", "content": "?"}]
    later = await table.desk.compact(rest)
    assert later.plan.recognition.shift == 3
    assert "line 0299" in await table.read(later, ref="history", pattern="line 0299")


async def test_foreign_and_later_refs_are_unknown() -> None:
    """A ref of another history is refused in the words for one that never was."""
    table = Table()
    compacted, ref = await offloaded(table)
    stranger = await table.desk.compact([{"role": "user", "content": "other"}])
    refused = await table.read(stranger, ref=ref)
    assert refused == await table.read(stranger, ref="off_" + "a" * 26)
    opening = await table.desk.compact(asked()[:1])
    shared = msgspec.structs.replace(opening, ledger=compacted.ledger)
    assert await table.read(shared, ref=ref) == refused, "what was moved out later is not part of this history"
    assert ref not in await table.read(shared, ref="index")


async def test_a_lost_original_is_read_from_the_request_and_put_again() -> None:
    """What the store lost the request still carries."""
    table = Table()
    compacted, ref = await offloaded(table)
    await table.store.delete_session("t", compacted.ledger.id)
    assert "line 0000" in await table.read(compacted, ref=ref, limit=1)
    assert isinstance(await table.store.get_original("t", ref), Original)


async def test_a_store_that_is_down_does_not_stop_reading_what_is_at_hand() -> None:
    """Texts of the request are read from it; others are refused for now, not for good."""
    table = Table()
    compacted, ref = await offloaded(table)
    table.store.is_down = True
    assert "line 0000" in await table.read(compacted, ref=ref, limit=1)
    without = msgspec.structs.replace(compacted, plan=msgspec.structs.replace(compacted.plan, stubs={}))
    assert "not final" in (await table.read(without, ref=ref)).lower()


async def test_expired_and_erased_are_final() -> None:
    """What is gone is said to be gone, each in its own words."""
    table = Table()
    compacted, ref = await offloaded(table)
    without = msgspec.structs.replace(compacted, plan=msgspec.structs.replace(compacted.plan, stubs={}))
    table.store.is_empty = True
    expired = await table.read(without, ref=ref)
    table.store.is_empty = False
    await table.store.erase_original("t", ref)
    erased = await table.read(compacted, ref=ref)
    assert "final" in expired.lower()
    assert "final" in erased.lower()
    assert expired != erased
    assert BIG[:20] not in erased


async def test_unclear_arguments_are_explained() -> None:
    """Neither broken JSON nor a bad pattern is an error of the request."""
    table = Table()
    compacted, ref = await offloaded(table)
    assert "([" not in BIG
    assert not (await table.read(compacted, ref=ref, pattern="([")).startswith("@@")
    scope = ReadScope("t", compacted.ledger, compacted.history, compacted.plan, read_tokens=2000)
    assert not (await table.reader.answer(ToolUse("h", "r", "no json"), scope)).startswith("@@")
