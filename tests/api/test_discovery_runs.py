"""/api/discovery-runs/"""

import pytest

from tests.api.clients import administrator
from tests.factories import make_discovery_run, make_source

pytestmark = pytest.mark.django_db


def test_a_run_shows_what_was_skipped_and_flagged_and_why():
    """A5.3, A6.2, A6.3"""
    skipped = [{"position": 3, "id": "", "name": "nameless", "reason": "id: Field required"}]
    flagged = [{"id": "7", "name": "odd", "reason": "The input schema is not an object but str."}]
    run = make_discovery_run(skipped=skipped, skipped_count=1, flagged=flagged, added=4, updated=1)

    shown = administrator().get(f"/api/discovery-runs/{run.pk}/").json()

    assert (shown["skipped"], shown["flagged"]) == (skipped, flagged)
    assert (shown["found"], shown["added"], shown["skipped_count"], shown["duration_ms"]) == (5, 4, 1, 0)


@pytest.mark.databases("catalogue.rest.sources")
def test_runs_are_listed_newest_first_and_filtered():
    east, west = make_source("east"), make_source("west")
    first = make_discovery_run(east)
    second = make_discovery_run(west, outcome="failed", error="No answer.", trigger="schedule")
    client = administrator()

    def ids(query=""):
        return [run["id"] for run in client.get(f"/api/discovery-runs/?{query}").json()["results"]]

    assert ids() == [second.pk, first.pk]
    assert ids("source=east") == [first.pk]
    assert ids("outcome=failed") == [second.pk]
    assert ids("trigger=manual") == [first.pk]
    assert ids("ordering=started_at") == [first.pk, second.pk]


@pytest.mark.parametrize("number", ["0", "9" * 18, "9" * 40, "x"])
def test_a_run_that_does_not_exist_is_not_found(number):
    assert administrator().get(f"/api/discovery-runs/{number}/").status_code == 404
