"""/api/filters/"""

import pytest

from catalogue.models import HistoryEntry, Revision, WorkflowFilter
from tests.api.clients import administrator, problem_paths
from tests.factories import make_filter, make_workflow

pytestmark = pytest.mark.django_db
ADDRESS = "/api/filters/"


@pytest.fixture(autouse=True)
def workflows() -> None:
    for name in ("pay_all", "pay_one", "report"):
        make_workflow(name=name)


def test_a_filter_is_added_previewed_changed_and_taken_away():
    """A4.2: each answer says what agents see besides, and what no longer."""
    client, asked = administrator(), {"pattern": "pay*"}
    before = Revision.current()
    hides = {"shown": [], "hidden": ["report"]}

    previewed = client.post(f"{ADDRESS}?preview=true", asked)
    assert (previewed.status_code, previewed.json()["effect"]) == (200, hides)
    assert not WorkflowFilter.objects.exists() and Revision.current() == before

    added = client.post(ADDRESS, asked)
    assert (added.status_code, added.json()["effect"]) == (201, hides)
    address = f"{ADDRESS}{added.json()['id']}/"
    read = {key: value for key, value in added.json().items() if key != "effect"}
    assert client.get(address).json() == read == client.get(ADDRESS).json()["results"][0]
    assert Revision.current() > before

    assert client.patch(f"{address}?preview=true", {"action": "exclude"}).json()["effect"] == {
        "shown": ["report"],
        "hidden": ["pay_all", "pay_one"],
    }
    changed = client.patch(address, {"enabled": False, "note": "Off for now."}).json()
    assert changed["effect"] == {"shown": ["report"], "hidden": []}
    assert WorkflowFilter.objects.values_list("action", "pattern", "enabled").get() == (
        "include",
        "pay*",
        False,
    )
    assert HistoryEntry.objects.first().changes == {"enabled": [True, False], "note": ["", "Off for now."]}

    assert client.delete(address).status_code == 204
    assert client.get(address).status_code == 404


@pytest.mark.parametrize(
    ("query", "at"),
    [
        ("preview=yes", "?preview"),
        ("preview=true&preview=false", "?preview"),
        ("dry_run=true", "?dry_run"),
    ],
)
def test_a_preview_that_is_not_understood_saves_nothing(query, at):
    """A4.2: any value but `true` saved the filter."""
    rule = make_filter("b")
    client = administrator()
    for answer in (
        client.post(f"{ADDRESS}?{query}", {"pattern": "pay*"}),
        client.patch(f"{ADDRESS}{rule.pk}/?{query}", {"enabled": False}),
    ):
        assert (answer.status_code, problem_paths(answer)) == (400, [at])
    assert WorkflowFilter.objects.get().enabled
    shown = client.post(f"{ADDRESS}?preview=1", {"pattern": "pay*"})
    assert (shown.status_code, WorkflowFilter.objects.count()) == (200, 1)


def test_filters_stand_in_the_order_in_which_they_are_tried():
    client = administrator()
    make_filter("b", position=20)
    client.post(ADDRESS, {"pattern": "c"})
    client.post(ADDRESS, {"pattern": "a", "position": 5})
    shown = [(rule["pattern"], rule["position"]) for rule in client.get(ADDRESS).json()["results"]]
    assert shown == [("a", 5), ("b", 20), ("c", 30)]


def test_what_cannot_be_is_told_by_field_and_changes_nothing():
    client, rule = administrator(), make_filter("pay*")
    assert problem_paths(client.post(ADDRESS, {"pattern": "(", "syntax": "regex"})) == ["/pattern"]
    assert problem_paths(client.post(ADDRESS, {})) == ["/pattern"]
    assert problem_paths(client.patch(f"{ADDRESS}{rule.pk}/", {"patern": "x"})) == ["/patern"]
    assert client.patch(f"{ADDRESS}{rule.pk}/", ["x"]).status_code == 400
    assert list(WorkflowFilter.objects.values_list("pattern", flat=True)) == ["pay*"]
