"""What calls do, in the dialects of many agents."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.deeds import Deed, deeds

PATCH = (
    "*** Begin Patch\n*** Update File: src/a.py\n@@\n-x\n+y\n*** Move to: src/b.py\n*** Add File: c.py\n*** End Patch"
)
DIFF = "--- a/src/a.py\t2020\n+++ b/src/a.py\t2020\n@@ -1 +1 @@\n-x\n+y\n--- a/gone.py\n+++ /dev/null\n"


def read(*paths: str) -> Deed:
    """Files were read."""
    return Deed(read=paths)


def changed(*paths: str) -> Deed:
    """Files were changed."""
    return Deed(changed=paths)


def ran(*commands: str) -> Deed:
    """Commands were run."""
    return Deed(commands=commands)


@pytest.mark.parametrize(
    ("tool", "fields", "expected"),
    [
        # Codex
        ("shell", {"command": ["bash", "-lc", "make"], "workdir": "/w"}, ran("make")),
        ("shell", {"command": ["git", "log", "-3"]}, ran("git log -3")),
        ("shell", {"command": ["apply_patch", PATCH]}, changed("src/a.py", "src/b.py", "c.py")),
        (
            "shell",
            {"command": ["bash", "-lc", f"apply_patch <<'E'\n{PATCH}\nE"]},
            changed("src/a.py", "src/b.py", "c.py"),
        ),
        ("exec_command", {"cmd": "ls"}, ran("ls")),
        ("container.exec", {"cmd": ["/bin/zsh", "-c", "ls"]}, ran("ls")),
        ("apply_patch", {"input": PATCH}, changed("src/a.py", "src/b.py", "c.py")),
        # Claude Code
        ("Bash", {"command": "npm test", "description": "Runs tests"}, ran("npm test")),
        ("Read", {"file_path": "a.py", "offset": 3}, read("a.py")),
        ("Edit", {"file_path": "a.py", "old_string": "x", "new_string": "y"}, changed("a.py")),
        ("MultiEdit", {"file_path": "a.py", "edits": []}, changed("a.py")),
        ("NotebookEdit", {"notebook_path": "a.ipynb", "new_source": "x"}, changed("a.ipynb")),
        ("Grep", {"pattern": "x", "path": "src"}, read("src")),
        ("str_replace_based_edit_tool", {"command": "view", "path": "a.py"}, read("a.py")),
        ("str_replace_based_edit_tool", {"command": "insert", "path": "a.py"}, changed("a.py")),
        # OpenHands
        ("execute_bash", {"command": "pytest", "is_input": "false"}, ran("pytest")),
        ("execute_ipython_cell", {"code": "print(1)"}, ran("print(1)")),
        ("str_replace_editor", {"command": "create", "path": "/w/a.py", "file_text": "x"}, changed("/w/a.py")),
        ("str_replace_editor", {"command": "view", "path": "/w/a.py"}, read("/w/a.py")),
        # Cline, Roo
        ("execute_command", {"command": "ls", "requires_approval": False}, ran("ls")),
        ("read_file", {"path": "a.py"}, read("a.py")),
        ("write_to_file", {"path": "a.py", "content": "x"}, changed("a.py")),
        ("replace_in_file", {"path": "a.py", "diff": "<<<<<<< SEARCH"}, changed("a.py")),
        ("apply_diff", {"diff": DIFF}, changed("src/a.py")),
        ("read_file", {"files": [{"path": "a"}, {"path": "b"}]}, read("a", "b")),
        ("read_many_files", {"paths": ["a", "b"]}, read("a", "b")),
        # others
        ("write_file", {"absolute_path": "/a", "content": "x"}, changed("/a")),
        ("create_file", {"filePath": "a.py", "code": "import os"}, changed("a.py")),
        ("save_code", {"code": "import os"}, Deed()),
        ("run_python", {"code": "import os"}, ran("import os")),
        ("rename", {"old_path": "a", "new_path": "b"}, changed("a", "b")),
        ("edit_file", {"target_file": "a", "code_edit": "x"}, changed("a")),
        ("mcp__editor__read_file", {"path": "a"}, read("a")),
        ("functions.shell", {"command": ["ls"]}, ran("ls")),
        ("weather", {"city": "Bern"}, Deed()),
    ],
)
def test_what_agents_do(tool: str, fields: dict[str, object], expected: Deed) -> None:
    """A path, a command, a patch: whatever it is called and however it is written."""
    assert deeds(tool, json.dumps(fields)) == [expected]


def test_a_patch_may_be_all_there_is() -> None:
    """A custom tool is called with bare text."""
    assert deeds("apply_patch", PATCH) == [changed("src/a.py", "src/b.py", "c.py")]


@pytest.mark.parametrize(
    ("tool", "arguments", "is_told"),
    [
        ("TodoWrite", '{"todos": [{"content": "x"}]}', True),
        ("write_todos", '{"todos": [{"content": "x"}]}', True),
        ("update_plan", '{"plan": [{"step": "x", "status": "pending"}]}', True),
        ("update_todo_list", '{"todos": "[x] one\\n[ ] two"}', True),
        ("task_tracker", '{"command": "plan", "task_list": [{"title": "x"}]}', True),
        ("planner", '{"plan": ["x"]}', True),
        ("task_tracker", '{"command": "view"}', False),
        ("TodoRead", "{}", False),
        ("TodoRead", '{"id": 3}', False),
        ("subscribe", '{"plan": "basic"}', False),
    ],
)
def test_to_do_lists(tool: str, arguments: str, *, is_told: bool) -> None:
    """What writes the list tells it as it was written; what reads it tells nothing."""
    assert [deed.todo for deed in deeds(tool, arguments)] == [arguments if is_told else ""]


def test_a_list_beside_a_call() -> None:
    """Some agents tell how far they are with whatever they do."""
    arguments = json.dumps({"command": "ls", "task_progress": "- [x] one"})
    assert deeds("execute_command", arguments) == [Deed(commands=("ls",), todo="- [x] one")]


@pytest.mark.parametrize(
    ("tool", "fields"),
    [
        ("use_mcp_tool", {"server_name": "fs", "tool_name": "write_file", "arguments": '{"path": "a"}'}),
        ("call_tool", {"name": "write_file", "arguments": {"path": "a"}}),
        ("run", {"tool": "call_tool", "input": {"name": "write_file", "args": {"path": "a"}}}),
    ],
)
def test_calls_through_another_tool(tool: str, fields: dict[str, object]) -> None:
    """What counts is the tool inside."""
    assert deeds(tool, json.dumps(fields)) == [changed("a")]


def test_several_calls_in_one() -> None:
    """Each of them is a deed of its own."""
    uses = [
        {"recipient_name": "functions.read_file", "parameters": {"path": "a"}},
        {"recipient_name": "functions.shell", "parameters": {"command": ["ls"]}},
    ]
    assert deeds("multi_tool_use.parallel", json.dumps({"tool_uses": uses})) == [read("a"), ran("ls")]


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["path", "tool_name", "arguments", "command", "x\ud800"]), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(st.text(), st.text() | VALUES.map(json.dumps))
def test_whatever_is_called_says_something_sound(tool: str, arguments: str) -> None:
    """Nothing raises, and nothing blank is told."""
    for deed in deeds(tool, arguments):
        assert all(text.strip() for text in (*deed.read, *deed.changed, *deed.commands))
