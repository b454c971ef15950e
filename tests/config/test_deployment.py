"""The files of deploy/ name commands, settings and files that exist. `make static` holds them
against the schemas of Compose and Kubernetes too."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from django.core.management import get_commands, load_command_class

from config.environment import Environment, variable_names
from tests.processes import ROOT

DEPLOY = ROOT / "deploy"
PROGRAM = "/opt/workflow-catalogue/bin/workflow-catalogue"
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))
OURS = ("migrate", "web", "worker", "beat")
CHART = DEPLOY / "chart"
TEMPLATES = "\n".join(path.read_text(encoding="utf-8") for path in (CHART / "templates").iterdir())
VALUES: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))


def check_command(words: list[str]) -> None:
    """It is a command of ours, and takes these arguments."""
    name, *arguments = words
    command = load_command_class(get_commands()[name], name)
    command.create_parser("workflow-catalogue", name).parse_args(arguments)


def unit(path: Path) -> list[tuple[str, str]]:
    lines = path.read_text(encoding="utf-8").splitlines()
    return [
        (line.partition("=")[0], line.partition("=")[2]) for line in lines if "=" in line and line[0] != "#"
    ]


@pytest.mark.parametrize("path", sorted((DEPLOY / "systemd").iterdir()), ids=lambda path: path.name)
def test_a_systemd_unit_starts_a_command_with_settings_that_exist(path):
    """E10"""
    lines = unit(path)
    (start,) = (value for key, value in lines if key == "ExecStart")
    program, *words = shlex.split(start)
    assert program == PROGRAM
    check_command(words)
    named = [value.partition("=")[0] for key, value in lines if key == "Environment"]
    named += [value.partition(":")[0] for key, value in lines if key == "LoadCredential"]
    assert set(named) <= set(variable_names())


@pytest.mark.parametrize("name", OURS)
def test_a_service_of_compose_runs_a_command_with_settings_that_exist(name):
    """E10"""
    service = COMPOSE["services"][name]
    check_command(service["command"])
    assert {*service["environment"], *service["secrets"]} <= set(variable_names())
    assert service["read_only"] and service["cap_drop"] == ["ALL"]


def test_no_service_of_compose_has_a_secret_in_its_environment():
    """E6"""
    secret = {
        name
        for name, field in zip(variable_names(), Environment.model_fields.values(), strict=True)
        if "Secret" in str(field.annotation)
    }
    for service in OURS:
        given = COMPOSE["services"][service]["environment"].keys() & secret
        assert given <= {"CELERY_BROKER_URL"}, "Redis there has no password"
    made = (DEPLOY / "secrets.sh").read_text(encoding="utf-8")
    assert all(f"[ -e {name} ]" in made for name in COMPOSE["secrets"])


def test_the_image_and_what_runs_it_agree():
    """E10: the user, the folder of the data, and the probes."""
    dockerfile = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    helpers = (CHART / "templates" / "_helpers.tpl").read_text(encoding="utf-8")
    (user,) = re.findall(r"^USER (\d+):\d+$", dockerfile, re.MULTILINE)
    assert f"runAsUser: {user}\n" in helpers
    web = COMPOSE["services"]["web"]
    # An option of a tmpfs that only Docker has would keep Podman from running it.
    assert "/tmp" in web["tmpfs"] and web["environment"]["CATALOGUE_DATA_DIR"].startswith("/tmp/")
    assert web["read_only"] and not any(":" in place for place in web["tmpfs"])
    assert "/health/ready" in dockerfile and "/health/ready" in helpers and "/health/live" in helpers
    arguments = json.loads(dockerfile.rpartition("\nCMD ")[2])
    check_command(arguments)
    script = (DEPLOY / "install.sh").read_text(encoding="utf-8")
    assert all((ROOT / name).exists() for name in re.findall(r"\$checkout/([\w.]+)", script))


def test_the_chart_sets_what_exists_and_starts_what_exists():
    """E10"""
    named = set(re.findall(r"\{name: ([A-Z][A-Z_]+),", TEMPLATES))
    assert named and named <= set(variable_names())
    starts = re.findall(r'list "([a-z]+)"((?: (?:"[^"]+"|\(.Values[^)]+\)))*)', TEMPLATES)
    commands = {name: shlex.split(re.sub(r"\(.Values[^)]+\)", "1", rest)) for name, rest in starts}
    assert {"serve", "worker", "beat", "migrate"} <= commands.keys()
    for name in ("serve", "worker", "beat", "migrate"):
        check_command([name, *commands[name]])


def test_each_value_of_the_chart_is_used_and_in_its_schema():
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    assert schema["properties"].keys() - {"global"} == VALUES.keys()
    for name in VALUES:
        assert f".Values.{name}" in TEMPLATES or f"$root.Values.{name}" in TEMPLATES, name


def test_the_chart_has_the_products_version():
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    assert chart["appVersion"] == chart["version"] == (ROOT / "VERSION").read_text(encoding="ascii").strip()
