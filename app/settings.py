"""Settings of the service: one frozen value, read once from the environment.

This module is the only reader of the environment. Every variable of the protocol page has one row in
`_VARIABLES`, which says how its text is read and which field it fills; the defaults stand in `Settings`
alone. Text is read strictly: an unknown FENCEPOST_ variable, an empty value or a number out of range is a
SettingsError with one line. Values that may hold a secret (database addresses, API keys) are never quoted in
an error and never shown by repr().
"""

import difflib
import ipaddress
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from app.domain.caller import Scope

_PREFIX = "FENCEPOST_"
_IGNORED = frozenset({"FENCEPOST_TEST_DATABASE_URL"})
# Of clients and of `fencepost work`, whose commands may run programs of the service.
_OF_CLIENTS = frozenset({"FENCEPOST_CLIENT_KEY", "FENCEPOST_LEASE_VERSION", "FENCEPOST_PROGRESS_FD"})
_OF_JOBS = "FENCEPOST_JOB_"
_LOG_FORMATS = ("text", "json")
_LOG_LEVELS = ("debug", "info", "warning", "error", "critical")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,127}")
_WHOLE_NUMBER = re.compile(r"[0-9]{1,18}")
_DECIMAL_NUMBER = re.compile(r"[0-9]{1,18}(\.[0-9]{1,9})?")
_VISIBLE_ASCII = re.compile(r"[!-~]+")

# A hundred years: longer spans would leave the years that a timestamp of the protocol may have.
_LONGEST_SECONDS = 3_155_760_000.0
# PostgreSQL refuses single values from 1 GiB on; a quarter leaves room for every encoding on the way.
_MOST_BYTES = 268_435_456


class SettingsError(Exception):
    """A setting is unknown, malformed or does not fit another; the text is one line for a person."""


@dataclass(frozen=True, slots=True)
class ApiKey:
    """One configured API key: the caller's name, what it may do, and the secret it presents.

    One name may have several keys, so that a secret can be changed while the old one is still in use.
    """

    name: str
    scopes: frozenset[Scope]
    secret: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything the service can be told from outside; the defaults are those of the protocol page.

    database_url None means the bundled server, which keeps its data in data_dir. listen_url None means that
    LISTEN uses the database URL. log_format None means text on a terminal and JSON lines elsewhere.
    """

    database_url: str | None = field(default=None, repr=False)
    listen_url: str | None = field(default=None, repr=False)
    data_dir: Path = Path(".fencepost")
    host: str = "127.0.0.1"
    port: int = 8000
    processes: int = 1
    pool_size: int = 4
    api_keys: tuple[ApiKey, ...] = field(default=(), repr=False)
    reaper_interval_seconds: float = 1.0
    retention_seconds: float = 604_800.0
    dead_retention_seconds: float = 2_592_000.0
    idempotency_ttl_seconds: float = 86_400.0
    max_payload_bytes: int = 262_144
    max_result_bytes: int = 262_144
    max_checkpoint_bytes: int = 65_536
    max_metadata_bytes: int = 16_384
    max_body_bytes: int = 1_048_576
    max_batch_body_bytes: int = 16_777_216
    max_batch_items: int = 1_000
    log_format: str | None = None
    log_level: str = "info"
    insecure: bool = False

    @classmethod
    def from_environment(
        cls,
        environ: Mapping[str, str],
        *,
        host: str | None = None,
        port: int | None = None,
        data_dir: str | None = None,
        processes: int | None = None,
        insecure: bool = False,
    ) -> "Settings":
        """Read all FENCEPOST_ variables of environ; an option that is not None wins over its variable.

        Raises SettingsError for anything unknown, malformed or contradictory.
        """
        _refuse_unknown(environ)
        texts = {name: environ[name] for name in _VARIABLES if name in environ}
        options = {"HOST": host, "PORT": port, "DATA_DIR": data_dir, "PROCESSES": processes}
        texts |= {_PREFIX + name: str(value) for name, value in options.items() if value is not None}
        _refuse_contradictions(texts)
        values: dict[str, Any] = {}
        for name, text in texts.items():
            field_name, read = _VARIABLES[name]
            values[field_name] = _read_one(name, text, read)
        return cls(**values, insecure=insecure)

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach `host`; a name other than localhost counts as reachable."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def refuse_unsafe_serving(self) -> None:
        """Raise SettingsError when any other machine could do everything here, and nobody said it may."""
        if not self.api_keys and not self.is_loopback and not self.insecure:
            raise SettingsError(
                f"host {self.host!r} can be reached from other machines and there are no API keys: set "
                "FENCEPOST_API_KEYS, listen on 127.0.0.1, or pass --insecure to serve without protection"
            )


def environment_of_child(environ: Mapping[str, str], *, database_url: str) -> dict[str, str]:
    """Return environ for a process with the same settings on a database that runs already."""
    child_environ = {name: value for name, value in environ.items() if name != "FENCEPOST_DATA_DIR"}
    return child_environ | {"FENCEPOST_DATABASE_URL": database_url}


def _refuse_unknown(environ: Mapping[str, str]) -> None:
    for name in sorted(environ):
        is_known = name in _VARIABLES or name in _IGNORED or _is_of_clients(name, environ[name])
        if name.startswith(_PREFIX) and not is_known:
            names = [known.removeprefix(_PREFIX) for known in _VARIABLES]
            near = difflib.get_close_matches(name.removeprefix(_PREFIX), names, n=1)
            hint = f"; did you mean {_PREFIX}{near[0]}?" if near else ""
            raise SettingsError(f"{name[:100]!r} is not a setting of this version{hint}")


def _is_of_clients(name: str, text: str) -> bool:
    # Any other is a mistyped FENCEPOST_DATABASE_URL: were it passed over, the bundled server would start.
    is_address = name == "FENCEPOST_URL" and re.match(r"https?://", text) is not None
    return is_address or name in _OF_CLIENTS or name.startswith(_OF_JOBS)


def _refuse_contradictions(texts: Mapping[str, str]) -> None:
    for one, other in (
        ("FENCEPOST_DATABASE_URL", "FENCEPOST_DATA_DIR"),
        ("FENCEPOST_API_KEYS", "FENCEPOST_API_KEYS_FILE"),
    ):
        if one in texts and other in texts:
            raise SettingsError(
                f"{one} and {other} are both given (as variable or option): give only one of them"
            )
    if "FENCEPOST_LISTEN_URL" in texts and "FENCEPOST_DATABASE_URL" not in texts:
        raise SettingsError("FENCEPOST_LISTEN_URL has a meaning only together with FENCEPOST_DATABASE_URL")


def _read_one(name: str, text: str, read: Callable[[str], object]) -> object:
    if not text:
        raise SettingsError(f"{name} is empty: unset it or give it a value")
    try:
        return read(text)
    except ValueError as error:
        # Without `from None` a trace of the cause could show the text, and with it a password.
        raise SettingsError(f"{name} {error}") from None


def _quoted(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:60] + "…")


def _whole_number(lowest: int, highest: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not _WHOLE_NUMBER.fullmatch(text) or not lowest <= int(text) <= highest:
            raise ValueError(f"must be a whole number from {lowest} to {highest}, not {_quoted(text)}")
        return int(text)

    return read


def _seconds(lowest: float) -> Callable[[str], float]:
    def read(text: str) -> float:
        if not _DECIMAL_NUMBER.fullmatch(text) or not lowest <= float(text) <= _LONGEST_SECONDS:
            raise ValueError(
                f"must be a number of seconds from {lowest:g} to {_LONGEST_SECONDS:.0f}, not {_quoted(text)}"
            )
        return float(text)

    return read


def _one_of(choices: tuple[str, ...]) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text.lower() not in choices:
            raise ValueError(f"must be one of {', '.join(choices)}, not {_quoted(text)}")
        return text.lower()

    return read


def _database_url(text: str) -> str:
    if not _VISIBLE_ASCII.fullmatch(text) or not re.match(r"postgres(ql)?://.", text):
        raise ValueError("must be an address like postgresql://user:password@host:5432/database")
    return text


def _host(text: str) -> str:
    if not _VISIBLE_ASCII.fullmatch(text):
        raise ValueError(f"must be an address or a host name, not {_quoted(text)}")
    return text


def _directory(text: str) -> Path:
    if "\0" in text:
        raise ValueError("must be the path of a folder")
    return Path(text).expanduser()


def _api_keys(text: str) -> tuple[ApiKey, ...]:
    entries = enumerate(text.split(","), start=1)
    return _distinct([_api_key(entry.strip(), f"entry {number}") for number, entry in entries])


def _api_keys_file(text: str) -> tuple[ApiKey, ...]:
    try:
        lines = Path(text).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ValueError(f"names a file that cannot be read: {reason}") from None
    stripped = [(number, line.strip()) for number, line in enumerate(lines, start=1)]
    keys = [_api_key(line, f"line {number}") for number, line in stripped if line and line[0] != "#"]
    if not keys:
        # Read as "no keys", a file that was emptied by mistake would open the service to everybody.
        raise ValueError("names a file without a key in it")
    return _distinct(keys)


def _distinct(keys: list[ApiKey]) -> tuple[ApiKey, ...]:
    if len({key.secret for key in keys}) != len(keys):
        raise ValueError("must have secrets that differ from each other")
    return tuple(keys)


def _api_key(entry: str, place: str) -> ApiKey:
    name, _, rest = entry.partition(":")
    scopes_text, _, secret = rest.partition(":")
    scopes = set(scopes_text.split("+"))
    if not _NAME.fullmatch(name) or not scopes <= set(Scope) or not _VISIBLE_ASCII.fullmatch(secret):
        raise ValueError(
            f"has a malformed key ({place}): write name:scope+scope:secret, "
            f"with scopes out of {', '.join(Scope)} and a secret of visible ASCII characters"
        )
    return ApiKey(name=name, scopes=frozenset(map(Scope, scopes)), secret=secret)


_VARIABLES: Mapping[str, tuple[str, Callable[[str], object]]] = {
    "FENCEPOST_DATABASE_URL": ("database_url", _database_url),
    "FENCEPOST_LISTEN_URL": ("listen_url", _database_url),
    "FENCEPOST_DATA_DIR": ("data_dir", _directory),
    "FENCEPOST_HOST": ("host", _host),
    "FENCEPOST_PORT": ("port", _whole_number(0, 65_535)),
    "FENCEPOST_PROCESSES": ("processes", _whole_number(1, 64)),
    "FENCEPOST_POOL_SIZE": ("pool_size", _whole_number(1, 100)),
    "FENCEPOST_API_KEYS": ("api_keys", _api_keys),
    "FENCEPOST_API_KEYS_FILE": ("api_keys", _api_keys_file),
    # Much below this the reaper would do nothing but look.
    "FENCEPOST_REAPER_INTERVAL_SECONDS": ("reaper_interval_seconds", _seconds(0.05)),
    "FENCEPOST_RETENTION_SECONDS": ("retention_seconds", _seconds(1)),
    "FENCEPOST_DEAD_RETENTION_SECONDS": ("dead_retention_seconds", _seconds(1)),
    "FENCEPOST_IDEMPOTENCY_TTL_SECONDS": ("idempotency_ttl_seconds", _seconds(0)),
    "FENCEPOST_MAX_PAYLOAD_BYTES": ("max_payload_bytes", _whole_number(1, _MOST_BYTES)),
    "FENCEPOST_MAX_RESULT_BYTES": ("max_result_bytes", _whole_number(1, _MOST_BYTES)),
    "FENCEPOST_MAX_CHECKPOINT_BYTES": ("max_checkpoint_bytes", _whole_number(1, _MOST_BYTES)),
    "FENCEPOST_MAX_METADATA_BYTES": ("max_metadata_bytes", _whole_number(2, _MOST_BYTES)),
    "FENCEPOST_MAX_BODY_BYTES": ("max_body_bytes", _whole_number(2, _MOST_BYTES)),
    "FENCEPOST_MAX_BATCH_BODY_BYTES": ("max_batch_body_bytes", _whole_number(2, _MOST_BYTES)),
    "FENCEPOST_MAX_BATCH_ITEMS": ("max_batch_items", _whole_number(1, 10_000)),
    "FENCEPOST_LOG_FORMAT": ("log_format", _one_of(_LOG_FORMATS)),
    "FENCEPOST_LOG_LEVEL": ("log_level", _one_of(_LOG_LEVELS)),
}
