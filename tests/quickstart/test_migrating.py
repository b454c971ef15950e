"""The database that a start finds."""

import pytest
from django.core.management import CommandError
from django.db import connection
from django.db.migrations.recorder import MigrationRecorder

from catalogue import database
from config.environment import MIGRATE_FIRST
from config.management.commands import quickstart
from config.monitoring import Readiness

pytestmark = [
    pytest.mark.django_db,
    pytest.mark.databases("catalogue.database", "config.management.commands.quickstart"),
]


def test_a_database_that_is_up_to_date_is_not_talked_of(capsys):
    """A1.2"""
    quickstart.migrate()
    assert capsys.readouterr().out == ""


def test_a_database_that_cannot_be_reached_ends_the_start_with_a_sentence(monkeypatch):
    """A1.2, E8"""
    unreachable = connection.copy()
    unreachable.settings_dict |= {"HOST": "127.0.0.1", "PORT": "9", "NAME": "/missing/database"}
    unreachable.settings_dict["OPTIONS"].pop("pool", None)
    monkeypatch.setattr(database, "connection", unreachable)
    with pytest.raises(CommandError, match="The database cannot be used: "):
        quickstart.migrate()


def test_a_database_from_before_the_squash_is_recorded_as_up_to_date(capsys):
    """E8: all that the squashed migrations would do is in it."""
    squashed = MigrationRecorder(connection).migration_qs.filter(name__startswith="0001_squashed_")
    count, _ = squashed.all().delete()
    quickstart.migrate()
    assert capsys.readouterr().out == ""
    assert squashed.count() == count == 5


def test_a_database_that_lacks_some_of_the_squashed_migrations_is_refused():
    """E8: Django would say that it is up to date."""
    recorded = MigrationRecorder(connection).migration_qs
    recorded.filter(app="catalogue", name__in=["0018_server_features", "0019_plain_labels"]).delete()
    with pytest.raises(CommandError, match=r"catalogue up to 0017_webhooks only.*and-upgrading\.md"):
        quickstart.migrate()
    check = Readiness().checks()["migrations"]
    assert not check.ok and "catalogue up to 0017_webhooks only" in check.reason


def test_readiness_says_how_many_migrations_an_update_has_left_to_apply():
    """E8"""
    MigrationRecorder(connection).record_unapplied("orchestration", "0008_request_toolset")
    check = Readiness().checks()["migrations"]
    assert not check.ok and check.reason == f"1 migration is not applied. {MIGRATE_FIRST}"
