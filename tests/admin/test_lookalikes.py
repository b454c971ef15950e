"""Workflows that could pass for another tool wait for a curator."""

import string
import unicodedata
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from catalogue.curation import enable_workflows
from catalogue.discovery import refresh_source
from catalogue.exposure import load_exposed_catalogue
from catalogue.models import Review, Source, Workflow
from catalogue.naming import BUILT_IN_TOOLS, looks_of
from mcp_bridge.builtin_tools import BUILT_IN_TOOLS as SERVED
from tests.admin.pages import list_url, page_url, text_of
from tests.api.clients import administrator
from tests.catalogue.engine import Engine, definition
from tests.factories import make_source, make_workflow

IMITATIONS = [
    {"name": "clearcache"},
    {"name": "get-execution-status"},
    {"name": "list_workflоws"},  # With a Cyrillic o.
    {"name": "Iist_workfl0ws"},
    {"name": "list_\u200bwork\u200bflows"},
    {"name": "ｌｉｓｔ＿ｗｏｒｋｆｌｏｗｓ"},
    {"name": "honest", "title": "List workflows"},
    {"name": "honest", "title": "ЕXECUTE a workflow!"},
    {"name": "TEXT_STATISTICS"},
    {"name": "honest", "title": "Text statistics"},
    {"name": "honest", "title": "Words counted"},
]
HONEST = ["text_statistics", "text_statistics_2", "list_invoices", "executor", "mail", "report_1_2"]


@pytest.fixture
def engine() -> Iterator[Engine]:
    with Engine() as engine:
        yield engine


@pytest.fixture(autouse=True)
def _text_statistics(db: None) -> None:
    """What another source offers, in its own words and in a curator's."""
    make_workflow(make_source("trusted"), name="text_statistics", title_override="Words counted")
    make_workflow(Source.objects.get(), upstream_id="mall", name="mall")
    make_workflow(Source.objects.get(), upstream_id="12", name="report_12")


@pytest.fixture
def trusting(engine: Engine) -> Source:
    return make_source("hostile", base_url=engine.base_url, new_workflows=Source.NewWorkflows.EXPOSED)


@pytest.mark.parametrize("told", IMITATIONS, ids=str)
def test_what_looks_like_another_tool_is_hidden_and_flagged(engine, trusting, admin_client, told):
    """A5.2, B8: where a source's new workflows are exposed without anybody's look at them."""
    engine.workflows = [definition(1, **told), definition(2)]
    run = refresh_source(trusting)
    imitation = Workflow.objects.get(source=trusting, upstream_id="wf-1")
    assert set(load_exposed_catalogue().workflows) & {imitation.tool_name, "report_2"} == {"report_2"}
    assert [flagged["id"] for flagged in run.flagged] == ["wf-1"]
    assert "can be mistaken for" in run.flagged[0]["reason"] and "hidden" in run.flagged[0]["reason"]
    shown = text_of(admin_client.get(list_url(Workflow), {"lookalike": "yes"}))
    assert "look-alike" in shown and "report_2" not in shown
    assert imitation.resembles in text_of(admin_client.get(page_url(imitation)))
    layer = administrator().get(f"/api/workflows/{imitation.tool_name}/").json()["upstream"]
    assert layer["resembles"] == imitation.resembles != ""


@pytest.mark.parametrize("name", HONEST)
def test_a_name_of_its_own_and_the_very_same_name_are_no_imitation(engine, trusting, name):
    """B8: two stages of one engine offer the same; the tools' names tell them apart."""
    engine.workflows = [definition(1, name=name)]
    run = refresh_source(trusting)
    assert run.flagged == []
    assert Workflow.objects.get(source=trusting).enabled


def test_a_curators_decision_stands_until_the_workflow_looks_like_yet_another(engine, trusting):
    """A5.2: and one that was honest at first is hidden when it begins to imitate."""
    engine.workflows = [definition(1, name="clearcache"), definition(2)]
    refresh_source(trusting)
    enable_workflows(Workflow.objects.filter(source=trusting))
    Source.objects.update(change_policy=Source.ChangePolicy.FOLLOW)
    engine.workflows = [
        definition(1, name="clearcache", description="Another text."),
        definition(2, title="List workflows"),
    ]
    run = refresh_source(trusting)
    assert [flagged["id"] for flagged in run.flagged] == ["wf-2"]
    workflows = Workflow.objects.filter(source=trusting).order_by("upstream_id")
    assert [workflow.enabled for workflow in workflows] == [True, False]
    engine.workflows = [definition(1, name="purge"), definition(2)]
    refresh_source(trusting)
    assert {workflow.resembles for workflow in workflows.all()} == {""}


def test_a_source_that_follows_again_serves_at_once_what_imitates_nothing_new(engine, trusting):
    """A4.3, A5.2: a curator has seen what looked alike before; what begins to is for the next listing."""
    Source.objects.update(change_policy=Source.ChangePolicy.HOLD)
    engine.workflows = [definition(1, name="clearcache"), definition(2, name="clear-cache"), definition(3)]
    refresh_source(trusting)
    enable_workflows(Workflow.objects.filter(source=trusting))
    engine.workflows = [
        definition(1, name="clearcache", description="Another text."),
        definition(2, name="purge"),
        definition(3, title="List workflows"),
    ]
    assert refresh_source(trusting).held == 3
    administrator().patch("/api/sources/hostile/", {"change_policy": "follow"}, format="json")
    shown = {workflow.upstream_id: workflow for workflow in load_exposed_catalogue().workflows.values()}
    assert shown["wf-1"].description == "Another text."
    assert shown["wf-2"].name == "purge" and not shown["wf-2"].resembles
    assert shown["wf-3"].upstream_title == ""
    refresh_source(trusting)
    assert Workflow.objects.get(source=trusting, enabled=False).upstream_id == "wf-3"


def test_where_a_curator_enables_workflows_a_lookalike_is_only_flagged(engine):
    """B8"""
    source = make_source("looked-at", base_url=engine.base_url, change_policy=Source.ChangePolicy.FOLLOW)
    engine.workflows = [definition(1)]
    refresh_source(source)
    enable_workflows(Workflow.objects.filter(source=source))
    engine.workflows = [definition(1, title="List workflows")]
    run = refresh_source(source)
    workflow = Workflow.objects.get(source=source)
    assert workflow.enabled and workflow.resembles == "the built-in tool list_workflows"
    assert "hidden" not in run.flagged[0]["reason"]


PASSES = [  # Each passes for "billing.invoice.create" or "ticket.close"
    "billing-invoice-create", "billing_invoice_create", "billingInvoiceCreate", "Billing.Invoice.Create",
    "billing invoice create", "billing.inv0ice.create", "bi11ing.invoice.create", "bilIing.invoice.create",
    "billing.invoiсe.create", "bіlling.invoice.create", "billing.invoice.сreаte",
    "ｂｉｌｌｉｎｇ.invoice.create", "billing.invoicé.create", "ticket.c1ose", "ticket.cIose", "ticket.cl0se",
    "tіcket.close", "TICKET.CLOSE", "ticket..close", "ticket.clоse", "ticket.сlose", "ticket.clοse",
]  # fmt: skip
APART = [
    ("report_v1", "report_v2"), ("report1", "report2"), ("report_1", "report_10"),
    ("report_1_2", "report_12"),
    ("report_v1.0", "report_v10"), ("invoice", "invoices"), ("ticket.close", "ticket.closed"),
    ("ticket.close", "tickets.close"), ("ticket.open", "ticket.close"), ("report", "report (copy)"),
    ("report", "report old"), ("My workflow", "My workflow 2"), ("user.read", "user.create"),
    ("sync_eu", "sync_us"), ("step_a", "step_b"), ("import", "export"), ("get_item", "get_items"),
    ("かき", "かぎ"), ("はし", "ばし"), ("कल", "काल"), ("แม่", "แม้"), ("отчёт", "отсчёт"), ("मूल", "मेल"),
    ("billing.invoice.create", "invoice.billing.create"), ("list", "list_all"), ("2024-01", "2024-10"),
]  # fmt: skip


def flagged_of(source: Source) -> dict[str, str]:
    """By the engine's ids: the tool that they resemble."""
    flagged = Workflow.objects.filter(source=source).exclude(resembles="")
    return dict(flagged.values_list("upstream_id", "resembles"))


@pytest.mark.parametrize("name", PASSES)
@pytest.mark.parametrize("at_once", [True, False], ids=["listed together", "listed later"])
def test_what_passes_for_another_workflow_of_its_engine_is_hidden_and_flagged(
    engine, trusting, name, at_once
):
    """H8: and the one that was there first, or is plainly written, is not."""
    genuine = [definition(1, name="billing.invoice.create"), definition(2, name="ticket.close")]
    fake = definition(3, name=name)
    if not at_once:
        engine.workflows = genuine
        assert refresh_source(trusting).flagged == []
    engine.workflows = [*genuine, fake]
    run = refresh_source(trusting)
    assert [flagged["id"] for flagged in run.flagged] == ["wf-3"]
    assert flagged_of(trusting).keys() == {"wf-3"}
    assert not Workflow.objects.get(source=trusting, upstream_id="wf-3").enabled
    assert {review.workflow.upstream_id for review in Review.objects.awaiting()} == {"wf-3"}
    engine.workflows = [
        definition(1, name="billing.invoice.create", description="Other words."), genuine[1], fake
    ]  # fmt: skip
    again = refresh_source(trusting)
    assert again.held == 1 and "mistaken" not in str(again.flagged), "no second time, and never the first one"


@pytest.mark.parametrize("names", APART, ids=" ".join)
def test_numbers_versions_and_other_words_of_one_engine_are_no_imitation(engine, trusting, names):
    """H8, A6.4"""
    engine.workflows = [definition(number, name=name) for number, name in enumerate(names, start=1)]
    assert refresh_source(trusting).flagged == []
    assert Workflow.objects.filter(source=trusting, enabled=True).count() == 2


def test_equal_names_and_titles_of_one_engine_are_told_apart_by_its_ids(engine, trusting):
    """A6.4, H8: a thousand copies of *My workflow*, and versions that share a title."""
    engine.workflows = [
        *(definition(number, name="My workflow") for number in (1, 2, 3)),
        definition(4, name="create_invoice", title="Create invoice"),
        definition(5, name="create_invoice_v2", title="Create Invoice"),
        definition(6, name="create_invoice_v3", title="create-invoice"),
    ]
    assert refresh_source(trusting).flagged == []
    assert Workflow.objects.filter(source=trusting, enabled=True).count() == 6


@pytest.mark.parametrize(
    "told",
    [
        {"name": "honest", "title": "Create inv0ice"},
        {"name": "honest", "title": "Сreate invoice"},
        {"name": "honest", "title": "Create lnvoice"},
        {"name": "Сreate invoice"},
    ],
    ids=str,
)
def test_a_title_in_disguise_is_an_imitation_within_an_engine(engine, trusting, told):
    """H8"""
    engine.workflows = [definition(1, name="create_invoice", title="Create Invoice"), definition(2, **told)]
    refresh_source(trusting)
    assert flagged_of(trusting) == {"wf-2": "create_invoice of hostile"}


@pytest.mark.parametrize("fakes_first", [True, False])
def test_of_names_that_are_new_together_the_plain_one_is_genuine(engine, trusting, fakes_first):
    """H8: in whatever order an engine lists them; among equally plain ones the first."""
    fakes = ["ticket.c1ose", "ticket.cIose", "tiсket.close"]
    names = (
        [*fakes, "ticket.close", "ticket-close"] if fakes_first else ["ticket.close", *fakes, "ticket-close"]
    )
    engine.workflows = [definition(number, name=name) for number, name in enumerate(names, start=1)]
    refresh_source(trusting)
    genuine = Workflow.objects.get(source=trusting, enabled=True)
    assert genuine.name == "ticket.close" and len(flagged_of(trusting)) == 4
    assert set(flagged_of(trusting).values()) == {"ticket.close of hostile"}


def test_an_enabled_workflow_that_takes_the_look_of_another_is_held(engine, trusting):
    """H8, A5.2: and neither is hidden."""
    engine.workflows = [definition(1, name="ticket.close"), definition(2, name="ticket.open")]
    refresh_source(trusting)
    engine.workflows = [definition(1, name="ticket.close"), definition(2, name="ticket-close")]
    assert refresh_source(trusting).held == 1
    assert Review.objects.get().offered["resembles"] == "ticket.close of hostile"
    assert Workflow.objects.filter(source=trusting, enabled=True).count() == 2


def test_a_workflow_that_was_renamed_is_no_imitation_of_what_it_was(engine, trusting):
    """H8: under another id, as engines do that know workflows by their names; once it is gone, a look-alike
    is none."""
    engine.workflows = [definition(1, name="ticket.close")]
    refresh_source(trusting)
    engine.workflows = [definition(2, name="ticket_close"), definition(3), definition(4, name="rep0rt_3")]
    Source.objects.update(vanishing_share_percent=100)
    assert [flagged["id"] for flagged in refresh_source(trusting).flagged] == ["wf-4"]
    engine.workflows = [
        definition(2, name="ticket_close"),
        definition(4, name="rep0rt_3", description="New."),
    ]
    refresh_source(trusting)
    assert flagged_of(trusting) == {}


def test_the_catalogue_knows_the_names_and_titles_of_all_built_in_tools():
    """B8"""
    assert {name: tool.title for name, tool in SERVED.items()} == BUILT_IN_TOOLS


@given(st.text(alphabet=string.ascii_letters, min_size=1), st.sampled_from(["", "_", " - ", "\u200d"]))
def test_case_separators_and_accents_change_no_looks(text, separator):
    """B8: of whatever letters."""
    written = separator.join(text)
    assert looks_of(written.swapcase()) & looks_of(text)
    assert looks_of(unicodedata.normalize("NFC", "\u0301".join(written))) == looks_of(written)
