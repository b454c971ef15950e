"""Settings: read once, checked at the start, and all of them on the page of settings."""

import os
import re
import subprocess

import pytest
from pydantic import SecretStr

from config.environment import Environment, read_environment, variable_names
from tests.processes import ROOT, run_python


def settings_rows() -> list[str]:
    """Returns the rows that the tables of the page contain."""
    rows = []
    for name, field in zip(variable_names(), Environment.model_fields.values(), strict=True):
        variable = f"`{name}{shown_default(name, field.default)}`"
        if field.json_schema_extra:  # It can be changed while the product runs.
            variable = f"**{variable}**"
        rows.append(f"| {variable} | {linked(field.description)} |")
    return rows


def linked(description: str | None) -> str:
    """Returns the description with links instead of names of pages."""
    return re.sub(r"docs/([a-z-]+)\.md", r"[\1](\1.md)", description or "")


def shown_default(name: str, default: object) -> str:
    """Returns `=VALUE`, or an empty string for defaults that the description explains."""
    default = default.get_secret_value() if isinstance(default, SecretStr) else default
    if name == "CATALOGUE_DATA_DIR" or default == "":
        return ""
    return f"={str(default).lower() if isinstance(default, bool) else default}"


def start_with(**variables: str) -> subprocess.CompletedProcess[str]:
    """Start the product with these variables and no others of ours."""
    return run_python(["manage.py", "check"], environment=os.environ | variables)


def test_the_page_of_settings_shows_each_with_its_default_and_meaning():
    page = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if re.match(r"\| \**`", line)]
    expected = settings_rows()
    assert sorted(set(rows) - set(expected)) == [], "docs/settings.md: remove or correct these rows"
    assert sorted(set(expected) - set(rows)) == [], "docs/settings.md: add these rows"
    assert len(rows) == len(expected)


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
        ("CATALOGUE_PUBLIC_URL", "ftp://catalogue.example.com"),
        ("CATALOGUE_PUBLIC_URL", "https://"),
        ("CATALOGUE_PUBLIC_URL", "https://catalogue.example.com/tools"),
        ("CATALOGUE_PUBLIC_URL", "https://catalogue.example.com/tools/"),
        ("CATALOGUE_PUBLIC_URL", "https://catalogue.example.com?a=b"),
        ("CATALOGUE_PUBLIC_URL", "https://catalogue.example.com/?"),
        ("CATALOGUE_PUBLIC_URL", "https://catalogue.example.com#top"),
        ("CATALOGUE_PUBLIC_URL", "https://ada:secret@catalogue.example.com"),
        ("CATALOGUE_PUBLIC_URL", "https://ada@catalogue.example.com"),
        ("CATALOGUE_PUBLIC_URL", "https://catalogue.example.com:99999"),
        ("CATALOGUE_PUBLIC_URL", "https://catalogue.example.com:0"),
        ("CATALOGUE_PUBLIC_URL", "https://catalogue.example.com:port"),
        ("CATALOGUE_PUBLIC_URL", "https://catalogue example.com"),
        ("CATALOGUE_PUBLIC_URL", "https://catalogue.example.com\\tools"),
        ("CATALOGUE_PUBLIC_URL", "https://*.example.com"),
        ("CATALOGUE_PUBLIC_URL", "https://[::1"),
        ("CATALOGUE_ALLOWED_HOSTS", "*"),
        ("CATALOGUE_ALLOWED_HOSTS", "example.com,*.example.com"),
        ("CATALOGUE_ALLOWED_HOSTS", "https://example.com"),
        ("CATALOGUE_ALLOWED_HOSTS", "example.com:8000"),
        ("CATALOGUE_ALLOWED_ORIGINS", "inspector.example.com"),
        ("CATALOGUE_ALLOWED_ORIGINS", "http://inspector.example.com"),
        ("CATALOGUE_ALLOWED_ORIGINS", "HTTP://localhost.example.com"),
        ("CATALOGUE_ALLOWED_ORIGINS", "https://*.example.com"),
        ("CATALOGUE_ALLOWED_ORIGINS", "*"),
        ("CATALOGUE_ALLOWED_ORIGINS", "app://obsidian.md/vault"),
        ("CATALOGUE_ALLOWED_ORIGINS", "https://ada@inspector.example.com"),
        ("CATALOGUE_ALLOWED_ORIGINS", "file://"),
        ("CATALOGUE_TRUSTED_PROXIES", "proxy.internal"),
        ("CATALOGUE_TRUSTED_PROXIES", "10.0.0.1/8"),
        ("SECRET_KEY", "x"),
        ("OPENAI_BASE_URL", "ftp://models.example.com/v1"),
        ("OPENAI_BASE_URL", "models.example.com"),
        ("DATABASE_URL", "oracle://x"),
        ("DATABASE_URL", "postgres://user:pass/word@host/name"),
        ("DATABASE_URL", "postgres://host"),
        ("DATABASE_URL", "sqlite:///"),
        ("CELERY_BROKER_URL", "nonsense"),
        ("CELERY_BROKER_URL", "redis://broker:99999/0"),
        ("CELERY_BROKER_URL", "redis://:a/b@broker/0"),
        ("CATALOGUE_STDIO_COMMANDS", "files=/opt/files-mcp"),
        ("CATALOGUE_STDIO_COMMANDS", '{"files": []}'),
        ("CATALOGUE_HTTP_TOOL_HOSTS", "billing.internal,10.1.2.3/16"),
        ("CATALOGUE_OUTBOUND_PROXY", "socks5://proxy:1080"),
        ("CATALOGUE_OUTBOUND_PROXY", "proxy:3128"),
        ("CATALOGUE_OUTBOUND_PROXY", "http://"),
        ("CATALOGUE_OUTBOUND_PROXY", "http://user:password@proxy:99999"),
        ("CATALOGUE_OUTBOUND_PROXY", "http://proxy:3128/path"),
        ("CATALOGUE_NO_PROXY", "10.0.0.1/8"),
        ("CATALOGUE_STDIO_COMMANDS", '{"files": {"command": ["files"], "shell": true}}'),
        ("CATALOGUE_OAUTH_DOCUMENT_CA_FILE", "/nope"),
        ("CATALOGUE_OAUTH_DOCUMENT_CA_FILE", "/"),
        ("CATALOGUE_OAUTH_DOCUMENT_CA_FILE", __file__),
        ("CATALOGUE_OAUTH_REDIRECT_SCHEMES", "claude,javascript"),
        ("CATALOGUE_OAUTH_REDIRECT_SCHEMES", "chrome-extension"),
        ("CATALOGUE_OAUTH_REDIRECT_SCHEMES", "claude,ms-settings"),
        ("CATALOGUE_OAUTH_REDIRECT_SCHEMES", "search-ms"),
        ("CATALOGUE_OAUTH_REDIRECT_SCHEMES", "jar"),
        ("CATALOGUE_OAUTH_REDIRECT_SCHEMES", "mailto,warp"),
        ("CATALOGUE_OAUTH_REDIRECT_SCHEMES", "resource"),
        ("CATALOGUE_OAUTH_REDIRECT_SCHEMES", "http"),
        ("CATALOGUE_OAUTH_REDIRECT_SCHEMES", "warp://"),
        ("CATALOGUE_OAUTH_REDIRECT_SCHEMES", "*"),
        ("CATALOGUE_SECRETS_DIR", "/nope"),
        ("CATALOGUE_SECRETS_DIR", __file__),
    ],
)
def test_a_malformed_value_is_refused_with_a_sentence_that_names_it(variable, value, monkeypatch):
    """B4"""
    monkeypatch.setenv(variable, value)
    with pytest.raises(SystemExit) as ended:
        read_environment()
    assert f"\n  {variable}: " in str(ended.value.code)


@pytest.mark.parametrize(
    ("given", "address"),
    [
        ("https://catalogue.example.com/", "https://catalogue.example.com"),
        ("HTTPS://Catalogue.Example.com", "https://catalogue.example.com"),
        ("https://catalogue.example.com:443", "https://catalogue.example.com"),
        ("http://catalogue:80/", "http://catalogue"),
        ("https://catalogue.example.com:8443", "https://catalogue.example.com:8443"),
        ("http://[2001:db8::1]:8000", "http://[2001:db8::1]:8000"),
        ("http://192.0.2.1", "http://192.0.2.1"),
    ],
)
def test_a_public_address_is_taken_as_browsers_write_it(given, address, monkeypatch):
    """O5: it is compared with what they send."""
    monkeypatch.setenv("CATALOGUE_PUBLIC_URL", given)
    assert read_environment().address == address


def test_mistakes_end_the_start_with_a_sentence_for_each():
    """B4: no traceback, nothing started."""
    outcome = start_with(PORT="eighty", LOG_LEVEL="LOUD")
    assert outcome.returncode != 0
    assert "PORT: " in outcome.stderr and "LOG_LEVEL: " in outcome.stderr
    assert "Traceback" not in outcome.stderr


@pytest.mark.e2e
def test_a_data_folder_that_cannot_be_made_ends_the_start_with_a_sentence():
    """B4"""
    outcome = start_with(CATALOGUE_DATA_DIR="/dev/null/data")
    assert outcome.returncode != 0
    assert "CATALOGUE_DATA_DIR" in outcome.stderr
    assert "Traceback" not in outcome.stderr


def test_a_misspelt_setting_ends_the_start_with_a_suggestion(monkeypatch):
    monkeypatch.setenv("CATALOGUE_INLINE_WIAT", "3")
    with pytest.raises(SystemExit, match=r"CATALOGUE_INLINE_WIAT: .* CATALOGUE_INLINE_WAIT\?$"):
        read_environment()


def test_hosts_proxies_and_keys_that_make_sense_are_taken(monkeypatch):
    """B4"""
    monkeypatch.setenv("CATALOGUE_ALLOWED_HOSTS", "a.example.com, .b.example.com,192.0.2.1,[2001:db8::1]")
    origins = "https://a.example, http://localhost:6274/,http://tauri.localhost,app://obsidian.md,null"
    monkeypatch.setenv("CATALOGUE_ALLOWED_ORIGINS", f"{origins},chrome-extension://abcdef,tauri://localhost")
    monkeypatch.setenv("CATALOGUE_TRUSTED_PROXIES", "127.0.0.1, 10.0.0.0/8,2001:db8::/32")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:8080/v1/")
    monkeypatch.setenv("SECRET_KEY", "k" * 32)
    assert read_environment().secret_key.get_secret_value() == "k" * 32


def test_settings_may_be_files_below_what_the_environment_says(tmp_path, monkeypatch):
    """E10: as Docker, Kubernetes and systemd hand secrets over."""
    (tmp_path / "SECRET_KEY").write_text("k" * 40 + "\n")
    (tmp_path / "PORT").write_text("7000\n")
    monkeypatch.setenv("CATALOGUE_SETTINGS_DIR", str(tmp_path))
    monkeypatch.setenv("PORT", "7001")
    read = read_environment()
    assert (read.secret_key.get_secret_value(), read.port) == ("k" * 40, 7001)


def test_a_refused_address_of_a_webhook_is_not_quoted(monkeypatch):
    """B4: whoever knows it may send."""
    monkeypatch.setenv(
        "CATALOGUE_APPROVAL_WEBHOOK_URL", "https://hooks.example.com/services/T0?sig=known#top"
    )
    with pytest.raises(SystemExit) as refusal:
        read_environment()
    told = str(refusal.value)
    assert "The URL must end before any '#'. (got a hidden value)" in told
    assert "T0" not in told and "known" not in told


@pytest.mark.parametrize(
    "secret", ["", "k" * 31, "whsec_no Base64 but more than thirty-two", "whsec_a2V5IG9mIHRvbyBmZXcgYnl0ZXM="]
)
def test_a_webhook_secret_that_no_receiver_could_use_safely_is_refused(monkeypatch, secret):
    monkeypatch.setenv("CATALOGUE_APPROVAL_WEBHOOK_URL", "https://hooks.example.com")
    monkeypatch.setenv("CATALOGUE_APPROVAL_WEBHOOK_SECRET", secret)
    with pytest.raises(SystemExit, match=r"must be `whsec_` followed by at least 24 random bytes in Base64"):
        read_environment()


def test_what_a_file_of_a_setting_has_wrong_is_told_as_of_the_environment(tmp_path, monkeypatch):
    """B4"""
    monkeypatch.setenv("CATALOGUE_SETTINGS_DIR", str(tmp_path))
    (tmp_path / "PORT").write_text("eighty\n")
    with pytest.raises(SystemExit, match=r"\n  PORT: .*\(got 'eighty'\)"):
        read_environment()
    (tmp_path / "SECRET_KEY").write_bytes(b"\xff" * 40)
    with pytest.raises(SystemExit, match=r"\n  CATALOGUE_SETTINGS_DIR: .*\"secret_key\".*can't decode"):
        read_environment()


def test_a_folder_of_settings_that_is_not_there_is_named(monkeypatch):
    """B4"""
    monkeypatch.setenv("CATALOGUE_SETTINGS_DIR", "/run/no-such-folder")
    with pytest.raises(SystemExit, match="CATALOGUE_SETTINGS_DIR: /run/no-such-folder is not a folder"):
        read_environment()


def test_no_message_shows_a_secret(monkeypatch):
    monkeypatch.setenv("DATABASE_URL", "postgres//user:hunter2@host/name")
    with pytest.raises(SystemExit) as ended:
        read_environment()
    assert "hunter2" not in str(ended.value)


@pytest.mark.e2e
def test_a_debug_page_shows_no_password_of_the_settings():
    """E6: anybody can ask for one, by naming a host that is not ours."""
    program = (
        "import django\n"
        "django.setup()\n"
        "from django.test import Client\n"
        "page = Client(raise_request_exception=False).get('/admin/', headers={'host': 'elsewhere'})\n"
        "print(page.status_code, page.content.decode())\n"
    )
    passwords = {
        "DATABASE_URL": "postgres://user:hunter1@db.internal/name",
        "CELERY_BROKER_URL": "redis://:hunter2@broker.internal/0",
        "SECRET_KEY": "hunter3" * 8,
        "SECRET_KEY_FALLBACKS": "hunter4" * 8,
        "OPENAI_API_KEY": "hunter5",
    }
    variables = passwords | {"CATALOGUE_DEBUG": "true", "DJANGO_SETTINGS_MODULE": "config.settings"}
    outcome = run_python(["-c", program], environment=os.environ | variables)
    assert outcome.stdout.startswith("400 ")
    assert "CELERY_BROKER_URL" in outcome.stdout
    assert "hunter" not in outcome.stdout
