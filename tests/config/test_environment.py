"""Settings: read once, checked at the start, and all of them in the README."""

import subprocess
import sys

import pytest

from config.environment import Environment, read_environment, variable_names
from tests.processes import ROOT

TABLE_START, TABLE_END = "<!-- settings: begin -->\n", "<!-- settings: end -->"


def settings_table() -> str:
    """What the README has to show."""
    lines = ["| variable | default | meaning |", "|---|---|---|"]
    for name, field in zip(variable_names(), Environment.model_fields.values(), strict=True):
        lines.append(f"| `{name}` | {shown(name, field.default)} | {field.description} |")
    return "\n".join(lines) + "\n"


def shown(name: str, default: object) -> str:
    """Defaults that are made up at the start are told in the text."""
    if name == "CATALOGUE_DATA_DIR":
        return "`var/`"
    if name == "SECRET_KEY" or default == "":
        return ""
    return f"`{str(default).lower() if isinstance(default, bool) else default}`"


def start_with(**variables: str) -> subprocess.CompletedProcess[str]:
    """Start the product with these variables and no others of ours."""
    import os

    return subprocess.run(
        [sys.executable, "manage.py", "check"],
        cwd=ROOT,
        env=os.environ | variables,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_the_readme_shows_every_setting_with_its_default_and_meaning():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    table = readme.partition(TABLE_START)[2].partition(TABLE_END)[0]
    assert table == settings_table(), f"Put this table into README.md:\n{settings_table()}"


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("PORT", "eighty"),
        ("PORT", "70000"),
        ("LOG_LEVEL", "LOUD"),
        ("LOG_FORMAT", "xml"),
        ("CATALOGUE_EXECUTION_TIMEOUT", "0"),
        ("CATALOGUE_DISCOVERY_ENABLED", "perhaps"),
        ("CATALOGUE_PUBLIC_URL", "catalogue.example.com"),
        ("DATABASE_URL", "oracle://x"),
        ("CELERY_BROKER_URL", "nonsense"),
        ("CATALOGUE_STDIO_COMMANDS", "files=/opt/files-mcp"),
        ("CATALOGUE_STDIO_COMMANDS", '{"files": []}'),
        ("CATALOGUE_HTTP_TOOL_HOSTS", "billing.internal,10.1.2.3/16"),
        ("CATALOGUE_STDIO_COMMANDS", '{"files": {"command": ["files"], "shell": true}}'),
    ],
)
def test_a_malformed_value_is_refused_with_a_sentence_that_names_it(
    variable: str, value: str, monkeypatch: pytest.MonkeyPatch
):
    """B4"""
    monkeypatch.setenv(variable, value)
    with pytest.raises(SystemExit) as ended:
        read_environment()
    assert f"\n  {variable}: " in str(ended.value.code)


def test_mistakes_end_the_start_with_a_sentence_for_each():
    """B4: no traceback, nothing started."""
    outcome = start_with(PORT="eighty", LOG_LEVEL="LOUD")
    assert outcome.returncode != 0
    assert "PORT: " in outcome.stderr and "LOG_LEVEL: " in outcome.stderr
    assert "Traceback" not in outcome.stderr


def test_a_data_folder_that_cannot_be_made_ends_the_start_with_a_sentence():
    """B4"""
    outcome = start_with(CATALOGUE_DATA_DIR="/dev/null/data")
    assert outcome.returncode != 0
    assert "CATALOGUE_DATA_DIR" in outcome.stderr
    assert "Traceback" not in outcome.stderr


def test_a_misspelt_setting_ends_the_start_with_a_suggestion():
    outcome = start_with(CATALOGUE_INLINE_WIAT="3")
    assert outcome.returncode != 0
    assert "CATALOGUE_INLINE_WIAT: no such setting; did you mean CATALOGUE_INLINE_WAIT?" in outcome.stderr


def test_no_message_shows_a_secret():
    outcome = start_with(DATABASE_URL="postgres//user:hunter2@host/name", SECRET_KEY="")
    assert "hunter2" not in outcome.stderr + outcome.stdout
