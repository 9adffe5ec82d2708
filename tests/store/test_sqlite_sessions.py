"""How a session of another store gets its row in the embedded one."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from msgspec import structs

from proxy.store.base import Session
from proxy.store.sqlite_queries import get_session
from proxy.store.sqlite_schema import connect_writer, prepare
from proxy.store.sqlite_sessions import put_session

ROW = Session("a", "t", "key", 5.0, 7.0, "model", "chat", "deep", 3, 4, 50, 40, 2, 1, 6, 0, 0)


def test_a_row_is_made_or_replaced(tmp_path: Path) -> None:
    """Figures and times are as they were given last, texts as a file can hold them."""
    with closing(connect_writer(tmp_path / "store.db")) as db:
        prepare(db)
        put_session(db, structs.replace(ROW, model="\ud800"), 3)
        assert get_session(db, "t", "a") == structs.replace(ROW, model="?")
        put_session(db, structs.replace(ROW, reads=8), 1)
        assert get_session(db, None, "a") == structs.replace(ROW, reads=8)
        assert db.execute("SELECT newest FROM ledger").fetchall() == [(3,)]
