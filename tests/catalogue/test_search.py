"""Finding workflows by words."""

from typing import Any

import pytest

from access.callers import Bounds
from catalogue.exposure import confirmed_catalogue, load_exposed_catalogue
from catalogue.models import Toolset, Workflow
from catalogue.search import search_workflows, split_name, split_words
from tests.factories import make_filter, make_workflow


def found(query: str, **options: Any) -> list[str]:
    return search_workflows(load_exposed_catalogue(), query, **options)


@pytest.fixture
def books(db: None) -> None:
    make_workflow(name="create_invoice", description="Bills a customer.", tags=["finance"])
    make_workflow(name="approveExpenses", description="Takes an expense report through approval.")
    make_workflow(name="monthly_close", description="Closes the ledger; every invoice must be posted.")
    make_workflow(name="reset_password", description="For people who forgot it.", tags=["it-support"])
    make_workflow(name="HTTPProbe", description="Asks whether a web site answers.", tags=["Überwachung"])


@pytest.mark.parametrize(
    ("query", "first"),
    [
        ("invoice", "create_invoice"),
        ("INVOICES", "create_invoice"),
        ("create_invoice", "create_invoice"),
        ("createInvoice", "create_invoice"),
        ("createinvoice", "create_invoice"),
        ("create-invoice!", "create_invoice"),
        ("invoice create", "create_invoice"),
        ("approve expense", "approveExpenses"),
        ("approving expenses", "approveExpenses"),
        ("billing", "create_invoice"),
        ("posted ledger", "monthly_close"),
        ("passw", "reset_password"),
        ("support", "reset_password"),
        ("uberwachung", "HTTPProbe"),
        ("ÜBERWACHUNG", "HTTPProbe"),
        ("http", "HTTPProbe"),
        ("I need something that creates an invoice for me", "create_invoice"),
        ("xylophone invoice", "create_invoice"),
    ],
)
def test_the_workflow_that_is_meant_comes_first(books, query, first):
    assert found(query)[0] == first


def test_a_word_in_the_name_counts_more_than_one_in_the_description(books):
    assert found("invoice") == ["create_invoice", "monthly_close"]


def test_who_has_few_of_the_words_is_not_found(books):
    """A long list of poor matches would cost what the query is there to save."""
    assert found("reset password invoice") == ["reset_password"]


def test_the_words_that_a_curator_put_there_find_it_and_the_engines_do_not(db):
    """Only what agents see can be found."""
    make_workflow(
        name="wf_17",
        tool_name="pay_suppliers",
        description="Legacy batch.",
        title_override="Pay suppliers",
        description_override="Transfers what is due.",
        tags=["old"],
        tags_override=["treasury"],
    )

    assert found("transfers") == found("treasury") == ["pay_suppliers"]
    assert found("legacy") == found("old") == found("17") == []


def test_what_is_not_exposed_is_never_found(books):
    """A4.2"""
    make_workflow(name="invoice_secret", enabled=False)
    make_filter("create_*", action="exclude")

    assert found("invoice") == ["monthly_close"]


def test_a_toolset_bounds_what_is_found_and_how_words_are_weighed(books):
    """A word that only others have must not tell that they exist, nor spoil the result."""
    toolset = Toolset.objects.create(slug="desk")
    toolset.picked.add(make_workflow(name="desk_reset", description="Resets a desk."))

    assert found("invoice", bounds=Bounds("desk")) == []
    assert found("invoice ledger desk", bounds=Bounds("desk")) == ["desk_reset"]
    assert found("desk", bounds=Bounds("gone")) == []


@pytest.mark.databases("catalogue.search")
def test_equally_good_ones_come_in_alphabetical_order(db):
    for name in ("b_job", "c_job", "a_job"):
        make_workflow(name=name, description="The same.")

    assert found("job") == ["a_job", "b_job", "c_job"]


@pytest.mark.parametrize(
    "query",
    [
        "",
        "   ",
        "\x00",
        "'; DROP TABLE catalogue_workflow; --",
        '"unbalanced',
        "((((",
        "a & | ! <-> :*",
        "NEAR(invoice, 3) OR NOT *",
        "name:invoice^9",
        "%_%",
        "\\",
        "!?…—",
        "🙂👩‍👩‍👧",
        "\ud800",
        "é" * 10_000,
        "word " * 2_000,
        " ".join(f"w{number}" for number in range(10_000)),
        "ﷺ" * 5_000,
    ],
)
def test_no_query_fails(books, query):
    assert isinstance(found(query), list)


def test_signs_in_a_query_are_no_operators(books):
    plain = found("invoice ledger")
    assert plain
    assert found('+"invoice" -(ledger)*') == found("invoice AND NOT ledger") == plain


@pytest.mark.parametrize(
    ("description", "query"),
    [
        ("审批采购合同并通知财务", "合同"),
        ("請求書を承認する", "請求書"),
        ("การอนุมัติใบแจ้งหนี้", "อนุมัติ"),
        ("Согласование договоров", "договор"),
        ("चालान को मंज़ूरी देता है", "मंज़ूरी"),
        ("يوافق على الفاتورة", "الفاتورة"),
        ("송장을 승인합니다", "송장"),
        ("Rechnungsprüfung für Lieferanten", "rechnungsprufung"),
    ],
)
@pytest.mark.databases("catalogue.search")
def test_other_scripts_are_found(db, description, query):
    make_workflow(name="local", description=description)
    make_workflow(name="other", description="Something else entirely.")

    assert found(query) == ["local"]


@pytest.mark.databases("catalogue.search")
def test_a_changed_word_is_found_in_the_next_revision(db):
    """A4.4"""
    workflow = make_workflow(name="plain")
    assert found("marigold") == []

    workflow.description_override = "Waters the marigolds."
    workflow.save()

    assert found("marigold") == ["plain"]


@pytest.mark.databases("catalogue.search")
def test_the_index_follows_each_change_of_many_workflows(db):
    """A4.4: it is not built again."""
    for number in range(30):
        make_workflow(name=f"plain_{number}")
    changed, deleted = Workflow.objects.filter(name__in=("plain_1", "plain_2")).order_by("name")
    assert search_workflows(confirmed_catalogue(), "plain 2")[0] == "plain_2"

    changed.description_override = "Waters the marigolds."
    changed.save()
    assert search_workflows(confirmed_catalogue(), "marigold") == ["plain_1"]
    changed.description_override = "Waters the tulips."
    changed.save()
    deleted.delete()
    make_workflow(name="added", description="Sells marigolds.")

    catalogue = confirmed_catalogue()
    assert search_workflows(catalogue, "marigold") == ["added"]
    assert search_workflows(catalogue, "tulip") == ["plain_1"]
    assert "plain_2" not in search_workflows(catalogue, "plain 2")


@pytest.mark.databases("catalogue.search")
def test_a_sentence_finds_what_its_keywords_find(books):
    """D2: small words are none of those that a workflow needs half of, but tell names apart."""
    make_workflow(name="get_order")
    make_workflow(name="cancel_order")
    assert found("get order")[0] == "get_order"
    assert (
        found("Could you please cancel it for me, as I have no need of the order any more?")[0]
        == "cancel_order"
    )
    assert found("get")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("sendInvoices_toÜnits", ["send", "invoice", "to", "unit"]),
        ("HTTPServer.parse-XML", ["http", "server", "parse", "xml"]),
        ("processes batches boxes queries caches", ["process", "batch", "box", "query", "cache"]),
        ("status class bus", ["status", "class", "bus"]),
        ("ｆｕｌｌ ﬁle", ["full", "file"]),
    ],
)
def test_texts_are_split_into_words(text, words):
    assert split_words(text) == words


def test_a_name_is_also_found_in_one_piece():
    assert split_name("create_invoice") == ["create", "invoice", "createinvoice"]
