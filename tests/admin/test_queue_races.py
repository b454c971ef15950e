"""What happens between a page of the queue and the decision on it, as `catalogue.actions.curation` lists."""

from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from catalogue.actions.workflows import disable_workflows, enable_workflows
from catalogue.discovery import refresh_source
from catalogue.history import command
from catalogue.models import HistoryEntry, Review, Source, Workflow
from tests.admin.test_queue import QUEUE, card_of, note_of, send
from tests.catalogue.engine import Engine, definition, definitions
from tests.factories import make_source

pytestmark = [pytest.mark.django_db, pytest.mark.databases("catalogue.actions.curation")]


@pytest.fixture
def engine():
    with Engine() as engine:
        yield engine


@pytest.fixture
def source(engine):
    source = make_source("erp", base_url=engine.base_url)
    engine.workflows = definitions(2)
    refresh_source(source)
    return source


@pytest.fixture
def changed(engine, source):
    enable_workflows(Workflow.objects.all())
    tell(engine, source, "Other words.")
    return source


@pytest.fixture
def colleague(db):
    client = Client()
    client.force_login(User.objects.create(username="colleague", is_staff=True, is_superuser=True))
    return client


def tell(engine: Engine, source: Source, description: str) -> None:
    engine.workflows = [definition(1, description=description), *definitions(2)[1:]]
    refresh_source(source)


def undo(client: Any) -> Any:
    return client.post(f"{QUEUE}undo/", {"now": ""}, headers={"HX-Request": "true"})


@pytest.mark.parametrize("decision", ["accept", "keep"])
def test_a_hidden_workflow_that_changes_while_it_is_shown_is_shown_again(
    admin_client, engine, source, decision
):
    card = card_of(admin_client.get(QUEUE))
    tell(engine, source, "Other words.")
    answer = send(admin_client, "decide", card, decision=decision)
    again = answer.context["next"][0]
    assert not answer.context["note"].is_done and again["description"] == "Other words."
    assert not Workflow.objects.filter(enabled=True).exists()
    assert not HistoryEntry.objects.filter(door="admin").exists() and not Review.objects.exists()
    assert send(admin_client, "decide", again, decision=decision).context["note"].is_done


@pytest.mark.parametrize("decision", ["accept", "keep"])
def test_a_held_change_that_becomes_another_one_is_shown_again(admin_client, engine, changed, decision):
    card = card_of(admin_client.get(QUEUE))
    tell(engine, changed, "Yet other words.")
    answer = send(admin_client, "decide", card, decision=decision)
    again = answer.context["next"][0]
    assert again["differences"][0].new.words[-1][1].endswith("other words.") and again["workflow"].pk
    assert Workflow.objects.get(pk=again["workflow"].pk).description == "Makes report 1."
    assert Review.objects.awaiting().get().offer_hash == again["candidate"].seen


@pytest.mark.parametrize("second", ["accept", "keep"])
@pytest.mark.parametrize("first", ["accept", "keep"])
@pytest.mark.parametrize("what", ["source", "changed"])
def test_the_second_of_two_curators_decides_nothing(request, admin_client, colleague, what, first, second):
    request.getfixturevalue(what)
    card = card_of(admin_client.get(QUEUE))
    send(colleague, "decide", card, decision=first)
    before = Workflow.objects.in_bulk(), list(Review.objects.values())
    entries = HistoryEntry.objects.count()
    answer = send(admin_client, "decide", card, decision=second)
    assert "colleague" in note_of(answer) and HistoryEntry.objects.count() == entries
    assert [one["workflow"].pk for one in answer.context["next"]] != [card["workflow"].pk]
    after = Workflow.objects.in_bulk(), list(Review.objects.values())
    assert after == before and {one.enabled for one in after[0].values()} == {
        one.enabled for one in before[0].values()
    }


def test_what_is_exposed_elsewhere_meanwhile_is_skipped(admin_client, source):
    card = card_of(admin_client.get(QUEUE))
    enable_workflows(Workflow.objects.all(), by=command("enable_workflows"))
    assert "enable_workflows" in note_of(send(admin_client, "decide", card, decision="keep"))
    assert Workflow.objects.filter(enabled=True).count() == 2


def test_a_flag_that_appears_after_the_page_is_named_first(admin_client, source):
    """Look-alikes depend on other workflows, too, so the hash does not tell."""
    card = card_of(admin_client.get(QUEUE))
    Workflow.objects.filter(pk=card["workflow"].pk).update(resembles="report_l of other")
    assert "look-alike" in note_of(send(admin_client, "decide", card, decision="accept"))
    assert not Workflow.objects.filter(enabled=True).exists()


def test_the_second_of_two_edits_is_refused(admin_client, colleague, source):
    card = card_of(admin_client.get(QUEUE))
    version = card["workflow"].row_version
    mine = {"tool_name": "mine", "title_override": "", "description_override": "", "version": version}
    send(colleague, "rename", card, **mine | {"tool_name": "theirs"})
    answer = send(admin_client, "rename", card, now=card["place"], **mine)
    assert not answer.context["note"].is_done and card_of(answer)["workflow"].tool_name == "theirs"


# Undoing


@pytest.mark.parametrize("decision", ["accept", "keep"])
@pytest.mark.parametrize("what", ["source", "changed"])
def test_a_decision_is_undone_and_the_candidate_is_shown(request, admin_client, what, decision):
    request.getfixturevalue(what)
    card = card_of(admin_client.get(QUEUE))
    key = card["workflow"].pk
    before = Workflow.objects.get(pk=key)
    send(admin_client, "decide", card, decision=decision)
    answer = undo(admin_client)
    assert answer.context["note"].is_done and card_of(answer)["workflow"].pk == key
    after = Workflow.objects.get(pk=key)
    assert (after.enabled, after.description) == (before.enabled, before.description)
    assert Review.objects.awaiting().filter(pk=key).exists()
    assert not undo(admin_client).context["note"].is_done, "there is nothing else"


def test_decisions_are_undone_one_after_another_and_only_ones_own(admin_client, colleague, source):
    first = card_of(admin_client.get(QUEUE))
    second = card_of(admin_client.get(QUEUE, {"at": Workflow.objects.get(tool_name="report_2").pk}))
    send(admin_client, "decide", first, decision="accept")
    send(colleague, "decide", second, decision="accept")
    assert card_of(undo(admin_client))["workflow"].pk == first["workflow"].pk
    assert not undo(admin_client).context["note"].is_done
    assert Workflow.objects.get(enabled=True).pk == second["workflow"].pk


def test_a_later_decision_of_another_is_not_undone(admin_client, colleague, changed):
    card = card_of(admin_client.get(QUEUE))
    send(admin_client, "decide", card, decision="keep")
    kept = card_of(colleague.get(QUEUE, {"decision": "kept"}))
    send(colleague, "decide", kept, decision="accept", kept="yes")
    assert not undo(admin_client).context["note"].is_done
    assert Workflow.objects.get(pk=card["workflow"].pk).description == "Other words."


def test_an_exposure_is_undone_though_the_engine_has_changed_it_since(admin_client, engine, source):
    """Hidden, it is shown as it is now."""
    card = card_of(admin_client.get(QUEUE))
    send(admin_client, "decide", card, decision="accept")
    tell(engine, source, "Other words.")
    undo(admin_client)
    assert not Workflow.objects.filter(enabled=True).exists()
    refresh_source(source)
    again = card_of(admin_client.get(QUEUE, {"at": card["workflow"].pk}))
    assert again["description"] == "Other words." and not again["candidate"].is_change


def test_undoing_never_exposes_what_was_disabled(admin_client, source):
    user = User.objects.get(username="admin")
    enable_workflows(Workflow.objects.all())
    by = command("x")
    disable_workflows(
        Workflow.objects.all(), by=by.__class__(key=f"user:{user.pk}", name="admin", door="admin")
    )
    assert not undo(admin_client).context["note"].is_done
    assert not Workflow.objects.filter(enabled=True).exists()
