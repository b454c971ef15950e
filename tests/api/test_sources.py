"""/api/sources/"""

from datetime import timedelta

import pytest
from django.utils import timezone

from catalogue.models import Source, Workflow
from executions.models import Execution
from tests.api.clients import administrator, problem_paths
from tests.factories import NOWHERE, make_execution, make_source, make_workflow

pytestmark = pytest.mark.django_db

SECRET = "sesame-0123456789"
NEW = {
    "name": "orders",
    "kind": "simplified",
    "config": {"base_url": NOWHERE},
    "credentials": {"api_key": SECRET},
}


def test_a_source_is_added_and_its_secrets_are_never_shown_again():
    """E6, A4.1: secrets are write-only."""
    client = administrator()

    created = client.post("/api/sources/", NEW)

    assert created.status_code == 201
    assert created.json()["credentials_stored"] is True
    assert created.json()["new_workflows"] == "hidden"
    assert Source.objects.get(name="orders").credentials == {"api_key": SECRET}
    shown = [created, client.get("/api/sources/"), client.get("/api/sources/orders/")]
    shown.append(client.patch("/api/sources/orders/", {"credentials": {"api_key": SECRET}}))
    assert [SECRET in response.content.decode() for response in shown] == [False] * 4


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"name": "no spaces"}, "/name"),
        ({"name": None}, "/name"),
        ({"kind": "teapot"}, "/kind"),
        ({"config": {}}, "/config"),
        ({"config": {"base_url": NOWHERE, "api_key": SECRET}}, "/config"),
        ({"config": {"base_url": NOWHERE, "colour": "blue"}}, "/config"),
        ({"config": "text"}, "/config"),
        ({"credentials": {"api_key": {"nested": 1}}}, "/credentials/api_key"),
        ({"refresh_interval": 10**30}, "/refresh_interval"),
        ({"refresh_interval": -1}, "/refresh_interval"),
        ({"max_concurrent": 0}, "/max_concurrent"),
        ({"new_workflows": "maybe"}, "/new_workflows"),
        ({"enabeld": True}, "/enabeld"),
    ],
)
def test_bad_settings_are_refused_by_field_and_change_nothing(change, path):
    """B4, B5"""
    response = administrator().post("/api/sources/", NEW | change)

    assert response.status_code == 400
    assert problem_paths(response) == [path]
    assert response.json()["kind"] in ("configuration", "validation")
    assert SECRET not in response.content.decode()
    assert not Source.objects.exists()


def test_a_value_that_is_no_choice_is_refused_with_those_that_there_are():
    """A5.2: as with parameters of lists, nobody has to look for them elsewhere."""
    make_source("orders")
    response = administrator().patch("/api/sources/orders/", {"new_workflows": "enabled"})
    assert response.json()["errors"] == [
        {
            "path": "/new_workflows",
            "message": '"enabled" is not a valid choice. The choices are hidden, exposed, held.',
        }
    ]


def test_settings_that_cannot_work_are_a_configuration_error():
    """B5: told apart from a request that cannot be read."""
    response = administrator().post("/api/sources/", NEW | {"config": {"base_url": "not an address"}})

    assert response.json()["kind"] == "configuration"
    assert "base_url" in response.json()["detail"]


@pytest.mark.databases("catalogue.sources")
def test_a_name_that_is_taken_is_refused():
    make_source("orders")

    response = administrator().post("/api/sources/", NEW)

    assert (response.status_code, problem_paths(response)) == (400, ["/name"])


def test_a_change_leaves_what_it_does_not_name():
    source = make_source("orders", refresh_interval=60)

    response = administrator().patch("/api/sources/orders/", {"new_workflows": "exposed", "name": "sales"})

    assert response.status_code == 200
    assert (response.json()["name"], response.json()["new_workflows"]) == ("sales", "exposed")
    changed = Source.objects.get()
    assert (changed.config, changed.credentials) == (source.config, source.credentials)
    assert changed.refresh_interval == 60


def test_settings_and_credentials_are_replaced_as_a_whole():
    """A4.4: without a restart, by the same function as in the admin."""
    make_source("orders", config={"page_size": 10})
    other = {"config": {"base_url": "http://127.0.0.1:10"}, "credentials": {}}

    response = administrator().patch("/api/sources/orders/", other)

    assert response.json()["config"] == other["config"]
    assert response.json()["credentials_stored"] is False


def test_a_change_that_is_half_wrong_is_not_made_at_all():
    make_source("orders")

    response = administrator().patch(
        "/api/sources/orders/", {"enabled": False, "config": {"base_url": "nonsense"}}
    )

    assert response.status_code == 400
    assert Source.objects.get().enabled


def test_the_kind_of_a_source_stays():
    make_source("orders")

    assert problem_paths(administrator().patch("/api/sources/orders/", {"kind": "mcp"})) == ["/kind"]


def test_a_source_can_be_switched_off_when_its_settings_no_longer_work():
    source = make_source(kind="gone")

    assert administrator().patch(f"/api/sources/{source.name}/", {"enabled": False}).status_code == 200


@pytest.mark.databases("catalogue.sources")
def test_deleting_a_source_takes_its_workflows_and_leaves_the_record():
    """A1.3, B8: every execution stays in the audit trail."""
    workflow = make_workflow()
    execution = make_execution(workflow)
    client = administrator()

    assert client.delete(f"/api/sources/{workflow.source.name}/").status_code == 204

    assert not Workflow.objects.exists()
    assert Execution.objects.filter(pk=execution.pk).exists()
    assert client.get(f"/api/executions/{execution.pk}/").json()["source"] == workflow.source.name
    assert client.get(f"/api/sources/{workflow.source.name}/").status_code == 404


@pytest.mark.databases("catalogue.rest.sources")
def test_sources_are_filtered_by_state():
    make_source("working", health_state="ok")
    make_source("broken", health_state="failing", enabled=False)
    client = administrator()

    def names(query):
        return [source["name"] for source in client.get(f"/api/sources/?{query}").json()["results"]]

    assert names("health=failing") == ["broken"]
    assert names("enabled=true") == ["working"]
    assert names("ordering=-name") == ["working", "broken"]
    assert names("kind=mcp") == []


@pytest.mark.databases("catalogue.rest.sources")
def test_the_workflows_of_a_source_are_counted_without_the_missing_ones():
    source = make_source()
    make_workflow(source)
    make_workflow(source, enabled=False)
    make_workflow(source, missing_since=timezone.now())

    shown = administrator().get(f"/api/sources/{source.name}/").json()

    assert (shown["workflows_present"], shown["workflows_enabled"]) == (2, 1)


def test_checking_a_dead_engine_says_that_nobody_answers():
    source = make_source()

    response = administrator().post(f"/api/sources/{source.name}/check/")

    assert response.status_code == 200
    assert response.json()["ok"] is False
    assert response.json()["message"]


def test_a_failed_refresh_is_a_run_that_failed_and_keeps_the_last_good_list():
    """A1.4, A5.1"""
    workflow = make_workflow()
    client = administrator()

    response = client.post(f"/api/sources/{workflow.source.name}/refresh/")

    assert response.status_code == 200
    assert response.json()["outcome"] == "failed"
    assert response.json()["error"]
    assert client.get(f"/api/workflows/{workflow.tool_name}/").json()["exposed"] is True
    shown = client.get(f"/api/sources/{workflow.source.name}/").json()["health"]
    assert (shown["state"], shown["failures"]) == ("failing", 1)


@pytest.mark.parametrize(
    ("state", "told"),
    [({"enabled": False}, "disabled"), ({"refresh_lease_expires_at": timedelta(minutes=1)}, "already")],
)
def test_a_refresh_that_cannot_be_made_now_is_a_conflict(state, told):
    """A4.3"""
    later = {
        name: timezone.now() + value if isinstance(value, timedelta) else value
        for name, value in state.items()
    }
    source = make_source(**later)

    response = administrator().post(f"/api/sources/{source.name}/refresh/")

    assert response.status_code == 409
    assert response.json()["kind"] == "discovery"
    assert told in response.json()["detail"]


@pytest.mark.django_db(transaction=True)
def test_an_engine_is_added_checked_and_listed(example_engine):
    """A1.2, A4.3: a refresh by hand updates the tools."""
    client = administrator()
    client.post(
        "/api/sources/",
        NEW
        | {
            "config": {"base_url": example_engine.base_url},
            "credentials": {"api_key": example_engine.api_key},
            "new_workflows": "exposed",
        },
    )

    assert client.post("/api/sources/orders/check/").json()["ok"] is True
    run = client.post("/api/sources/orders/refresh/").json()

    assert (run["outcome"], run["trigger"], run["source"]) == ("succeeded", "manual", "orders")
    assert run["added"] == client.get("/api/workflows/?exposed=true").json()["count"] >= 6
    assert client.get(f"/api/discovery-runs/{run['id']}/").json() == run


@pytest.mark.parametrize(
    "config",
    [{"base_url": "http://127.0.0.1:10"}, {"base_url": NOWHERE, "verify_tls": False}],
    ids=["another address", "anybody at that address"],
)
def test_a_new_address_needs_the_credentials_again(config):
    """B8: they would be sent to whoever listens there."""
    client = administrator()
    client.post("/api/sources/", NEW)
    elsewhere = {"config": config}

    refused = client.patch("/api/sources/orders/", elsewhere)

    assert refused.status_code == 400
    assert problem_paths(refused) == ["/credentials"]
    assert Source.objects.get(name="orders").config == NEW["config"]
    assert (
        client.patch("/api/sources/orders/", elsewhere | {"credentials": {"api_key": SECRET}}).status_code
        == 200
    )


def test_settings_that_are_as_they_were_need_no_credentials():
    """B8: said or left to their defaults."""
    client = administrator()
    client.post("/api/sources/", NEW)
    same = {"config": {"base_url": NOWHERE, "verify_tls": True, "ca_file": "", "request_timeout_seconds": 5}}
    assert client.patch("/api/sources/orders/", same).status_code == 200


@pytest.mark.parametrize(
    "changed",
    [
        {"host_port": "127.0.0.1:10"},
        {"tls": False},
        {"tls_ca_file": "/etc/ssl/certs/ca-certificates.crt"},
        {"tls_server_name": "elsewhere.example.com"},
        {"environment": "remote"},
    ],
    ids=str,
)
def test_a_temporal_key_is_kept_for_the_service_that_it_was_entered_for(changed):
    """B8: also what decides who is believed to be that service is no one's to change without the key."""
    config = {"host_port": "127.0.0.1:9", "default_task_queue": "orders", "tls": True}
    source = Source(name="temporal", kind="temporal", config=config)
    source.credentials = {"api_key": "the-companys-key-1234"}
    source.save()
    refused = administrator().patch("/api/sources/temporal/", {"config": config | changed})
    assert refused.status_code == 400
    assert "enter its secrets again" in refused.json()["detail"]
    kept = administrator().patch(
        "/api/sources/temporal/", {"config": config | {"default_task_queue": "bills"}}
    )
    assert kept.status_code == 200, kept.json()
