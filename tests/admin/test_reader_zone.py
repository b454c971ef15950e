"""Times of the admin in the zone of the reader's browser."""

import pytest
from django.urls import reverse
from django.utils import timezone

from catalogue.models import HistoryEntry, Workflow
from executions.models import StandingApproval
from tests.admin.pages import list_url, page_url
from tests.api.clients import administrator
from tests.e2e.webdriver import BROWSER, DRIVER, MISSING
from tests.factories import make_execution, make_workflow

pytestmark = pytest.mark.django_db


def page(client, zone):
    client.cookies["zone"] = zone
    return client.get(list_url(HistoryEntry)).content.decode()


def entry_at_noon():
    at = timezone.datetime(2026, 1, 2, 12, tzinfo=timezone.get_default_timezone())
    HistoryEntry.objects.create(at=at, actor="user:1", actor_name="a", door="rest", model="x.y", message="m")


def test_times_are_in_the_zone_of_the_reader(admin_client):
    entry_at_noon()
    assert "2026-01-02 13:00:00 CET" in page(admin_client, "Europe/Berlin")
    assert "times in Europe/Berlin" in page(admin_client, "Europe/Berlin")


def test_fields_that_stay_show_times_as_other_parts_do(admin_client):
    now = timezone.datetime(2026, 1, 2, 12, tzinfo=timezone.get_default_timezone())
    standing = StandingApproval.objects.create(
        workflow=make_workflow(), caller="token:1", granted_by="admin", until=now
    )
    admin_client.cookies["zone"] = "Europe/Berlin"
    assert "2026-01-02 13:00:00 CET" in admin_client.get(page_url(standing)).content.decode()


@pytest.mark.parametrize("zone", ["", "Europe", "../../etc/passwd", "Nowhere/At_All", "<b>", "x" * 5_000])
def test_what_is_no_zone_is_ignored(admin_client, zone):
    entry_at_noon()
    shown = page(admin_client, zone)
    assert "2026-01-02 12:00:00 UTC" in shown and "times in UTC" in shown


def test_files_and_rest_keep_to_one_zone(admin_client):
    make_workflow()
    plain = b"".join(admin_client.get(f"{list_url(Workflow)}csv/").streaming_content)
    admin_client.cookies["zone"] = "Asia/Tokyo"
    assert b"".join(admin_client.get(f"{list_url(Workflow)}csv/").streaming_content) == plain
    client = administrator()
    client.cookies["zone"] = "Asia/Tokyo"
    assert "+09:00" not in client.get("/api/workflows/").content.decode()


@pytest.mark.parametrize("period", ["24h", "7d"])
def test_charts_label_the_same_hour_or_day_alike(admin_client, period):
    """Days are those of the statistics, in UTC: west of it, one begins on the day before."""
    make_execution(state="failed")
    admin_client.cookies["zone"] = "America/New_York"
    calls, *_ = admin_client.get("/admin/", {"period": period}).context["charts"].each
    (cause,) = admin_client.get(reverse("admin:executions_failures"), {"period": period}).context["causes"]
    assert [told.rpartition(":")[0] for _, told in cause.bars] == [
        bar.text.rpartition(":")[0] for bar in calls.bars
    ]


@pytest.mark.skipif(not (DRIVER and BROWSER), reason=MISSING)
def test_the_browser_tells_its_zone(window):
    window.browser.devtools("Emulation.setTimezoneOverride", timezoneId="Asia/Tokyo")
    window.open("/admin/")
    window.open("/admin/")
    assert "times in Asia/Tokyo" in window.browser.text()
    window.browser.devtools("Emulation.setTimezoneOverride", timezoneId="")
    window.run("document.cookie = 'zone=; path=/admin/; max-age=0'")
