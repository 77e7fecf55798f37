import dataclasses
from pathlib import Path

import pytest

from app.domain.caller import Scope
from app.settings import ApiKey, Settings, SettingsError, environment_of_child

_SECRET = "hunter2"
_URL = f"postgresql://user:{_SECRET}@database:5432/jobs"


def _refusal(environ: dict[str, str]) -> str:
    with pytest.raises(SettingsError) as caught:
        Settings.from_environment(environ)
    text = str(caught.value)
    assert "\n" not in text
    assert _SECRET not in text
    return text


def test_an_empty_environment_gives_the_documented_defaults() -> None:
    settings = Settings.from_environment({"PATH": "/bin"})
    assert settings == Settings()
    assert (settings.host, settings.port, settings.processes, settings.pool_size) == ("127.0.0.1", 8000, 1, 4)
    assert settings.data_dir == Path(".fencepost")
    assert (settings.retention_seconds, settings.dead_retention_seconds) == (7 * 86_400, 30 * 86_400)
    assert (settings.max_payload_bytes, settings.max_batch_body_bytes) == (256 * 1024, 16 * 1024 * 1024)


def test_every_variable_fills_its_field() -> None:
    environ = {
        "FENCEPOST_DATABASE_URL": _URL,
        "FENCEPOST_LISTEN_URL": "postgres://database/direct",
        "FENCEPOST_HOST": "::1",
        "FENCEPOST_PORT": "0",
        "FENCEPOST_PROCESSES": "2",
        "FENCEPOST_POOL_SIZE": "9",
        "FENCEPOST_API_KEYS": "a:produce+work:one,b:operate:two:three",
        "FENCEPOST_REAPER_INTERVAL_SECONDS": "0.5",
        "FENCEPOST_RETENTION_SECONDS": "1",
        "FENCEPOST_DEAD_RETENTION_SECONDS": "2.25",
        "FENCEPOST_IDEMPOTENCY_TTL_SECONDS": "0",
        "FENCEPOST_MAX_PAYLOAD_BYTES": "10",
        "FENCEPOST_MAX_RESULT_BYTES": "11",
        "FENCEPOST_MAX_CHECKPOINT_BYTES": "12",
        "FENCEPOST_MAX_METADATA_BYTES": "13",
        "FENCEPOST_MAX_BODY_BYTES": "14",
        "FENCEPOST_MAX_BATCH_BODY_BYTES": "15",
        "FENCEPOST_MAX_BATCH_ITEMS": "16",
        "FENCEPOST_LOG_FORMAT": "JSON",
        "FENCEPOST_LOG_LEVEL": "debug",
        "FENCEPOST_TEST_DATABASE_URL": "anything",
    }
    assert Settings.from_environment(environ) == Settings(
        database_url=_URL,
        listen_url="postgres://database/direct",
        host="::1",
        port=0,
        processes=2,
        pool_size=9,
        api_keys=(
            ApiKey(name="a", scopes=frozenset({Scope.PRODUCE, Scope.WORK}), secret="one"),
            ApiKey(name="b", scopes=frozenset({Scope.OPERATE}), secret="two:three"),
        ),
        reaper_interval_seconds=0.5,
        retention_seconds=1,
        dead_retention_seconds=2.25,
        idempotency_ttl_seconds=0,
        max_payload_bytes=10,
        max_result_bytes=11,
        max_checkpoint_bytes=12,
        max_metadata_bytes=13,
        max_body_bytes=14,
        max_batch_body_bytes=15,
        max_batch_items=16,
        log_format="json",
        log_level="debug",
    )


def test_options_win_over_the_environment() -> None:
    environ = {"FENCEPOST_HOST": "::1", "FENCEPOST_PORT": "1", "FENCEPOST_PROCESSES": "3"}
    settings = Settings.from_environment(environ, host="127.0.0.2", port=2, data_dir="here", insecure=True)
    assert (settings.host, settings.port, settings.processes) == ("127.0.0.2", 2, 3)
    assert (settings.data_dir, settings.insecure) == (Path("here"), True)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("FENCEPOST_PORT", "65536"),
        ("FENCEPOST_PORT", "8000 "),
        ("FENCEPOST_PORT", "٨"),
        ("FENCEPOST_PROCESSES", "0"),
        ("FENCEPOST_POOL_SIZE", "4.0"),
        ("FENCEPOST_RETENTION_SECONDS", "0.9"),
        ("FENCEPOST_RETENTION_SECONDS", "nan"),
        ("FENCEPOST_DEAD_RETENTION_SECONDS", "inf"),
        ("FENCEPOST_DEAD_RETENTION_SECONDS", "1e9"),
        ("FENCEPOST_IDEMPOTENCY_TTL_SECONDS", "-1"),
        ("FENCEPOST_IDEMPOTENCY_TTL_SECONDS", "99999999999"),
        ("FENCEPOST_REAPER_INTERVAL_SECONDS", "0"),
        ("FENCEPOST_MAX_PAYLOAD_BYTES", "256K"),
        ("FENCEPOST_LOG_FORMAT", "xml"),
        ("FENCEPOST_LOG_LEVEL", "loud"),
        ("FENCEPOST_HOST", ""),
        ("FENCEPOST_HOST", "local host"),
        ("FENCEPOST_DATABASE_URL", f"mysql://user:{_SECRET}@host/db"),
        ("FENCEPOST_DATABASE_URL", f"postgresql://user:{_SECRET}\n@host/db"),
        ("FENCEPOST_API_KEYS", f"a:produce:{_SECRET},b:admin:x"),
        ("FENCEPOST_API_KEYS", f"a:produce:{_SECRET},b:work:{_SECRET}"),
        ("FENCEPOST_API_KEYS", f"a:produce:{_SECRET},a:work:{_SECRET}"),
        ("FENCEPOST_API_KEYS", f"a::{_SECRET}"),
        ("FENCEPOST_API_KEYS", f"a:produce:{_SECRET},"),
        ("FENCEPOST_API_KEYS", f"#a:produce:{_SECRET}"),
        ("FENCEPOST_API_KEYS", f"a:work:{_SECRET}é"),
        ("FENCEPOST_API_KEYS", f"{_SECRET}"),
        ("FENCEPOST_API_KEYS_FILE", "/nowhere/at/all"),
    ],
)
def test_a_malformed_value_is_refused_with_one_line_that_names_the_variable(name: str, text: str) -> None:
    assert name in _refusal({name: text})


def test_an_unknown_variable_is_refused_with_a_hint() -> None:
    assert "did you mean FENCEPOST_PORT?" in _refusal({"FENCEPOST_PROT": _SECRET})


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("FENCEPOST_DATABASE_URL", "FENCEPOST_DATA_DIR"),
        ("FENCEPOST_API_KEYS", "FENCEPOST_API_KEYS_FILE"),
    ],
)
def test_two_variables_that_contradict_each_other_are_refused(one: str, other: str) -> None:
    text = _refusal({one: _URL, other: "x"})
    assert one in text
    assert other in text


def test_a_data_folder_as_option_beside_a_database_url_is_refused() -> None:
    with pytest.raises(SettingsError):
        Settings.from_environment({"FENCEPOST_DATABASE_URL": _URL}, data_dir="here")


def test_a_listen_url_without_a_database_url_is_refused() -> None:
    assert "FENCEPOST_DATABASE_URL" in _refusal({"FENCEPOST_LISTEN_URL": _URL})


def test_api_keys_are_read_from_a_file_one_a_line(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("# ours\na:produce:one\r\n\n  # c:work:x\n b:work:with,comma#hash \n", encoding="utf-8")
    keys = Settings.from_environment({"FENCEPOST_API_KEYS_FILE": str(path)}).api_keys
    assert [(key.name, key.secret) for key in keys] == [("a", "one"), ("b", "with,comma#hash")]


def test_file_without_a_key_is_refused_since_it_would_open_the_service(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    for text in ("", "\n", f"# a:produce:{_SECRET}\n"):
        path.write_text(text, encoding="utf-8")
        assert "without a key" in _refusal({"FENCEPOST_API_KEYS_FILE": str(path)})


def test_malformed_key_is_named_by_its_place(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(f"# ours\n\na:produce:{_SECRET}\nb:{_SECRET}\n", encoding="utf-8")
    assert "line 4" in _refusal({"FENCEPOST_API_KEYS_FILE": str(path)})
    assert "entry 2" in _refusal({"FENCEPOST_API_KEYS": f"a:produce:{_SECRET},b:{_SECRET}"})


def test_one_name_may_have_several_secrets_each_with_its_scopes() -> None:
    keys = Settings.from_environment({"FENCEPOST_API_KEYS": "a:produce:old,a:produce+work:new"}).api_keys
    assert keys == (
        ApiKey(name="a", scopes=frozenset({Scope.PRODUCE}), secret="old"),
        ApiKey(name="a", scopes=frozenset({Scope.PRODUCE, Scope.WORK}), secret="new"),
    )


def test_repr_shows_no_secret() -> None:
    keys = (ApiKey(name="a", scopes=frozenset({Scope.WORK}), secret=_SECRET),)
    settings = Settings(database_url=_URL, listen_url=_URL, api_keys=keys)
    assert _SECRET not in repr(settings)
    assert _SECRET not in repr(keys)


def test_settings_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Settings().port = 1  # type: ignore[misc]


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost"])
def test_loopback_addresses_are_served_without_keys(host: str) -> None:
    Settings(host=host).refuse_unsafe_serving()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "fencepost.example"])
def test_other_addresses_are_served_only_when_told_insecure(host: str) -> None:
    with pytest.raises(SettingsError, match=r"FENCEPOST_API_KEYS.*--insecure"):
        Settings(host=host).refuse_unsafe_serving()
    Settings(host=host, insecure=True).refuse_unsafe_serving()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "fencepost.example"])
def test_every_address_is_served_with_keys(host: str) -> None:
    Settings.from_environment({"FENCEPOST_API_KEYS": "a:work:secret"}, host=host).refuse_unsafe_serving()


def test_a_child_process_gets_the_same_settings_and_the_running_database() -> None:
    environ = {"FENCEPOST_DATA_DIR": "here", "FENCEPOST_POOL_SIZE": "7", "HOME": "/home"}
    child_environ = environment_of_child(environ, database_url=_URL)
    assert child_environ["HOME"] == "/home"
    assert Settings.from_environment(child_environ) == Settings(database_url=_URL, pool_size=7)


def test_variables_of_clients_and_their_commands_are_passed_over() -> None:
    environ = {
        "FENCEPOST_URL": "https://jobs.example.org",
        "FENCEPOST_CLIENT_KEY": "k",
        "FENCEPOST_LEASE_VERSION": "7",
        "FENCEPOST_PROGRESS_FD": "3",
        "FENCEPOST_JOB_ID": "01a2",
        "FENCEPOST_JOB_OF_A_LATER_VERSION": "x",
    }
    assert Settings.from_environment(environ) == Settings()


@pytest.mark.parametrize("text", [_URL, "", "http:/x", "example.org"])
def test_a_url_that_is_no_service_s_is_taken_for_a_mistyped_database_url(text: str) -> None:
    assert "FENCEPOST_URL" in _refusal({"FENCEPOST_URL": text})
