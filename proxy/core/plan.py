"""Deciding: which texts of this history are stubs, which hidden turns come back, what the ledger gains.

What holds here:

- What the ledger knows is applied as it was decided, whatever today's policy says: a change of policy never rewrites
  decisions taken. Policies see only texts that no earlier request of this session held.
- A stub and the tool that reads it are one decision: where the tool cannot be declared there is no stub and no hidden
  turn. Only if the raw texts would not fit are there stubs that say they cannot be read here; these are decided anew
  for each request, and nothing of them goes into the ledger.
- The plan is a pure function of the history, the ledger and the terms, so a lost race is answered by planning again on
  the newer ledger.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from proxy.core.bare import find_bare
from proxy.core.fold import Fold, find_fold
from proxy.core.history import Adapter, History, Slot, text_bytes
from proxy.core.ledger import AnyEntry, Began, HiddenTurn, Offloaded, Recognition, in_force
from proxy.core.memo import Memo
from proxy.core.policy import Candidate, Offload, Policy, View
from proxy.core.rows import count_lines
from proxy.core.stub import StubSpec, is_worthwhile, make_ref, render_stub

Place = tuple[int, int]  # index of the message, number of the text in it
_FIRST_LINE_CHARACTERS = 80


class Terms(msgspec.Struct, frozen=True):
    """What holds for one request: its policies, and whether the reading tool can be declared and called."""

    policies: tuple[Policy, ...]
    reader: str | None  # name for the reading tool; None: it cannot be declared in this request
    may_offload: bool  # False: nothing new leaves (the model cannot call the tool in this turn)
    has_tools: bool  # the client declares tools
    offer: str | None = None  # name for the tool that asks for a compaction; None: it is not offered
    refused: frozenset[str] = frozenset()  # refs that were erased for good: their texts stay
    room_tokens: int | None = None  # what fits at most, counted as estimates are; None: nobody knows


class Fresh(msgspec.Struct, frozen=True):
    """A new decision with the text it is about."""

    entry: Offloaded
    text: str


class Plan(msgspec.Struct, frozen=True):
    """What becomes of one request."""

    recognition: Recognition
    reader: str | None = None  # declare the reading tool under this name
    offer: str | None = None  # and the tool that asks for a compaction under this
    stubs: dict[Place, Offloaded] = {}
    grafts: dict[int, HiddenTurn] = {}  # by index of the visible message
    fresh: tuple[Fresh, ...] = ()
    entries: tuple[AnyEntry, ...] = ()  # to be appended to the ledger
    fold: Fold | None = None  # the block in force
    bare: frozenset[int] = frozenset()  # messages that are sent without their reasoning
    is_over: bool = False  # does not fit, whatever is taken out


class Stubs:
    """Renders stubs, each once: the text of a stub depends on the original and its ledger entry alone."""

    def __init__(self, count: Callable[[str], int], capacity_bytes: int = 16_000_000) -> None:
        self.count = count
        self._memo: Memo[tuple[str, str, int, int], str] = Memo(capacity_bytes)

    def render(self, entry: Offloaded, text: Callable[[], str]) -> str:
        """Return the stub of an entry; `text` gives the original when it has to be rendered."""
        key = (entry.ref, entry.reader, entry.head_lines, entry.tail_lines)
        stub = self._memo.get(key)
        if stub is None:
            spec = StubSpec(
                ref=entry.ref,
                tool=entry.reader or None,
                kind=entry.kind,
                tokens=entry.tokens,
                lines=entry.lines,
                head_lines=entry.head_lines,
                tail_lines=entry.tail_lines,
            )
            stub = render_stub(text(), spec, self.count)
            self._memo.put(key, stub, weight=len(stub) + 200)
        return stub


class Planner:
    """Makes plans for one wire format with one tenant secret."""

    def __init__(self, adapter: Adapter, secret: bytes, stubs: Stubs) -> None:
        self._adapter = adapter
        self._secret = secret
        self._stubs = stubs

    def plan(self, history: History, recognition: Recognition, root: bytes, terms: Terms) -> Plan:
        """Decide about a history; `root` is what a ledger without entries begins with."""
        ledger = recognition.ledger
        root = ledger.root or root
        if terms.reader is None:
            return self._plan_unreadable(history, recognition, root, terms)
        fresh = self._decide(history, recognition, root, terms) if terms.may_offload else ()
        stubs = _named(_in_force(history, recognition, [f.entry for f in fresh]), terms.reader)
        entries: tuple[AnyEntry, ...] = tuple(f.entry for f in fresh)
        if entries and not ledger.root:
            entries = (Began(root), *entries)
        grafts = _grafts(history, recognition)
        is_declared = terms.has_tools or bool(stubs) or ledger.reader is not None or bool(ledger.compactions)
        return Plan(
            recognition=recognition,
            reader=terms.reader if is_declared else None,
            offer=terms.offer if is_declared else None,
            stubs=stubs,
            grafts=grafts,
            fresh=fresh,
            entries=entries,
            fold=find_fold(history, recognition),
            bare=find_bare(history, recognition, grafts),
        )

    def _plan_unreadable(self, history: History, recognition: Recognition, root: bytes, terms: Terms) -> Plan:
        """Decide where nothing can be read back: everything is sent raw if it fits, else without the large texts.

        A block stays all the same: a session that was compacted did not fit.
        """
        fold, bare = find_fold(history, recognition), find_bare(history, recognition, {})
        gone = 0 if fold is None else sum(history.facts[i].estimated_tokens for i in fold.leaving(history))
        if terms.room_tokens is None or history.estimated_tokens - gone <= terms.room_tokens:
            return Plan(recognition, fold=fold, bare=bare)
        # These decisions hold for this request alone, so what an earlier one sent raw may be taken, too.
        anew = msgspec.structs.replace(recognition, known=history.leading)
        fresh = self._decide(history, anew, root, terms)
        stubs = _in_force(history, anew, [f.entry for f in fresh])
        return Plan(recognition, stubs=_named(stubs, ""), fresh=fresh, fold=fold, bare=bare)

    def _decide(self, history: History, known: Recognition, root: bytes, terms: Terms) -> tuple[Fresh, ...]:
        candidates = list(undecided(history, known))
        if not candidates or not terms.policies:
            return ()

        def text_of(candidate: Candidate) -> str:
            return self._adapter.text(history.messages[candidate.message], candidate.at)

        view = View(
            candidates,
            count=lambda c: self._stubs.count(text_of(c)),
            characters=lambda c: len(text_of(c)),
        )
        out: dict[tuple[str, bytes], Fresh] = {}
        for policy in terms.policies:
            for edit in policy.edits(view):
                candidate = edit.candidate
                view.taken.add((candidate.message, candidate.at))
                key = (candidate.kind, candidate.exact)
                if key not in out:
                    entry = self.entry(edit, text_of(candidate), policy.name(), root, terms.reader or "")
                    since = candidate.message - history.leading + known.shift
                    fresh = Fresh(msgspec.structs.replace(entry, since=since), text_of(candidate))
                    if entry.ref not in terms.refused and self._is_worth_it(fresh):
                        out[key] = fresh
        return tuple(out.values())

    def entry(self, edit: Offload, text: str, policy: str, root: bytes, reader: str) -> Offloaded:
        """Return the decision to move a text out; its position is the caller's to set."""
        candidate = edit.candidate
        return Offloaded(
            exact=candidate.exact,
            since=0,
            ref=make_ref(self._secret, root, text_bytes(text)),
            kind=candidate.kind,
            policy=policy,
            reason=edit.reason,
            tokens=self._stubs.count(text),
            lines=count_lines(text),
            head_lines=edit.head_lines,
            tail_lines=edit.tail_lines,
            reader=reader,
            tool=None if candidate.tool is None else _storable(candidate.tool),
            first_line=_storable(text[:_FIRST_LINE_CHARACTERS].split("\n", 1)[0].strip()),
        )

    def in_force(self, history: History, known: Recognition, reader: str) -> dict[Place, Offloaded]:
        """Return the stubs that a ledger has for a history, with this name of the reading tool."""
        return _named(_in_force(history, known, ()), reader)

    def _is_worth_it(self, fresh: Fresh) -> bool:
        stub = self._stubs.render(fresh.entry, lambda: fresh.text)
        return is_worthwhile(stub, fresh.text, fresh.entry.tokens, self._stubs.count)


def _storable(text: str) -> str:
    """Return the text without lone surrogates, which have no place in a ledger."""
    return text.encode("utf-8", "replace").decode()


def undecided(history: History, known: Recognition) -> Sequence[Candidate]:
    """Return the texts that nothing was decided about: those of new messages, where only an anchor is known of all."""
    first = history.leading if known.anchored else known.known
    return [
        _candidate(index, slot, history)
        for index in range(max(first, history.leading), len(history))
        for slot in history.facts[index].slots
        if slot.kind != "input" and _decided(slot, index, history, known) is None
    ]


def _candidate(index: int, slot: Slot, history: History) -> Candidate:
    block = history.block_at(index) if slot.kind == "result" else None
    return Candidate(
        message=index,
        at=slot.at,
        kind=slot.kind,
        exact=slot.exact,
        size_bytes=slot.size_bytes,
        tool=history.tool_of(index) if slot.kind == "result" else None,
        block=None if block is None else block.start,
    )


def _decided(slot: Slot, index: int, history: History, known: Recognition) -> Offloaded | None:
    entries = known.ledger.offloads.get((slot.kind, slot.exact))
    if entries is None:
        return None
    return in_force(entries, index - history.leading + known.shift, history.length + known.shift)


def _in_force(history: History, known: Recognition, fresh: Sequence[Offloaded]) -> dict[Place, Offloaded]:
    if fresh:
        known = msgspec.structs.replace(known, ledger=known.ledger.extend(fresh))
    if not known.ledger.offloads:
        return {}
    out: dict[Place, Offloaded] = {}
    for index in range(history.leading, len(history)):
        for slot in history.facts[index].slots:
            entry = _decided(slot, index, history, known)
            if entry is not None:
                out[index, slot.at] = entry
    return out


def _named(stubs: dict[Place, Offloaded], reader: str) -> dict[Place, Offloaded]:
    """Return the stubs with the name under which the tool is declared now.

    It changes where the client comes to have a tool of that name: a change of the tools, so no cached prefix is lost.
    """
    return {
        place: entry if entry.reader == reader else msgspec.structs.replace(entry, reader=reader)
        for place, entry in stubs.items()
    }


def _grafts(history: History, known: Recognition) -> dict[int, HiddenTurn]:
    if not known.ledger.hidden:
        return {}
    out: dict[int, HiddenTurn] = {}
    for index in range(history.leading, len(history)):
        facts = history.facts[index]
        if facts.role == "assistant":
            turn = known.ledger.hidden_at(index - history.leading + known.shift, facts.match)
            if turn is not None:
                out[index] = turn
    return out
