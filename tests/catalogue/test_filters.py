"""The ordered rules that say which workflows agents may see."""

from typing import Any

import pytest
from django.core.exceptions import ValidationError

from catalogue.exposure import FilterChain
from catalogue.models import Workflow, WorkflowFilter
from tests.factories import make_source, make_workflow

Rule = tuple[str, str, str, str]
"""Action, subject, syntax, pattern."""


def rules(*wanted: Rule, **fields: Any) -> list[WorkflowFilter]:
    return [
        WorkflowFilter(
            position=position, action=action, subject=subject, syntax=syntax, pattern=pattern, **fields
        )
        for position, (action, subject, syntax, pattern) in enumerate(wanted)
    ]


@pytest.fixture
def invoice(db: None) -> Workflow:
    return make_workflow(
        make_source("erp"),
        name="Create invoice",
        upstream_id="fin/invoice-7",
        category="finance",
        tags=["money", "month end"],
        tool_name="create_invoice",
    )


@pytest.mark.parametrize(
    ("wanted", "shown"),
    [
        ([], True),
        ([("include", "name", "glob", "Create*")], True),
        ([("include", "name", "glob", "Delete*")], False),
        ([("exclude", "name", "glob", "Create*")], False),
        ([("exclude", "name", "glob", "Delete*")], True),
        ([("exclude", "tag", "glob", "money"), ("include", "name", "glob", "*")], False),
        ([("include", "name", "glob", "*"), ("exclude", "tag", "glob", "money")], True),
        ([("exclude", "name", "glob", "x"), ("include", "name", "glob", "y")], False),
    ],
)
def test_the_first_match_decides_and_an_include_rule_excludes_the_rest(invoice, wanted, shown):
    """A4.2, B4"""
    assert FilterChain(rules(*wanted)).lets_through(invoice) is shown


@pytest.mark.parametrize(
    ("subject", "syntax", "pattern", "matches"),
    [
        ("name", "glob", "Create invoice", True),
        ("name", "glob", "create*", False),
        ("name", "glob", "[BC]reate ?nvoice", True),
        ("name", "glob", "Create", False),
        ("name", "glob", "[", False),
        ("name", "regex", "invoice$", True),
        ("name", "regex", "^invoice", False),
        ("name", "regex", "(?i)CREATE", True),
        ("name", "regex", r"\binv\w+", True),
        ("id", "glob", "fin/*", True),
        ("id", "regex", r"-\d$", True),
        ("category", "glob", "finance", True),
        ("tag", "glob", "month*", True),
        ("tag", "regex", "^end", False),
        ("source", "glob", "erp", True),
        ("source", "glob", "crm", False),
    ],
)
def test_a_rule_matches_its_subject_by_its_syntax(invoice, subject, syntax, pattern, matches):
    """A4.2"""
    (rule,) = rules(("exclude", subject, syntax, pattern))

    assert FilterChain([rule]).deciding_filter(invoice) is (rule if matches else None)


def test_tags_are_those_that_agents_are_shown(invoice):
    """A4.2: the curator's where there are any."""
    invoice.tags_override = ["ours"]
    (theirs, ours) = rules(("exclude", "tag", "glob", "money"), ("exclude", "tag", "glob", "ours"))

    assert FilterChain([theirs]).lets_through(invoice)
    assert not FilterChain([ours]).lets_through(invoice)
    invoice.tags_override = []
    assert FilterChain([theirs, ours]).lets_through(invoice)


def test_a_disabled_rule_counts_for_nothing_not_even_as_an_include_rule(invoice):
    """A4.2"""
    off = rules(("include", "name", "glob", "nothing"), enabled=False)

    assert FilterChain(off).lets_through(invoice)


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    ("syntax", "pattern", "name"),
    [
        ("regex", "^(a+)+$", "a" * 254 + "!"),
        ("regex", "(a|a)*(a|a)*(a|a)*$", "a" * 254 + "!"),
        ("regex", "(.*)*(.*)*x", "y" * 255),
        ("glob", "*a" * 200 + "b", "a" * 255),
        ("glob", "*" * 250 + "x" + "*" * 240, "a" * 255),
    ],
)
def test_no_pattern_makes_the_catalogue_hang(invoice, syntax, pattern, name):
    """B8"""
    invoice.name = name
    chain = FilterChain(rules(("exclude", "name", syntax, pattern)))

    for _ in range(20):
        chain.lets_through(invoice)


@pytest.mark.parametrize("pattern", ["(", "a{2,1}", r"(?=a)", r"(a)\1", "[z-a]", "a{1000}{1000}{1000}"])
def test_a_pattern_that_cannot_be_used_is_refused_where_the_curator_can_mend_it(db, pattern):
    """A4.2, B4"""
    (rule,) = rules(("include", "name", "regex", pattern))

    with pytest.raises(ValidationError) as refused:
        rule.full_clean()

    assert "is not a valid regular expression" in refused.value.message_dict["pattern"][0]


@pytest.mark.parametrize("action", ["include", "exclude"])
@pytest.mark.parametrize(
    ("before", "after", "shown"),
    [
        ([], [], False),
        ([], [("include", "name", "glob", "*")], False),
        ([("exclude", "name", "glob", "Delete*")], [], False),
        ([("include", "name", "glob", "Create*")], [], True),
    ],
)
def test_a_stored_rule_that_cannot_be_used_hides_what_reaches_it_and_is_logged(
    invoice, logged, action, before, after, shown
):
    """B6, B8: rows that were loaded from a file were never checked."""
    unusable = (action, "name", "regex", "(?=x)")

    chain = FilterChain(rules(*before, unusable, *after))

    assert chain.lets_through(invoice) is shown
    (line,) = logged
    assert line.startswith("WARNING Exposure rule")
    assert "hides every workflow that reaches it: '(?=x)' is no" in line


def test_rules_of_one_position_apply_in_the_order_in_which_they_were_made(invoice):
    """A4.2"""
    for rule in rules(("exclude", "name", "glob", "*"), ("include", "name", "glob", "*")):
        rule.position = 0
        rule.save()

    assert not FilterChain(WorkflowFilter.objects.all()).lets_through(invoice)
