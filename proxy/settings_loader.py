"""Reads the configuration: flag, `ULLAGE_*`, file, `OPENAI_*`, default; the first that says something wins.

The sources are laid over each other table by table, from the weakest to the strongest, and for every leaf it
is kept where it came from, so that errors and `ullage config show --origin` can say so.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from proxy.errors import ConfigError
from proxy.presets import preset_table, resolve_presets
from proxy.settings import Settings, Upstream
from proxy.store import StoreOptions, open_store
from proxy.tables import Checker, Wrong, dotted, hints_of, suggest
from proxy.tables import Path as KeyPath
from proxy.target import Reach, make_target
from proxy.variables import CONFIG_VARIABLE, OPENAI_VARIABLES, PREFIX, settings_in, unknown_in

DEFAULT_FILE = "ullage.toml"
DEFAULT = "default"

FLAGS = {
    "--host": ("server", "host"),
    "--port": ("server", "port"),
    "--workers": ("server", "workers"),
    "--upstream": ("upstream", "base_url"),
    "--store": ("store", "url"),
}


class Loaded(msgspec.Struct, frozen=True):
    """Settings and where each of them came from; a path that is not in `origins` has its default."""

    settings: Settings
    origins: dict[KeyPath, str]
    file: Path | None
    doubts: tuple[str, ...] = ()  # what is accepted, but hardly meant: sentences for the operator


def source_of(key: KeyPath, origins: Mapping[KeyPath, str]) -> str | None:
    """Return where a value came from: the leaf itself, or one that lies in it or that it lies in."""
    if key in origins:
        return origins[key]
    related = (source for leaf, source in origins.items() if leaf[: len(key)] == key[: len(leaf)])
    return next(related, None)


def load(
    path: Path | None = None,
    environ: Mapping[str, str] | None = None,
    flags: Mapping[str, object] | None = None,
) -> Loaded:
    """Return the checked settings. `flags` are named as in `FLAGS`; None is a flag that was not given.

    Without a path the file is the one of `ULLAGE_CONFIG`, else `ullage.toml` in the working directory if
    there is one.
    Raises ConfigError.
    """
    environ = environ or {}
    file = find_file(path, environ)
    layers = _Layers()
    try:
        for source, key, value in _sources(file, environ, flags or {}):
            layers.lay(source, key, value)
        checker = Checker(environ, layers.is_textual)
        settings = _settings(checker, layers.tree, environ)
    except Wrong as exc:
        raise _config_error(exc, file, layers.origins) from None
    referenced = {*checker.references.values(), *(name for _, name in checker.missing)}
    doubts = (*_missing_keys(checker.missing, layers.origins), *unknown_in(environ, referenced))
    for key, name in checker.references.items():
        layers.origins[key] += f" (env:{name})"
    for key, name in checker.missing:
        layers.origins[key] += f" (env:{name}, not set)"
    return Loaded(settings, layers.origins, file, doubts)


def find_file(path: Path | None, environ: Mapping[str, str]) -> Path | None:
    """Return the file to read, which exists; None when none is named and there is no `ullage.toml` here."""
    named = path or (Path(environ[CONFIG_VARIABLE]) if environ.get(CONFIG_VARIABLE) else None)
    if named is None:
        named = Path(DEFAULT_FILE)
        if not named.exists():
            return None
    if named.is_dir():
        raise ConfigError(f"{named}: is a folder; name the file in it with --config or ULLAGE_CONFIG")
    if not named.is_file():
        raise ConfigError(f"{named}: no such file; create it, or name another with --config or ULLAGE_CONFIG")
    return named


def file_type() -> type[msgspec.Struct]:
    """Return the type of the whole file: `Settings` with presets as they are written."""
    hints = hints_of(Settings) | {"presets": dict[str, preset_table()]}  # type: ignore[misc]  # made at run time
    fields: list[tuple[str, Any, Any]] = [
        (name, hint, msgspec.field(default_factory=dict)) for name, hint in hints.items()
    ]
    return msgspec.defstruct("ullage", fields, frozen=True, kw_only=True, forbid_unknown_fields=True)


def _sources(
    file: Path | None, environ: Mapping[str, str], flags: Mapping[str, object]
) -> Iterator[tuple[str, KeyPath, object]]:
    """Yield (source, key, value), the weakest first."""
    for name, openai_key in OPENAI_VARIABLES.items():
        if environ.get(name, "").strip():
            yield name, openai_key, environ[name]
    if file is not None:
        for table, value in _read(file).items():
            yield str(file), (table,), value
    for name, key in settings_in(environ):
        yield name, key, environ[name]
    for name, value in flags.items():
        if value is not None and value != ():
            yield name, FLAGS[name], value


def _read(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text("utf-8-sig"))  # some editors begin a file with a byte order mark
    except tomllib.TOMLDecodeError as exc:
        raise ConfigError(f"{file}: not valid TOML: {exc}; mend that place") from None
    except UnicodeDecodeError as exc:
        raise ConfigError(f"{file}: not valid UTF-8 at byte {exc.start}; save it as UTF-8") from None
    except OSError as exc:
        raise ConfigError(f"{file}: cannot be read ({exc.strerror}); allow it, or name another file") from None


def _missing_keys(missing: Iterable[tuple[KeyPath, str]], origins: Mapping[KeyPath, str]) -> Iterator[str]:
    """Yield a sentence about each key of a provider that comes from a variable which is not set."""
    for path, name in missing:
        if path[-1] == "api_key":
            what = f"the environment variable {name} is not set, so a request without a key goes upstream without one"
            yield f"{origins[path]}: {dotted(path)}: {what}; set it, or take this line out"


class _Layers:
    """Sources laid over each other, table by table, with the source of every leaf."""

    def __init__(self) -> None:
        self.tree: dict[str, Any] = {}
        self.origins: dict[KeyPath, str] = {}

    def lay(self, source: str, key: KeyPath, value: object) -> None:
        """Lay a value, or all values of a table, over what weaker sources said."""
        if isinstance(value, dict):
            self._table(key)
            for name, item in value.items():
                self.lay(source, (*key, name), item)
        else:
            self._table(key[:-1])[key[-1]] = value
            self.origins[key] = source

    def is_textual(self, key: KeyPath) -> bool:
        """Say whether the value is text from the environment, whatever its type should be."""
        return self.origins.get(key, "").startswith((PREFIX, "OPENAI_"))

    def _table(self, key: KeyPath) -> dict[str, Any]:
        table = self.tree
        for length, name in enumerate(key, 1):
            table = table.setdefault(name, {})
            if not isinstance(table, dict):
                raise Wrong(key[:length], "is a single value where a table is expected; write it as a table")
        return table


def _settings(checker: Checker, tree: dict[str, Any], environ: Mapping[str, str]) -> Settings:
    checked: Any = checker.check(file_type(), tree)
    presets = resolve_presets(checked.pop("presets", {}))
    settings = msgspec.structs.replace(msgspec.convert(checked, Settings), presets=presets)
    for name in settings.upstreams:
        if "base_url" not in checked["upstreams"][name]:
            raise Wrong(("upstreams", name, "base_url"), "is missing; say where this upstream is")
    _check_upstreams(settings, environ)
    _check_models(settings)
    _check_tenants(settings)
    _check_store(settings)
    _check_supported(settings)
    return settings


def _check_upstreams(settings: Settings, environ: Mapping[str, str]) -> None:
    if DEFAULT in settings.upstreams:
        raise Wrong(("upstreams", DEFAULT), "is the name of the table [upstream]; choose another")
    paths: dict[KeyPath, Upstream] = {("upstream",): settings.upstream}
    paths |= {("upstreams", name): upstream for name, upstream in settings.upstreams.items()}
    for path, upstream in paths.items():
        reach = Reach(upstream.timeout.connect, upstream.timeout.read, upstream.ca_file)
        try:
            make_target(upstream.base_url, reach, environ, key=dotted(path))
        except ConfigError as exc:
            key, _, problem = exc.message.removeprefix(f"{dotted(path)}.").partition(": ")
            raise Wrong((*path, key), problem) from None


def _check_models(settings: Settings) -> None:
    owners = dict.fromkeys(settings.upstream.models, DEFAULT)
    for name, upstream in settings.upstreams.items():
        for model in upstream.models:
            if owners.setdefault(model, name) != name:
                problem = f"{model} goes to the upstream {owners[model]} already; name it once"
                raise Wrong(("upstreams", name, "models"), problem)


def _check_store(settings: Settings) -> None:
    try:
        open_store(settings.store.url, StoreOptions(encryption_keys=settings.store.encryption_keys))
    except ConfigError as exc:
        key, _, problem = exc.message.removeprefix("store.").partition(": ")
        raise Wrong(("store", key), problem) from None


def _check_supported(settings: Settings) -> None:
    """Refuse promises of separation or capacity that this version would silently not keep."""
    asked: dict[KeyPath, bool] = {
        ("tenants",): bool(settings.tenants),
        ("server", "workers"): settings.server.workers > 1,
    }
    for path, is_asked in asked.items():
        if is_asked:
            raise Wrong(path, "this version cannot do that yet, and would not keep what it promises; take it out")


def _check_tenants(settings: Settings) -> None:
    """Check that the presets and upstreams that are named exist."""
    names: list[tuple[KeyPath, str | None]] = [(("defaults", "preset"), settings.defaults.preset)]
    names += [(("tenants", name, "preset"), tenant.preset) for name, tenant in settings.tenants.items()]
    names += [(("tenants", name, "upstream"), tenant.upstream) for name, tenant in settings.tenants.items()]
    known = {"preset": set(settings.presets), "upstream": {DEFAULT, *settings.upstreams}}
    for path, named in names:
        kind = path[-1]
        if named is not None and named not in known[kind]:
            raise Wrong(path, f"there is no {kind} {named}; {suggest(named, known[kind])}")


def _config_error(exc: Wrong, file: Path | None, origins: Mapping[KeyPath, str]) -> ConfigError:
    source = source_of(exc.path, origins) or file or DEFAULT_FILE
    key = dotted(exc.path)
    return ConfigError(f"{source}: {key}: {exc.problem}", param=key)
