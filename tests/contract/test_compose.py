"""docker-compose.yml, held to the Compose specification; no engine and no docker compose is needed for it."""

import re
from pathlib import Path

import pytest
from compose_spec import PyCompose
from compose_spec.models import Service

from app.domain.caller import Scope
from app.settings import Settings

_TEXT = (Path(__file__).parents[2] / "docker-compose.yml").read_text(encoding="utf-8")


@pytest.fixture(name="services")
def _services() -> dict[str, Service]:
    compose = PyCompose.from_yaml(_TEXT)
    compose.to_spec()
    assert compose.services is not None
    return compose.services


def test_the_check_refuses_what_the_specification_does_not_know() -> None:
    with pytest.raises(ValueError, match="depend_on"):
        PyCompose.from_yaml(_TEXT.replace("depends_on:", "depend_on:"))


def test_the_service_waits_for_a_healthy_database(services: dict[str, Service]) -> None:
    depends_on = services["fencepost"].depends_on
    assert isinstance(depends_on, dict)
    condition = depends_on["database"].condition
    assert condition is not None
    assert condition.value == "service_healthy"
    assert "pg_isready" in str(services["database"].healthcheck)


def test_the_database_is_a_postgresql_17_that_keeps_its_data_in_a_named_volume(
    services: dict[str, Service],
) -> None:
    assert services["database"].image == "postgres:17"
    assert "database:/var/lib/postgresql/data" in str(services["database"].volumes)
    assert list(PyCompose.from_yaml(_TEXT).volumes or {}) == ["database"]


def test_the_service_is_published_on_this_machine_only_and_checked_for_readiness(
    services: dict[str, Service],
) -> None:
    assert [str(port) for port in services["fencepost"].ports or []] == ["127.0.0.1:8000:8000"]
    assert "/readyz" in str(services["fencepost"].healthcheck)


def test_the_settings_accept_the_environment_and_the_command_of_the_file(
    services: dict[str, Service],
) -> None:
    environment: object = services["fencepost"].environment
    assert isinstance(environment, dict)
    given = environment | {"FENCEPOST_API_KEYS": "me:produce+work+operate:secret"}
    settings = Settings.from_environment(given, host="0.0.0.0")
    settings.refuse_unsafe_serving()
    assert services["fencepost"].command == ["serve", "--host", "0.0.0.0"]
    assert settings.database_url is not None


def test_compose_stops_with_a_clear_line_when_no_api_keys_are_set(services: dict[str, Service]) -> None:
    environment: object = services["fencepost"].environment
    assert isinstance(environment, dict)
    required = re.fullmatch(r"\$\{FENCEPOST_API_KEYS:\?(.+)\}", environment["FENCEPOST_API_KEYS"])
    assert required
    assert "name:scope+scope:secret" in required[1]
    assert all(scope in required[1] for scope in Scope)
