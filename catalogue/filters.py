"""Ordered include and exclude rules (A4.2): the first that matches a workflow decides."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from operator import attrgetter
from typing import Generic, TypeVar

from django.utils.text import capfirst
from loguru import logger

from catalogue.models import ChoosingRule, Workflow
from catalogue.patterns import pattern_matcher

Rule = TypeVar("Rule", bound=ChoosingRule)


VALUE_OF: dict[str, Callable[[Workflow], str]] = {
    "name": attrgetter("name"),
    "id": attrgetter("upstream_id"),
    "category": attrgetter("category"),
    "source": attrgetter("source.name"),
}
"""Of the subjects of which a workflow has one; it may have several tags."""


class FilterChain(Generic[Rule]):
    """The enabled filters, compiled. A workflow that no filter matches is let through unless there is an
    include filter. A filter with an unusable pattern, such as one loaded past validation, hides each workflow
    that reaches it: which of them it was meant to hide is unknown."""

    def __init__(self, filters: Iterable[Rule], *, whether_enabled: bool = True) -> None:
        self._rules = [_compiled(rule) for rule in filters if rule.enabled or not whether_enabled]
        self._default = not any(rule.lets_through for rule in self._rules)

    def deciding_filter(self, workflow: Workflow) -> Rule | None:
        return next((rule.filter for rule in self._rules if rule.matches(workflow)), None)

    def lets_through(self, workflow: Workflow) -> bool:
        # Each toolset asks for each workflow, and `next` would take twice as long.
        for rule in self._rules:
            if rule.matches(workflow):
                return rule.lets_through
        return self._default


@dataclass(frozen=True, slots=True)
class _Rule(Generic[Rule]):
    filter: Rule
    lets_through: bool
    matches: Callable[[Workflow], object]


def _compiled(rule: Rule) -> _Rule[Rule]:
    try:
        matches = pattern_matcher(syntax=rule.syntax, pattern=rule.pattern)
    except ValueError as error:
        kind = capfirst(rule._meta.verbose_name)
        logger.warning("{} {} is unusable and hides every workflow that reaches it: {}", kind, rule.pk, error)
        return _Rule(rule, lets_through=False, matches=lambda _: True)
    if rule.subject == "tag":
        return _Rule(rule, rule.action == "include", lambda workflow: any(map(matches, workflow.shown_tags)))
    value_of = VALUE_OF.get(rule.subject, VALUE_OF["name"])
    return _Rule(rule, rule.action == "include", lambda workflow: matches(value_of(workflow)))
