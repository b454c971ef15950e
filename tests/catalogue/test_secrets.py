"""Credentials: encrypted where they are kept, and shown nowhere."""

import json
import traceback

import pytest
from django.core import serializers
from django.core.exceptions import ValidationError
from django.db import connection

from catalogue.actions.sources import change_source, check_source, create_source
from catalogue.connections import make_connector
from catalogue.discovery import refresh_source
from catalogue.models import Source
from catalogue.secrets import CredentialsUnreadable, decrypt_credentials, encrypt_credentials
from connectors.errors import Misconfigured
from tests.factories import NOWHERE, make_source

SECRET = "s3cret-äöü-that-nobody-sees"
KEY = "s3cret-that-nobody-sees-42"


@pytest.mark.databases("catalogue.models.source")
def test_credentials_are_stored_encrypted_and_read_back(db):
    """B8, E6"""
    make_source("erp", api_key=SECRET)

    with connection.cursor() as cursor:
        cursor.execute("SELECT * FROM catalogue_source")
        stored = str(cursor.fetchall())
    assert SECRET not in stored and json.dumps(SECRET)[1:-1] not in stored
    assert SECRET not in serializers.serialize("json", Source.objects.all())
    assert Source.objects.get().credentials == {"api_key": SECRET}


def test_no_credentials_are_stored_as_nothing(db):
    make_source(api_key="")

    assert Source.objects.get().encrypted_credentials == ""
    assert Source.objects.get().credentials == {}


def test_the_same_secret_never_looks_the_same_twice():
    """E6: nobody can tell that two sources share a key."""
    assert encrypt_credentials({"api_key": KEY}) != encrypt_credentials({"api_key": KEY})


def test_after_a_change_of_the_key_the_old_one_still_reads_as_a_fallback(settings):
    """E6: so that keys can be changed without entering every secret again."""
    settings.SECRET_KEY, settings.SECRET_KEY_FALLBACKS = "the old key", []
    old = encrypt_credentials({"api_key": KEY})
    settings.SECRET_KEY, settings.SECRET_KEY_FALLBACKS = "the new key", ["the old key"]

    assert decrypt_credentials(old) == {"api_key": KEY}

    new = encrypt_credentials({"api_key": KEY})
    settings.SECRET_KEY_FALLBACKS = []
    assert decrypt_credentials(new) == {"api_key": KEY}
    with pytest.raises(CredentialsUnreadable, match="present SECRET_KEY; enter them again"):
        decrypt_credentials(old)


@pytest.mark.parametrize("stored", ["not a token", "gAAAAA==", "ümlaut", "\u0000"])
def test_credentials_that_were_damaged_are_unreadable_in_words(stored):
    with pytest.raises(CredentialsUnreadable, match="enter them again"):
        decrypt_credentials(stored)


def test_a_source_whose_credentials_cannot_be_read_says_so_at_every_door(engine, source, settings):
    """A5.1, B5: the operator who restored a backup with another key learns what to do."""
    settings.SECRET_KEY = "another key"

    told = [check_source(source).message, refresh_source(source).error]
    with pytest.raises(ValidationError) as refused:
        change_source(Source.objects.get(), config={"base_url": engine.base_url})
    told += refused.value.message_dict["config"]

    assert {"enter them again" in words for words in told} == {True}
    assert engine.asked == 0
    change_source(Source.objects.get(), credentials={"api_key": "entered again"})
    assert check_source(Source.objects.get()).ok


def every_word_of(error: BaseException) -> str:
    """Message, chain and the variables that a debugging page would show of our frames."""
    return "".join(traceback.TracebackException.from_exception(error).format(chain=True))


@pytest.mark.parametrize(
    ("config", "api_key"),
    [
        ({"base_url": "not a URL"}, KEY),
        ({"base_url": NOWHERE}, KEY + "\n" + KEY),
        ({"base_url": NOWHERE}, KEY + "ä"),
        ({"base_url": NOWHERE, "unknown": 1}, KEY),
        ({"base_url": NOWHERE, "verify_tls": "perhaps"}, KEY),
        ({"base_url": f"http://user:{KEY}@127.0.0.1:9"}, KEY),
        ({"base_url": NOWHERE, "api_key": KEY}, ""),
    ],
)
def test_no_complaint_about_settings_shows_a_secret(db, config, api_key):
    """B5, E6"""
    with pytest.raises(ValidationError) as refused:
        create_source(name="erp", kind="simplified", config=config, credentials={"api_key": api_key})

    assert KEY not in every_word_of(refused.value)
    assert not Source.objects.exists()


def test_a_credential_of_a_wrong_type_is_refused_without_being_quoted(db):
    """E6"""
    source = make_source(api_key="")
    source.credentials = {"api_key": [KEY]}  # type: ignore[dict-item]

    with pytest.raises(Misconfigured) as refused:
        make_connector(source)

    assert "api_key" in refused.value.message and KEY not in every_word_of(refused.value)


def test_neither_a_source_nor_its_connector_shows_a_secret(db):
    """E6"""
    source = make_source("erp", api_key=KEY)
    connector = make_connector(source)

    shown = [repr(source), str(source), str(vars(source)), repr(connector), str(vars(connector))]

    assert not [text for text in shown if KEY in text]


def test_an_engine_that_echoes_the_key_gets_it_into_no_record_and_no_log(db, engine, logged):
    """E6, B8"""
    source = make_source("erp", base_url=engine.base_url, api_key=KEY)
    engine.workflows = [
        {"id": KEY, "name": f"name {KEY}", "description": f"Key {KEY}"},
        {"id": "bad", "name": KEY},
    ]
    run = refresh_source(source)
    engine.fails_with(500, f"Traceback: headers = {{'Authorization': 'Api-Key {KEY}'}}")
    failed = refresh_source(source)

    assert (run.added, run.skipped_count) == (1, 1)
    source.refresh_from_db()
    shown = [str(run.skipped), failed.error, source.health_message, *logged]
    shown += [str(row) for row in source.workflows.values()]
    assert not [text for text in shown if KEY in text]


@pytest.mark.parametrize("config", [[], None, "text", 5])
def test_settings_that_are_no_object_are_refused_in_words(db, config):
    """B4"""
    with pytest.raises(ValidationError) as refused:
        create_source(name="erp", kind="simplified", config=config, credentials={})

    assert set(refused.value.message_dict) == {"config"}


@pytest.mark.parametrize("config", [[], "text", 5])
def test_settings_that_are_no_object_replace_none(source, config):
    """B4: also where it is asked first whether stored secrets would go elsewhere."""
    with pytest.raises(ValidationError) as refused:
        change_source(Source.objects.get(), config=config)

    assert refused.value.message_dict == {"config": ["The settings must be a JSON object."]}
    assert Source.objects.get().config == source.config
