"""Secrets that are kept outside of the database: referred to, read at use, shown nowhere."""

import os
from pathlib import Path
from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.core.management import CommandError, call_command
from django.db import connection
from pydantic import SecretStr
from pytest_django import Settings

from audit.sealing import seal, verify
from catalogue.actions import sources
from catalogue.actions.sources import check_source, create_source, encrypted_columns, reencrypt_credentials
from catalogue.admin.sources import shown_settings
from catalogue.discovery import refresh_source
from catalogue.models import Source
from catalogue.secrets import MAX_FILE_BYTES, SecretUnavailable, encrypt_credentials, references_in, resolve
from orchestration.language_model import ModelError, ModelSettings
from tests.catalogue.engine import Engine
from tests.factories import make_source

KEY = "s3cret-that-nobody-sees-42"


@pytest.fixture
def folder(tmp_path: Path, settings: Settings) -> Path:
    settings.SECRETS_DIR = tmp_path / "secrets"
    settings.SECRETS_DIR.mkdir()
    settings.SECRET_VARIABLES = {"CATALOGUE_SECRET_ERP": f" {KEY}\n", "CATALOGUE_SECRET_EMPTY": " "}
    (settings.SECRETS_DIR / "erp").write_text(f"{KEY}\n")
    return Path(settings.SECRETS_DIR)


@pytest.mark.parametrize("reference", ["env:CATALOGUE_SECRET_ERP", "file:erp", "file: ./erp"])
def test_a_reference_leads_to_the_secret_without_white_space_around_it(folder, reference):
    """16.7"""
    assert resolve(reference) == KEY
    assert resolve(f"file:{folder}/erp") == KEY
    assert resolve("no reference") == "no reference"


@pytest.mark.parametrize(
    ("reference", "told"),
    [
        ("env:SECRET_KEY", "only environment variables that begin with CATALOGUE_SECRET_"),
        ("env:DATABASE_URL", "only environment variables"),
        ("env:CATALOGUE_SECRET_", "only environment variables"),
        ("env:CATALOGUE_SECRETS_DIR", "only environment variables"),
        ("env:", "only environment variables"),
        ("env:CATALOGUE_SECRET_NONE", "CATALOGUE_SECRET_NONE is not set"),
        ("env:CATALOGUE_SECRET_EMPTY", "CATALOGUE_SECRET_EMPTY is not set"),
        ("file:/etc/passwd", "only files below"),
        ("file:/nowhere/at/all", "only files below"),
        ("file:../outside", "only files below"),
        ("file:../secrets-of-others/key", "only files below"),
        ("file:", "only files below"),
        ("file:.", "only files below"),
        ("file:out", "only files below"),
        ("file:\0", "only files below"),
        ("file:nothing", "nothing in .* cannot be read: No such file"),
        ("file:pipe", "pipe in .* is not a regular file"),
        ("file:inner", "inner in .* is not a regular file|Is a directory"),
        ("file:large", "more than 65,536 bytes"),
        ("file:empty", "is empty"),
        ("file:binary", "is not UTF-8"),
    ],
)
def test_a_reference_to_anything_else_is_refused_in_words(folder, tmp_path, reference, told):
    """16.7: neither the server's other variables nor its other files, nor whether they are there."""
    (tmp_path / "outside").write_text(KEY)
    (tmp_path / "secrets-of-others").mkdir()
    (tmp_path / "secrets-of-others" / "key").write_text(KEY)
    (folder / "out").symlink_to(tmp_path / "outside")
    (folder / "inner").mkdir()
    (folder / "large").write_text("x" * (MAX_FILE_BYTES + 1))
    (folder / "empty").write_text(" \n")
    (folder / "binary").write_bytes(b"\xff\xfe\x00")
    os.mkfifo(folder / "pipe")

    with pytest.raises(SecretUnavailable, match=told) as refused:
        resolve(reference)
    assert KEY not in str(refused.value)


def test_links_within_the_folder_are_followed(folder):
    """As orchestrators mount secrets: `..data` leads to the folder of the present version."""
    (folder / "..2026").mkdir()
    (folder / "..2026" / "key").write_text("of today")
    (folder / "..data").symlink_to("..2026")
    (folder / "key").symlink_to("..data/key")

    assert resolve("file:key") == "of today"


def make_referring(engine: Engine, reference: str) -> Source:
    return create_source(
        name="erp",
        kind="simplified",
        config={"base_url": engine.base_url},
        credentials={"api_key": reference},
    )


def test_a_source_sends_the_secret_that_it_refers_to_and_shows_the_reference(db, engine, folder):
    """16.7"""
    engine.demand_key(KEY)
    source = make_referring(engine, "file:erp")

    assert check_source(source).ok
    assert dict(shown_settings(source))["API key"] == "file:erp"
    with connection.cursor() as cursor:
        cursor.execute("SELECT * FROM catalogue_source")
        assert KEY not in str(cursor.fetchall())


def test_another_content_of_the_file_takes_effect_without_a_restart(db, engine, folder):
    """16.7: as a secret is rotated."""
    engine.demand_key(KEY)
    source = make_referring(engine, "file:erp")
    assert check_source(source).ok

    engine.demand_key("the next key")
    assert not check_source(source).ok
    (folder / "erp").write_text("the next key")
    assert check_source(source).ok


def test_a_secret_that_is_gone_is_said_in_the_health_of_the_source(db, engine, folder):
    source = make_referring(engine, "file:erp")
    (folder / "erp").unlink()

    told = [check_source(source).message, refresh_source(source).error]
    assert all("api_key: the file erp in" in words and "No such file" in words for words in told)
    assert "api_key: the file erp" in Source.objects.get().health_message
    assert engine.asked == 0

    (folder / "erp").write_text(KEY)
    assert check_source(source).ok


def test_settings_with_a_reference_that_leads_nowhere_are_not_saved(db, engine, folder):
    for reference in ("env:CATALOGUE_SECRET_NONE", "env:PATH", "file:/etc/passwd"):
        with pytest.raises(ValidationError, match="api_key"):
            make_referring(engine, reference)
    assert not Source.objects.exists()


def test_the_models_key_can_be_a_reference(folder, settings):
    settings.CATALOGUE = settings.CATALOGUE | {
        "openai_model": "m",
        "openai_api_key": SecretStr("file:erp"),
    }
    assert ModelSettings.configured().api_key.get_secret_value() == KEY
    (folder / "erp").unlink()
    with pytest.raises(ModelError, match="OPENAI_API_KEY cannot be used: the file erp"):
        ModelSettings.configured()


def test_what_refers_to_nothing_costs_no_decryption_each_time():
    stored = encrypt_credentials({"api_key": KEY})
    assert references_in(stored) == ()
    before = references_in.cache_info().hits
    assert references_in(stored) == ()
    assert references_in.cache_info().hits == before + 1


# Rotation of the key that encrypts what is stored


@pytest.mark.databases("catalogue.actions.sources")
def test_a_rotation_that_was_broken_off_is_completed_by_the_next(db, settings, monkeypatch):
    """16.7"""
    former = settings.SECRET_KEY
    for number in range(5):
        make_source(api_key=f"key {number}")
    settings.SECRET_KEY, settings.SECRET_KEY_FALLBACKS = "the new key " * 4, [former]
    encrypt, encrypted = sources.encrypt_credentials, []

    def broken_off(credentials: dict[str, str]) -> str:
        if len(encrypted) == 3:
            raise KeyboardInterrupt
        encrypted.append(encrypt(credentials))
        return encrypted[-1]

    with monkeypatch.context() as patch:
        patch.setattr(sources, "encrypt_credentials", broken_off)
        with pytest.raises(KeyboardInterrupt):
            call_command("rotate_secret_key")
    keys = sorted(source.credentials["api_key"] for source in Source.objects.all())
    assert keys == [f"key {number}" for number in range(5)], "both keys read, between the two"

    assert reencrypt_credentials() == (5, [])
    settings.SECRET_KEY_FALLBACKS = []
    assert sorted(source.credentials["api_key"] for source in Source.objects.all()) == keys
    seal()
    assert verify().holds


@pytest.mark.databases("catalogue.actions.sources")
def test_what_no_known_key_reads_is_named_and_left_as_it_is(db, settings):
    lost = make_source("lost")
    stored = lost.encrypted_credentials
    settings.SECRET_KEY, settings.SECRET_KEY_FALLBACKS = "the new key " * 4, []
    make_source("found")

    with pytest.raises(CommandError, match="encrypted with an unknown key: lost"):
        call_command("rotate_secret_key")
    assert Source.objects.get(name="lost").encrypted_credentials == stored


def test_every_encrypted_column_is_rotated():
    """Whichever room has it: those that are encrypted are told by their names."""
    assert (Source, "encrypted_credentials") in list(encrypted_columns())


def test_variables_with_secrets_are_no_mistyped_settings(monkeypatch):
    from config.environment import read_environment, secret_variables

    monkeypatch.setenv("CATALOGUE_SECRET_ERP", KEY)
    read_environment()
    found: dict[str, Any] = secret_variables()
    assert found == {"CATALOGUE_SECRET_ERP": KEY}
