"""The one search for workflows: of the admin, and of REST."""

from datetime import timedelta

import pytest
from django.core.exceptions import ValidationError
from django.utils import timezone

from catalogue.models import Workflow
from catalogue.search_terms import MARKS, Term, parse_search, search_workflows
from tests.factories import make_filter, make_source, make_workflow

pytestmark = [pytest.mark.django_db, pytest.mark.databases("catalogue.search_terms")]


def found(text):
    return set(search_workflows(Workflow.objects.all(), text).values_list("tool_name", flat=True))


def test_a_search_is_read_as_terms_of_which_all_have_to_fit():
    assert parse_search('tag:"month end" -Source:erp is:New "exact words" billing_* -old http://x -') == [
        Term("tag", "month end", quoted=True),
        Term("source", "erp", excluded=True),
        Term("is", "New"),
        Term("", "exact words", quoted=True),
        Term("", "billing_*"),
        Term("", "old", excluded=True),
        Term("", "http://x"),
        Term("", "-"),
    ]
    assert parse_search("  ") == []


@pytest.mark.parametrize(
    "text",
    [
        '"open',
        'a tag:"open',
        'tag:""',
        "tag:",
        "-is:",
        "is:nothing",
        "is:new,nothing",
        "name:,",
        '""',
        '"a""b"',
        "w " * 21,
        "x" * 1001,
    ],
)
def test_what_a_search_cannot_mean_is_told(text):
    with pytest.raises(ValidationError) as refused:
        parse_search(text)
    assert refused.value.messages


def test_terms_narrow_together_and_a_hyphen_excludes():
    erp, shop = make_source("ERP"), make_source("shop")
    make_workflow(erp, name="billing_month", tags=["Finance"], description="Sends the invoices of a month.")
    make_workflow(erp, name="billing_year", tags=["finance"], tags_override=[], title_override="Deprecated")
    make_workflow(shop, name="old_billing_month", tags=["finance"])
    assert found("tag:finance") == {"billing_month", "old_billing_month"}
    assert found("source:erp -tag:finance") == {"billing_year"}
    assert found("billing_* -deprecated") == {"billing_month"}
    assert found('"invoices of a month"') == found("sends invoices") == {"billing_month"}
    assert found('"of invoices"') == found('"billing_*"') == found("source:none") == set()
    assert found("-billing_*") == {"old_billing_month"}
    assert found("source:s* FINANCE") == {"old_billing_month"}
    assert found("name:billing_month,old_*") == {"billing_month", "old_billing_month"}
    assert found("source:shop,erp tag:other,finance") == {"billing_month", "old_billing_month"}
    assert found("-name:billing_month,billing_year") == found("source:shop,") == {"old_billing_month"}
    assert found('name:"billing_month,billing_year"') == found("billing_month,billing_year") == set()


def test_a_mark_finds_the_workflows_that_have_it(subtests):
    source, now = make_source(), timezone.now()
    long_ago = {"first_seen_at": now - timedelta(days=10), "changed_at": now - timedelta(days=10)}
    given = {
        "new": {"first_seen_at": now},
        "changed": {"changed_at": now},
        "missing": {"missing_since": now},
        "undescribed": {"description": ""},
        "suspicious": {"warning": "Ignore what was said."},
        "look-alike": {"resembles": "list_workflows"},
        "schema-replaced": {"schema_problem": "It is no schema."},
        "read-only": {"read_only_hint": True},
        "destructive": {"hints": {"destructiveHint": True}},
        "idempotent": {"idempotent_hint": True},
        "open-world": {"hints": {"openWorldHint": True}},
        "limited": {"max_concurrent": 1},
        "cached": {"cache_seconds": 60},
        "prompt": {"offered_as_prompt": True},
    }
    for mark, fields in given.items():
        make_workflow(source, name=mark, **long_ago | fields)
    make_workflow(source, name="off", enabled=False, **long_ago)
    make_filter("secret", action="exclude")
    make_workflow(source, name="secret", **long_ago)
    for mark in given:
        with subtests.test(mark):
            assert found(f"is:{mark}") == {mark}
            assert mark not in found(f"-is:{mark}")
    everything = {*given, "off", "secret"}
    assert found("is:enabled") == everything - {"off"}
    assert found("is:exposed") == everything - {"off", "secret", "missing"}
    assert found("is:new-held") == found("is:change-held") == set()
    assert given.keys() | {"enabled", "exposed", "new-held", "change-held"} == MARKS.keys()
