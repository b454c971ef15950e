"""Discovery runs in the admin: what a listing skipped, and why."""

from datetime import timedelta

import pytest

from catalogue.models import DiscoveryRun
from tests.admin.pages import list_url, page_url, text_of
from tests.factories import make_discovery_run

pytestmark = pytest.mark.django_db

SKIPPED = [
    {"position": 4, "id": "17", "name": "old", "reason": "description: Field required"},
    {"position": 9, "id": "", "name": "<script>alert(1)</script>", "reason": "id: Field required"},
]


def test_skipped_objects_are_listed_with_their_reasons(admin_client):
    """A5.3, A6.2: what was left out, where it stood and why; hostile names are text."""
    run = make_discovery_run(skipped=SKIPPED, skipped_count=2)
    page = admin_client.get(page_url(run))
    assert "4 17 old description: Field required" in text_of(page)
    assert "<script>alert" not in page.content.decode()


def test_a_long_list_of_skipped_objects_says_how_long_it_really_is(admin_client):
    """A5.3: only the first thousand are recorded."""
    run = make_discovery_run(skipped=SKIPPED, skipped_count=1500)
    assert "The first 2 of 1500." in text_of(admin_client.get(page_url(run)))


def test_replaced_schemas_are_listed(admin_client):
    """A6.3."""
    run = make_discovery_run(flagged=[{"id": "44", "name": "odd", "reason": "/type: wrong"}])
    assert "44 odd /type: wrong" in text_of(admin_client.get(page_url(run)))


def test_a_run_shows_its_counts_duration_and_outcome(admin_client):
    """A5.1, B9."""
    run = make_discovery_run(added=3, unchanged=5, skipped_count=2)
    DiscoveryRun.objects.update(finished_at=run.started_at + timedelta(milliseconds=1300))
    shown = text_of(admin_client.get(list_url(DiscoveryRun)))
    assert "8 workflows found: 3 added, 5 unchanged; 2 skipped" in shown
    make_discovery_run(added=1)
    assert "1 workflow found: 1 added" in text_of(admin_client.get(list_url(DiscoveryRun)))
    assert "1.3\N{NO-BREAK SPACE}s" in admin_client.get(page_url(run)).content.decode()
    assert "succeeded" in shown
    assert f"{run.source} {run.started_at:%Y-%m-%d %H:%M:%S} UTC" in text_of(admin_client.get(page_url(run)))


def test_a_failed_run_shows_what_the_engine_said(admin_client):
    """A5.1: in the list and in full on its own page."""
    run = make_discovery_run(outcome="failed", error="401 Unauthorized: " + "x" * 200)
    assert "401 Unauthorized" in text_of(admin_client.get(list_url(DiscoveryRun)))
    assert run.error in text_of(admin_client.get(page_url(run)))


def test_a_run_that_is_under_way_can_be_looked_at(admin_client):
    """A5.1: it has no end yet."""
    run = make_discovery_run(outcome="running")
    DiscoveryRun.objects.update(finished_at=None)
    assert "running" in text_of(admin_client.get(page_url(run)))


def test_no_history_is_offered_of_a_record_that_nobody_changes(admin_client):
    """B8."""
    run = make_discovery_run()
    assert "/history/" not in admin_client.get(page_url(run)).content.decode()
    assert "/history/" in admin_client.get(page_url(run.source)).content.decode()
