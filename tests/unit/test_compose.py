"""The compose stack, as far as it can be checked without an engine."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from agent.cli.main import app

ROOT = Path(__file__).parents[2]
COMPOSE_TEXT = (ROOT / "docker-compose.yml").read_text(encoding="utf-8")
COMPOSE: dict[str, Any] = yaml.safe_load(COMPOSE_TEXT)
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
ENV_EXAMPLE = (ROOT / ".env.example").read_text(encoding="utf-8")

VARIABLE = re.compile(r"(?<!\$)\$\{(\w+)(?P<rest>[^}]*)\}")
PINNED = re.compile(r"[\w./-]+:\w*\d+\.\d+[\w.-]*")


def environment(service: dict[str, Any]) -> dict[str, str | None]:
    return service.get("environment", {})


def passed_through() -> set[str]:
    return {
        name for s in SERVICES.values() for name, value in environment(s).items() if value is None
    }


def test_images_are_pinned_by_version() -> None:
    images = [service["image"] for service in SERVICES.values()]
    images += re.findall(r"^FROM (\S+)", DOCKERFILE, re.MULTILINE)
    assert len(images) == len(SERVICES) + 1
    for image in images:
        assert PINNED.fullmatch(image), image


def test_every_required_variable_says_what_to_do() -> None:
    for match in VARIABLE.finditer(COMPOSE_TEXT):
        assert match["rest"].startswith(":?Set "), match[0]
        assert ".env" in match["rest"], match[0]


def test_env_example_names_exactly_the_variables_of_the_stack() -> None:
    documented = set(re.findall(r"^#?(\w+)=", ENV_EXAMPLE, re.MULTILINE))
    required = {match[1] for match in VARIABLE.finditer(COMPOSE_TEXT)}
    assert documented == required | passed_through()
    assert re.search(r"^POSTGRES_PASSWORD=$", ENV_EXAMPLE, re.MULTILINE), "no default password"


def test_variables_of_ours_are_ones_the_command_line_reads() -> None:
    used = {name for s in SERVICES.values() for name in environment(s) if "TOOLRAG" in name}
    known = {
        name
        for parameter in typer.main.get_command(app).params
        for name in (
            [parameter.envvar] if isinstance(parameter.envvar, str) else parameter.envvar or []
        )
    }
    assert used == {"TOOLRAG_DATABASE_URL", "TOOLRAG_MODEL", "TOOLRAG_EMBEDDING_MODEL"}
    assert used <= known | {"TOOLRAG_MODEL"}  # read where a chat model is needed
    source = (ROOT / "agent/cli/model.py").read_text(encoding="utf-8")
    assert '"TOOLRAG_MODEL"' in source


@pytest.mark.parametrize("name", ["migrate", "demo"])
def test_commands_exist_in_the_command_line(name: str) -> None:
    words = SERVICES[name]["command"]
    command: Any = typer.main.get_command(app)
    for word in words:
        assert word in command.commands, f"toolrag {' '.join(words)}"
        command = command.commands[word]
    assert not hasattr(command, "commands"), "a group is not a command"


def test_services_wait_for_what_they_need() -> None:
    for service in SERVICES.values():
        for needed, rule in service.get("depends_on", {}).items():
            other = SERVICES[needed]
            if rule["condition"] == "service_healthy":
                assert "pg_isready" in " ".join(other["healthcheck"]["test"])
            else:
                assert rule["condition"] == "service_completed_successfully"
                assert other["restart"] == "no"
    assert set(SERVICES["migrate"]["depends_on"]) == {"db"}
    assert set(SERVICES["demo"]["depends_on"]) == {"migrate"}


def test_ports_are_published_on_this_machine_only() -> None:
    ports = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_database_url_names_the_database_service_and_its_variables() -> None:
    url = environment(SERVICES["migrate"])["TOOLRAG_DATABASE_URL"]
    assert url == environment(SERVICES["demo"])["TOOLRAG_DATABASE_URL"]
    assert url is not None
    plain = VARIABLE.sub(lambda match: match[1], url)
    assert plain == "postgresql://POSTGRES_USER:POSTGRES_PASSWORD@db:5432/POSTGRES_DB"
    inside = set(environment(SERVICES["db"]))
    assert {match[1] for match in VARIABLE.finditer(url)} == inside


def test_data_outlives_the_container() -> None:
    (mount,) = SERVICES["db"]["volumes"]
    volume, _, path = mount.partition(":")
    assert volume in COMPOSE["volumes"]
    # Postgres 18 images refuse a volume at the older .../data.
    assert path == "/var/lib/postgresql"


def test_image_installs_the_tested_versions_and_runs_unprivileged() -> None:
    assert "--constraint constraints.txt '.[local-embeddings]'" in DOCKERFILE
    steps = [line.split()[0] for line in DOCKERFILE.splitlines() if line[:1].isupper()]
    assert steps.index("USER") < steps.index("ENTRYPOINT")
    assert "USER root" not in DOCKERFILE
    assert 'ENTRYPOINT ["toolrag"]' in DOCKERFILE


def test_what_the_image_copies_exists_and_is_not_ignored() -> None:
    copied = [
        name.removeprefix("./")
        for line in re.findall(r"^COPY (.+)$", DOCKERFILE, re.MULTILINE)
        for name in line.split()[:-1]
    ]
    ignore = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert ignore[0] == "*"
    for name in copied:
        assert (ROOT / name).exists(), name
        assert f"!{name}" in ignore, name
