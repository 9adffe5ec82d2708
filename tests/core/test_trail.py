"""The trail: what is read off calls and their answers, bounded, whatever the arguments are."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.trail import Act, render_trail


def act(tool: str, answer: str = "", **fields: object) -> Act:
    """A call with these arguments and its answer."""
    return Act(tool, json.dumps(fields), answer)


def section(trail: str, title: str) -> str | None:
    """What a trail lists under a title."""
    _, found, rest = trail.partition(f"- {title}: ")
    return rest.split("\n- ")[0] if found else None


@pytest.mark.parametrize(
    ("tool", "title"),
    [
        ("read_file", "files read"),
        ("grep", "files read"),
        ("Write", "files changed"),
        ("str_replace", "files changed"),
        ("apply_patch", "files changed"),
        ("deleteFile", "files changed"),
    ],
)
@pytest.mark.parametrize("key", ["path", "file_path", "filename", "notebook_path"])
def test_the_tool_tells_what_happened_to_a_file(tool: str, title: str, key: str) -> None:
    """A file stands once under what its tool does, whatever the argument is called."""
    assert render_trail([act(tool, **{key: "src/a.py"})] * 2) == f"- {title}: src/a.py"


def test_what_was_changed_is_not_told_as_read() -> None:
    """Changing outdoes reading, before and after."""
    trail = render_trail([act("read", path="a"), act("read", path="b"), act("write", path="a"), act("read", path="a")])
    assert trail == "- files changed: a\n- files read: b"


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("view", "- files read: a.py"),
        ("str_replace", "- files changed: a.py"),
        ("create", "- files changed: a.py"),
        ("cat a.py | wc", "- files changed: a.py\n- commands, newest last: \n  cat a.py | wc"),
    ],
)
def test_a_verb_of_an_editor_is_no_command(command: str, expected: str) -> None:
    """One tool that views and edits changes only what it edits, and its verbs are no commands."""
    assert render_trail([act("str_replace_based_edit_tool", command=command, path="a.py")]) == expected


@pytest.mark.parametrize(
    ("answer", "end"),
    [
        ("ok", ""),
        ("3 passed\nexit code: 0", " -> exit 0"),
        ("Exit code 1\n" + "x" * 5000, " -> exit 1"),
        ("<returncode>127</returncode>" + "x" * 5000, " -> exit 127"),
        ("Process exited with code 2", " -> exit 2"),
        ("exit status: -9", " -> exit -9"),
        ("return code -11", " -> exit -11"),
        ('{"output":"x","metadata":{"exit_code": 1,"duration_seconds":0.1}}', " -> exit 1"),
        ("x" * 300 + "exit code 5" + "x" * 5000, ""),
    ],
)
def test_commands_say_how_they_ended(answer: str, end: str) -> None:
    """The exit code is read at either end of the answer, its sign included."""
    assert render_trail([act("bash", answer, command="pytest  -q\n")]) == (
        f"- commands, newest last: \n  pytest -q{end}"
    )


def test_one_answer_to_several_calls_ends_none_of_them() -> None:
    """Which of them ended so is not said; its error still is."""
    uses = [{"recipient_name": "shell", "parameters": {"command": ["bash", "-lc", run]}} for run in ("make", "ls")]
    trail = render_trail([act("multi_tool_use.parallel", "error: no rule\nexit code 2", tool_uses=uses)])
    assert section(trail, "commands, newest last") == "\n  make\n  ls"
    assert section(trail, "last errors reported by tools") == "\n  error: no rule"


@pytest.mark.parametrize(
    ("answer", "line"),
    [
        ("all good, no errors", None),
        ("warning\n  main.c:3: error: no `;`\nmake: *** failed", "main.c:3: error: no `;`"),
        ('Traceback (most recent call last):\n  File "a.py", line 1\nTypeError: no str', "TypeError: no str"),
        ("FATAL: no space left", "FATAL: no space left"),
        ("error: early" + "\n" * 5000, None),
    ],
)
def test_an_answer_tells_its_error(answer: str, line: str | None) -> None:
    """One line per answer that names the error: the first one, of a traceback the last one."""
    assert section(render_trail([act("f", answer)]), "last errors reported by tools") == (line and f"\n  {line}")


@pytest.mark.parametrize("tool", ["TodoWrite", "write_todos", "to_do"])
def test_the_latest_list_is_told_verbatim(tool: str) -> None:
    """The newest to-do list counts; reading it, or another tool, does not change it."""
    newest = '{"todos":  [{"content": "x",\n "status": "done"}]}'
    acts = [Act(tool, '{"todos": ["old"]}', ""), Act(tool, newest, ""), Act("TodoRead", "{}", ""), act("f", x=1)]
    assert render_trail(acts) == f"- latest to-do list: {newest}"


def test_a_long_list_does_not_bring_back_an_old_one() -> None:
    """What is too long is cut: an outdated list would be a lie."""
    told = section(render_trail([act("todo", todos="old"), act("todo", todos="new" * 5000)]), "latest to-do list")
    assert told is not None
    assert told.startswith('{"todos": "newnew')
    assert told.endswith("…")
    assert len(told) < 1300


def test_the_newest_are_kept() -> None:
    """Where there is too much the oldest goes; a file that is used again is not old."""
    files = [act("read", path=f"r{i:03}") for i in range(100)]
    edits = [act("edit", path=f"e{i:03}") for i in range(100)]
    runs = [act("sh", f"error: {i:03}", cmd=f"run {i:03}") for i in range(100)]
    trail = render_trail([*files, *edits, *runs, act("read", path="r000"), act("edit", path="e001")])
    assert section(trail, "files read") == ", ".join([*(f"r{i:03}" for i in range(71, 100)), "r000"])
    assert section(trail, "files changed") == ", ".join([*(f"e{i:03}" for i in range(71, 100)), "e001"])
    assert section(trail, "commands, newest last") == "".join(f"\n  run {i:03}" for i in range(92, 100))
    assert section(trail, "last errors reported by tools") == "".join(f"\n  error: {i:03}" for i in range(97, 100))


def test_lines_are_cut() -> None:
    """A script of many lines becomes the beginning of one line."""
    told = section(render_trail([act("python", code="print(1)\n" * 1000)]), "commands, newest last")
    assert told is not None
    assert told.startswith("\n  print(1) print(1)")
    assert len(told) < 170


@pytest.mark.parametrize(
    "arguments",
    [
        "",
        "{",
        "null",
        "3",
        '"path"',
        '["path", "a"]',
        '{"path": null, "command": 3}',
        '{"path": [null, 3], "command": ["ls", 3]}',
        '{"path": {"file": "a"}}',
        '{"path": "  "}',
        "[" * 100_000,
        '{"x": ' + "9" * 5000 + "}",
    ],
)
def test_arguments_that_name_nothing_say_nothing(arguments: str) -> None:
    """What is no object of strings is passed over."""
    assert render_trail([Act("read", arguments, "fine")]) == ""


def test_no_acts_no_trail() -> None:
    """There is no heading without anything under it."""
    assert render_trail([]) == ""


VALUES = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=6,
)
KEYS = st.sampled_from(["path", "file", "command", "cmd", "code", "todos"]) | st.text(max_size=5)
ANY_TEXT = st.text() | st.text(st.sampled_from("error:exit code -1\n\ud800\u2028 "))
ARGUMENTS = ANY_TEXT | VALUES.map(json.dumps) | st.dictionaries(KEYS, VALUES | ANY_TEXT, max_size=4).map(json.dumps)
TOOLS = st.sampled_from(["read", "write", "bash", "todo", "TodoRead"]) | st.text()


@given(st.lists(st.builds(Act, TOOLS, ARGUMENTS, ANY_TEXT), max_size=60))
def test_whatever_the_calls_are_the_trail_is_bounded_and_can_be_stored(acts: list[Act]) -> None:
    """Nothing raises, nothing grows without end, and no lone surrogate gets into a ledger."""
    trail = render_trail(acts)
    assert len(trail) < 15_000
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(trail)) == trail
