"""The result cache in the admin."""

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from catalogue.models import ProductSettings, Workflow
from executions.models import CachedResult, CachePolicy, CacheUse, Execution
from executions.starting import create_execution
from tests.admin.pages import form_at, list_url, page_url, press, run_action, text_of, told
from tests.executions.caching import cache_for, cached_outputs, finish_run
from tests.executions.steps import request_for
from tests.factories import make_workflow

pytestmark = pytest.mark.django_db

DIGEST = "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"
"""Of a call without arguments."""


@pytest.fixture
def report() -> Workflow:
    """Its results are cached: one, of 5,012 bytes, that has answered one call."""
    workflow = cache_for(make_workflow(name="report"))
    finish_run(workflow, digest=DIGEST, output={"secret": "x" * 5000})
    assert create_execution(request_for("report")).cached_at is not None
    return workflow


def policy_page(client: Client) -> str:
    """The sidebar leads to the one that there is."""
    return str(client.get(list_url(CachePolicy), follow=True).redirect_chain[-1][0])


# The policy


def test_the_page_tells_how_the_cache_does(admin_client, report):
    """E9: hits, misses, bytes and evictions."""
    shown = text_of(admin_client.get(policy_page(admin_client)))
    for fact in ("Results 1", "Size 4.9 KB of 100.0 MB", "Hits 1", "Misses 1", "Hit rate 50 %", "Evicted 0"):
        assert fact in shown
    assert "xxx" not in shown


@pytest.mark.databases("executions.admin.policies")
def test_an_administrator_changes_what_holds_while_the_product_runs(admin_client, report):
    """E4: a lower limit evicts at once."""
    page = policy_page(admin_client)
    values = form_at(admin_client, page)
    answer = admin_client.post(page, values | {"max_bytes": 4000, "cleanup_seconds": 60}, follow=True)
    assert "1 result was evicted" in text_of(answer)
    policy = CachePolicy.objects.get()
    assert (policy.enabled, policy.max_bytes, policy.cleanup_seconds) == (True, 4000, 60)
    assert cached_outputs() == [] and CacheUse.objects.get().evictions == 1
    del values["enabled"]
    admin_client.post(page, values)
    assert not CachePolicy.objects.get().enabled


def test_a_limit_that_makes_no_sense_is_refused(admin_client):
    page = policy_page(admin_client)
    values = form_at(admin_client, page)
    answer = admin_client.post(page, values | {"max_bytes": 1, "cleanup_seconds": 0})
    assert "greater than or equal to 1024" in text_of(answer)
    assert CachePolicy.objects.get().max_bytes == 100 * 1024 * 1024


def test_everything_is_cleared_by_a_button(admin_client, report):
    """E4."""
    policy_page(admin_client)
    answer = press(admin_client, CachePolicy.objects.get(), "clear_all")
    assert told(answer) == "Cleared: 1 result." and cached_outputs() == []


# By workflow, and by result


@pytest.mark.databases("executions.admin.policies")
def test_a_line_for_each_workflow_with_its_figures(admin_client, report):
    """E9."""
    shown = text_of(admin_client.get(list_url(CacheUse)))
    assert "report 600 s 1 4.9 KB 1 1 50 % 0 0 -" in shown


@pytest.mark.databases("executions.admin.policies")
def test_the_results_of_chosen_workflows_are_cleared(admin_client, report):
    """E4."""
    other = make_workflow(cache_seconds=60)
    finish_run(other, output=2)
    answer = run_action(admin_client, "clear", CacheUse.objects.get(pk=report.pk))
    assert told(answer) == "Cleared: 1 result." and cached_outputs() == [2]
    assert CacheUse.objects.get(pk=report.pk).clearings == 1


def test_the_list_of_results_shows_no_output(admin_client, report):
    """E6: that is on the page of the execution, for those who may look at it."""
    page = admin_client.get(list_url(CachedResult))
    shown = text_of(page)
    assert "report 4.9 KB just now in 9 minutes just now 1 its record" in shown
    assert "xxx" not in page.content.decode() and "secret" not in shown


def test_the_lists_cost_the_same_however_long_they_are(admin_client, report):
    def queries(model: type[CachedResult] | type[CacheUse]) -> int:
        with CaptureQueriesContext(connection) as captured:
            admin_client.get(list_url(model))
        return len(captured)

    few = [queries(CachedResult), queries(CacheUse)]
    for _ in range(5):
        finish_run(make_workflow(cache_seconds=60), output=2)
    assert [queries(CachedResult), queries(CacheUse)] == few


@pytest.mark.databases("executions.admin.policies")
def test_chosen_results_are_forgotten(admin_client, report):
    """E4: and no longer counted as there."""
    finish_run(report, digest="more", output=2)
    first = CachedResult.objects.get(hits=1)
    answer = run_action(admin_client, "forget", first)
    assert told(answer) == "Removed: 1 result." and cached_outputs() == [2]
    use = CacheUse.objects.get()
    assert (use.entries, use.bytes, use.cleared) == (1, 1, 1)


# Who may


def test_who_may_not_look_sees_nothing(staff_with, report):
    client = staff_with("view_workflow")
    for model in (CachePolicy, CacheUse, CachedResult):
        assert client.get(list_url(model)).status_code == 403
    assert "Cached results" not in text_of(client.get(page_url(report)))


# On other pages


def test_the_page_of_a_workflow_tells_how_its_results_are_used(admin_client, report):
    """E9."""
    shown = text_of(admin_client.get(page_url(report)))
    assert "Cached results 1 (4.9 KB, 1 hit, 1 miss, 50 % hit rate)" in shown
    assert "Cached results" not in text_of(admin_client.get(page_url(make_workflow())))


def test_executions_show_which_were_answered_from_the_cache(admin_client, report):
    """A8.2: in the list, by a filter, and on the page, which leads to the run."""
    hit, run = Execution.objects.exclude(cached_at=None).get(), Execution.objects.get(cached_at=None)
    assert "completed, cached" in text_of(admin_client.get(list_url(Execution)))
    for value, expected in (("yes", hit), ("no", run)):
        page = admin_client.get(list_url(Execution), {"cached": value})
        assert list(page.context["cl"].result_list) == [expected]
    shown = admin_client.get(page_url(hit))
    assert "From the result cache its record" in text_of(shown) and page_url(run) in shown.content.decode()
    assert "From the result cache" not in text_of(admin_client.get(page_url(run)))


def test_the_settings_lead_there(admin_client):
    page = admin_client.get(list_url(ProductSettings), follow=True)
    assert list_url(CachePolicy) in page.content.decode()


def test_the_number_of_workflows_leads_to_those_workflows(admin_client, report):
    """E9: also to one whose results were never asked for."""
    never_called = cache_for(make_workflow(name="never_called"))
    make_workflow(name="not_cached")
    page = admin_client.get(policy_page(admin_client))
    assert "Workflows that use it 2" in text_of(page)
    assert f'href="{list_url(Workflow)}?cache=cached">2<' in page.content.decode()
    rows = admin_client.get(list_url(Workflow), {"cache": "cached"}).context["cl"].result_list
    assert set(rows) == {report, never_called}
