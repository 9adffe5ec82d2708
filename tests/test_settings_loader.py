"""Where settings come from, which source wins, and how wrong ones are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from proxy.errors import ConfigError
from proxy.settings import Settings
from proxy.settings_loader import FLAGS, file_type, load, source_of
from proxy.tables import hints_of
from proxy.variables import VARIABLES

EVERYTHING = """
[server]
host = "127.0.0.1"
port = 4410
workers = 1
max_body_bytes = 67_108_864
drain_seconds = 30
admin_key = "env:ULLAGE_ADMIN_KEY"
secret = "env:ULLAGE_SECRET"
cors_origins = []
keepalive_seconds = 10

[upstream]
base_url = "https://api.openai.com/v1"
api_key = "env:OPENAI_API_KEY"
timeout = { connect = 5.0, read = 600.0 }

[upstreams.local]
base_url = "http://127.0.0.1:8000/v1"
models = ["qwen*", "llama*"]
quirks = { tools = true, system_messages = "one", roles = "alternate", stream_usage = false }

[store]
url = "sqlite:///var/ullage.db"
idle_ttl = "30d"
record = true

[models."gpt-4o*"]
window = 128_000

[defaults]
preset = "balanced"

[presets.mine]
extends = "balanced"
trigger = { share = "50%", tokens = 100_000 }
limit = "85%"
target = "10%"
read_tokens = 8000
rounds = 8
[presets.mine.offload_results]
over_tokens = 4000
per_turn_tokens = 16_000
head_lines = 10
tail_lines = 5
exclude_tools = ["read_file*"]
[presets.mine.offload_user_messages]
over_tokens = 8000
[presets.mine.truncate_inputs]
over_chars = 2000
[presets.mine.summarise_history]
strategy = "summarise"
keep_steps = 3
keep_messages = 0
ratio = 0.3
model = "gpt-4o-mini"
wait_seconds = 20
"""
TENANT = """
[tenants.acme]
preset = "mine"
allow_policy_header = true
upstream = "default"
upstream_key = "env:ACME_OPENAI_KEY"
requests_per_minute = 600
stored_bytes = 10_000_000_000
relay = ["models", "embeddings", "audio", "images", "moderations", "completions"]
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def written(folder: Path, text: str, name: str = "ullage.toml") -> Path:
    """Write a configuration file."""
    path = folder / name
    path.write_text(text, "utf-8")
    return path


def refusal(folder: Path, text: str, **environ: str) -> str:
    """Return how a configuration is refused."""
    with pytest.raises(ConfigError) as caught:
        load(written(folder, text, "bad.toml"), environ)
    return caught.value.message


def test_the_documented_file_is_accepted_whole(folder: Path) -> None:
    """Every documented key is known; credentials of missing variables are unset."""
    loaded = load(written(folder, EVERYTHING))
    assert loaded.settings.server.admin_key is None
    assert loaded.settings.upstream.api_key is None
    assert loaded.settings.upstreams["local"].quirks.system_messages == "one"
    assert loaded.settings.store.idle_ttl == 30 * 86_400
    assert loaded.settings.presets["mine"].policies


def test_every_documented_default_is_the_default(folder: Path) -> None:
    """The tables that the documentation shows with their defaults change nothing."""
    settings = load(written(folder, EVERYTHING)).settings
    assert (settings.server, settings.store, settings.defaults) == (
        Settings().server,
        Settings().store,
        Settings().defaults,
    )
    assert settings.upstream == Settings().upstream


def test_flag_beats_variable_beats_file_beats_openai_beats_default(folder: Path) -> None:
    """The documented precedence, one key after the other."""
    environ: dict[str, str] = {}
    flags: dict[str, object] = {}

    def base_url() -> tuple[str, str | None]:
        loaded = load(None, environ, flags)
        return loaded.settings.upstream.base_url, source_of(("upstream", "base_url"), loaded.origins)

    assert base_url() == ("https://api.openai.com/v1", None)
    environ["OPENAI_BASE_URL"] = "http://openai/v1"
    assert base_url() == ("http://openai/v1", "OPENAI_BASE_URL")
    written(folder, '[upstream]\nbase_url = "http://file/v1"')
    assert base_url() == ("http://file/v1", "ullage.toml")
    environ["ULLAGE_UPSTREAM"] = "http://variable"
    assert base_url() == ("http://variable/v1", "ULLAGE_UPSTREAM")
    flags["--upstream"] = "http://flag/"
    assert base_url() == ("http://flag/v1", "--upstream")


def test_which_file_is_read(folder: Path) -> None:
    """The one given, else that of `ULLAGE_CONFIG`, else `ullage.toml` here, else none."""
    assert load().file is None
    written(folder, "[server]\nport = 1")
    assert load().settings.server.port == 1
    two = written(folder, "[server]\nport = 2", "two.toml")
    assert load(None, {"ULLAGE_CONFIG": str(two)}).settings.server.port == 2
    three = written(folder, "[server]\nport = 3", "three.toml")
    assert load(three, {"ULLAGE_CONFIG": str(two)}).settings.server.port == 3


def test_a_named_file_must_be_there(folder: Path) -> None:
    """A file that was asked for by name and is none is told, not passed over."""
    with pytest.raises(ConfigError, match="no such file; create it"):
        load(Path("nowhere.toml"))


def test_a_folder_is_no_file(folder: Path) -> None:
    """A folder is told as such, named or in the place of the file."""
    with pytest.raises(ConfigError, match="is a folder; name the file in it"):
        load(folder)
    (folder / "ullage.toml").mkdir()
    with pytest.raises(ConfigError, match=r"ullage\.toml: is a folder"):
        load()


def test_a_byte_order_mark_is_passed_over(folder: Path) -> None:
    """Some editors write one, and nobody sees it."""
    assert load(written(folder, "\ufeff[server]\nport = 1")).settings.server.port == 1


@pytest.mark.parametrize("key", ["sk-1\n", " sk-1", "\tsk-1\r\n"])
def test_blanks_around_a_key_are_not_part_of_it(folder: Path, key: str) -> None:
    """Mounted secrets end with a line break; wherever the key is written, it is the same."""
    assert load(None, {"OPENAI_API_KEY": key}).settings.upstream.api_key == "sk-1"
    assert load(None, {"ULLAGE_ADMIN_KEY": key}).settings.server.admin_key == "sk-1"
    path = written(folder, '[upstreams.x]\nbase_url = "http://h"\napi_key = "env:K"')
    assert load(path, {"K": key}).settings.upstreams["x"].api_key == "sk-1"


def test_a_blank_key_is_none(folder: Path) -> None:
    """An empty secret is as good as no secret."""
    assert load(None, {"OPENAI_API_KEY": " \n"}).settings.upstream.api_key is None
    assert load(written(folder, '[upstream]\napi_key = "env:K"'), {"K": "\n"}).settings.upstream.api_key is None


def test_a_key_of_two_lines_is_refused(folder: Path) -> None:
    """It could not be sent, and is told by its setting, without the key."""
    with pytest.raises(ConfigError, match=r"OPENAI_API_KEY: upstream\.api_key: .* on one line") as refused:
        load(None, {"OPENAI_API_KEY": "sk-1\nsk-2"})
    assert "sk-" not in refused.value.message


def test_what_is_hardly_meant_is_doubted(folder: Path) -> None:
    """A key whose variable is not set, and a variable that is no setting, are accepted and told."""
    text = '[upstream]\napi_key = "env:GONE"\n[server]\nsecret = "env:ULLAGE_MINE"\nadmin_key = "env:ULLAGE_GONE"'
    path = written(folder, text)
    missing = (
        "the environment variable GONE is not set, so a request without a key goes upstream without one; "
        "set it, or take this line out"
    )
    doubts = load(path, {"ULLAGE_PROT": "1", "ULLAGE_MINE": "s", "ULLAGE_CONFIG": "x"}).doubts
    assert doubts == (
        f"{path}: upstream.api_key: {missing}",
        "ULLAGE_PROT: this variable is no setting and changes nothing; did you mean ULLAGE_PORT?",
    )
    assert load(written(folder, "", "empty.toml"), {"ULLAGE_PORT": "1"}).doubts == ()


def test_openai_variables_are_those_of_the_default_upstream(folder: Path) -> None:
    """Key and address of the official SDKs are enough to start."""
    upstream = load(None, {"OPENAI_API_KEY": "sk-1", "OPENAI_BASE_URL": "http://h"}).settings.upstream
    assert (upstream.api_key, upstream.base_url) == ("sk-1", "http://h/v1")


def test_every_short_variable_and_flag_names_a_key() -> None:
    """No variable and no flag leads to a key that does not exist."""
    tables = hints_of(Settings)
    for table, key in (VARIABLES | FLAGS).values():
        assert key in hints_of(tables[table])


def test_every_key_with_a_fixed_name_has_a_variable(folder: Path) -> None:
    """`ULLAGE_TABLE__KEY` sets it, converted to its type; empty variables and unknown tables say nothing."""
    environ = {
        "ULLAGE_SERVER__MAX_BODY_BYTES": "100",
        "ULLAGE_SERVER__CORS_ORIGINS": "http://a http://b",
        "ULLAGE_STORE__RECORD": "false",
        "ULLAGE_STORE__IDLE_TTL": "12h",
        "ULLAGE_STORE": "memory:",
        "ULLAGE_UPSTREAM__TIMEOUT__READ": "9.5",
        "ULLAGE_PORT": "",
        "ULLAGE_SOMETHING": "x",
        "ULLAGE_SOMETHING__ELSE": "x",
    }
    settings = load(None, environ).settings
    assert settings.server.max_body_bytes == 100
    assert settings.server.cors_origins == ("http://a", "http://b")
    assert settings.server.port == 4410
    assert (settings.store.record, settings.store.idle_ttl) == (False, 43_200)
    assert settings.store.urls == ("memory:",)
    assert settings.upstream.timeout.read == 9.5


def test_a_variable_changes_one_key_of_a_table(folder: Path) -> None:
    """The other keys of that table stay those of the file."""
    path = written(folder, "[upstream]\ntimeout = { connect = 1, read = 2 }")
    timeout = load(path, {"ULLAGE_UPSTREAM__TIMEOUT__READ": "3"}).settings.upstream.timeout
    assert (timeout.connect, timeout.read) == (1, 3)


def test_a_flag_that_was_not_given_says_nothing(folder: Path) -> None:
    """None and an empty list are no values."""
    settings = load(None, {}, {"--store": (), "--port": None}).settings
    assert (settings.store, settings.server) == (Settings().store, Settings().server)


def test_several_stores_are_a_list_in_every_source(folder: Path) -> None:
    """A repeated flag and words in a variable are a list."""
    for flags, environ in (
        ({"--store": ("redis://a", "s3://b")}, {}),
        ({}, {"ULLAGE_STORE": "redis://a s3://b"}),
    ):
        assert load(None, environ, flags).settings.store.urls == ("redis://a", "s3://b")


@pytest.mark.parametrize(
    ("text", "key", "mend"),
    [
        ("[server]\nporrt = 1", "server.porrt", "did you mean port?"),
        ("[servr]\nport = 1", "servr", "did you mean server?"),
        ("server = 1", "server", "write a table"),
        ("[server]\nport = 99_999", "server.port", "<= 65535"),
        ('[server]\nadmin_key = ""', "server.admin_key", "length >= 1"),
        ('[server]\nhost = "env:NOWHERE"', "server.host", "variable NOWHERE is not set"),
        ('[store]\nidle_ttl = "a month"', "store.idle_ttl", 'for example "90s"'),
        ('[store]\nurl = "mysql://h"', "store.url", 'use "sqlite:///var/ullage.db"'),
        ('[store]\nencryption_keys = ["k"]', "store.encryption_keys", "32 random bytes in base64"),
        ("[server]\nworkers = 2", "server.workers", "take it out"),
        (TENANT.replace("mine", "safe"), "tenants", "take it out"),
        ('[upstream]\nbase_url = "localhost:8000"', "upstream.base_url", "like https://api.openai.com/v1"),
        ('[upstream]\nca_file = "nowhere.pem"', "upstream.ca_file", "nowhere.pem"),
        ('[upstreams.x]\nmodels = ["a"]', "upstreams.x.base_url", "say where"),
        ('[upstreams.x]\nbase_url = "ftp://h"', "upstreams.x.base_url", "like https://"),
        ('[upstreams.default]\nbase_url = "http://h"', "upstreams.default", "choose another"),
        ('[presets.x]\ntrigger = "half"', "presets.x.trigger", 'write for example "50%"'),
        ('[presets.x]\nextends = "bal"', "presets.x.extends", "there is no preset bal"),
        ("[presets.x.offload_result]\n", "presets.x.offload_result", "did you mean offload_results?"),
        (
            "[presets.x.offload_results]\nover_token = 1",
            "presets.x.offload_results.over_token",
            "over_tokens?",
        ),
        ('[defaults]\npreset = "deap"', "defaults.preset", "did you mean deep?"),
        ('[tenants.a]\npreset = "gone"', "tenants.a.preset", "there is no preset gone"),
        ('[tenants.a]\nupstream = "gone"', "tenants.a.upstream", "known: default"),
        ('[tenants."a.b"]\ncolour = 1', 'tenants."a.b".colour', "no such key"),
        ("x = ", "not valid TOML", "mend that place"),
        ("[presets.x.offload_results]\nover_tokens = -1", "presets.x.offload_results.over_tokens", ">= 0"),
        ("[presets.x.offload_results]\nper_turn_tokens = -1", "presets.x.offload_results.per_turn_tokens", ">= 0"),
        ("[presets.x.offload_results]\nhead_lines = -1", "presets.x.offload_results.head_lines", ">= 0"),
        ("[presets.x.offload_results]\ntail_lines = -1", "presets.x.offload_results.tail_lines", ">= 0"),
        ("[presets.x.offload_user_messages]\nover_tokens = -1", "presets.x.offload_user_messages.over_tokens", ">= 0"),
        ("[presets.x.offload_user_messages]\nhead_lines = -1", "presets.x.offload_user_messages.head_lines", ">= 0"),
        ("[presets.x.offload_user_messages]\ntail_lines = -1", "presets.x.offload_user_messages.tail_lines", ">= 0"),
    ],
)
def test_what_is_wrong_is_told_with_file_key_and_mend(folder: Path, text: str, key: str, mend: str) -> None:
    """A person who reads the message knows where to go and what to write."""
    message = refusal(folder, text)
    assert message.startswith(f"{folder / 'bad.toml'}: {key}: ")
    assert mend in message


def test_one_model_pattern_belongs_to_one_upstream(folder: Path) -> None:
    """The same pattern twice would leave the choice to chance."""
    text = '[upstream]\nmodels = ["a*"]\n[upstreams.x]\nbase_url = "http://h"\nmodels = ["a*"]'
    assert "upstreams.x.models: a* goes to the upstream default already" in refusal(folder, text)


def test_a_wrong_variable_is_told_by_its_name(folder: Path) -> None:
    """The person mends the variable, not the file."""
    assert refusal(folder, "", ULLAGE_PORT="x").startswith("ULLAGE_PORT: server.port: ")
    assert refusal(folder, "", ULLAGE_SERVER__PROT="1").startswith("ULLAGE_SERVER__PROT: server.prot: ")
    assert refusal(folder, "", OPENAI_BASE_URL="x").startswith("OPENAI_BASE_URL: upstream.base_url: ")
    assert refusal(folder, "server = 1", ULLAGE_PORT="1").endswith("write it as a table")


def test_a_file_that_is_no_text_is_refused(folder: Path) -> None:
    """Bytes that are no UTF-8 are told as such."""
    path = folder / "ullage.toml"
    path.write_bytes(b'a = "\xff"')
    with pytest.raises(ConfigError, match="not valid UTF-8 at byte 5; save it"):
        load(path)


def test_origins_name_the_variable_behind_a_reference(folder: Path) -> None:
    """`env:NAME` shows both where it is written and where the value is from, and that it is missing."""
    path = written(folder, '[server]\nhost = "env:H"\nsecret = "env:S"')
    origins = load(path, {"H": "::1"}).origins
    assert origins["server", "host"] == f"{path} (env:H)"
    assert origins["server", "secret"] == f"{path} (env:S, not set)"


def test_the_type_of_the_file_has_the_tables_of_the_settings() -> None:
    """Nothing can be configured that the settings do not have, and the other way round."""
    assert file_type().__struct_fields__ == Settings.__struct_fields__
