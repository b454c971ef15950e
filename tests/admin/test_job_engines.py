"""Adding engines with a job API in the admin: those that ship by their name, others by their declaration."""

from pathlib import Path

import pytest
from django.core.management import CommandError
from django.test import Client
from django.urls import reverse

from catalogue.models import Source, Workflow
from tests.admin.pages import add_url, form_values, text_of
from tests.admin.test_sources import NEW, errors_of
from tests.catalogue.test_commands import run
from tests.connectors.job_engines import Airflow, serving

pytestmark = pytest.mark.django_db(transaction=True)


def chosen(**settings: str) -> dict[str, str]:
    return NEW | {
        "kind": "http_job",
        "setting_verify_tls": "on",
        **{f"setting_{name}": value for name, value in settings.items()},
    }


def test_an_engine_that_ships_is_chosen_by_its_name_and_asks_for_address_and_login_only(
    admin_client: Client,
) -> None:
    """B10, E1: from "Add source" to its workflows without a line of YAML."""
    choice = admin_client.get(add_url(Source))
    query = "?kind=http_job&amp;setting_preset=airflow"
    assert query in choice.content.decode()
    assert "Airflow 3" in text_of(choice) and "Dagster" in text_of(choice)
    form = admin_client.get(add_url(Source) + query.replace("&amp;", "&"))
    assert form_values(form)["setting_preset"] == "airflow"
    with serving(Airflow()) as engine:
        given = {"preset": "airflow", "base_url": f"http://127.0.0.1:{engine.port}", "username": "admin"}
        response = admin_client.post(add_url(Source), chosen(**given, password=Airflow.secret))
        assert response.status_code == 302, errors_of(response)
        source = Source.objects.get()
        assert source.config == given
        assert source.credentials == {"password": Airflow.secret}
        admin_client.post(
            reverse("admin:catalogue_source_changelist"),
            {"action": "refresh_selected", "_selected_action": [str(source.pk)]},
        )
    found = Workflow.objects.get(upstream_id="complete")
    assert found.input_schema["properties"]["cups"]["minimum"] == 1
    assert found.input_schema["required"] == ["sort"]


def test_a_mistake_in_a_declaration_is_shown_at_its_field_with_its_line(admin_client: Client) -> None:
    """B4: and the text that was entered stays."""
    declaration = "name: Tea\nlist: {get: /jobs, itms: a, id: id}\n"
    given = chosen(preset="own", base_url="http://tea.example.com", declaration=declaration)
    response = admin_client.post(add_url(Source), given)
    (message,) = errors_of(response)["setting_declaration"]
    assert "line 2, list.itms: unknown key; did you mean items?" in message
    assert "itms" in form_values(response)["setting_declaration"]


def test_the_command_shows_what_a_declaration_would_send_and_what_is_wrong_with_it(
    tmp_path: Path,
) -> None:
    """B10: before anything is connected."""
    file = tmp_path / "airflow.yaml"
    file.write_text(run("job_engine", "--preset", "airflow")[0])
    shown, _ = run("job_engine", str(file), "--arguments", '{"cups": 2}')
    assert "POST /api/v2/dags/ID/dagRuns" in shown
    assert '"cups": 2' in shown
    assert '"title": "Declaration"' in run("job_engine", "--schema")[0]
    file.write_text("name: Tea\nlits: {}\n")
    with pytest.raises(CommandError, match=r"line 2, lits: unknown key; did you mean list\?"):
        run("job_engine", str(file))


def test_the_command_shows_what_a_webhook_has_to_send_and_what_is_read_in_a_delivery(tmp_path: Path) -> None:
    """B10: so that a declared webhook can be tried with a delivery that the engine has recorded."""
    file, delivery = tmp_path / "github.yaml", tmp_path / "delivery.json"
    file.write_text(run("job_engine", "--preset", "github_actions")[0])
    shown, _ = run("job_engine", str(file))
    assert "X-Hub-Signature-256: sha256=<HMAC-SHA256 of {body} in hex>" in shown
    delivery.write_text('{"action": "completed", "workflow_run": {"id": 30433642, "workflow_id": 159038}}')
    shown, _ = run("job_engine", str(file), "--delivery", str(delivery))
    assert "the delivery reports the end of run 30433642 of workflow 159038" in shown
    delivery.write_text('{"zen": "Design for failure."}')
    assert "the delivery reports no end" in run("job_engine", str(file), "--delivery", str(delivery))[0]
    delivery.write_text("payload=")
    with pytest.raises(CommandError, match=r"delivery\.json cannot be used"):
        run("job_engine", str(file), "--delivery", str(delivery))
    file.write_text(run("job_engine", "--preset", "airflow")[0])
    with pytest.raises(CommandError, match="declares no webhook"):
        run("job_engine", str(file), "--delivery", str(delivery))
