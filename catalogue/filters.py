"""Ordered include and exclude rules (A4.2): the first that matches a workflow decides."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from django.utils.text import capfirst
from loguru import logger

from catalogue.models import ChoosingRule, Workflow
from catalogue.patterns import pattern_matcher

Rule = TypeVar("Rule", bound=ChoosingRule)


def _subject_values(workflow: Workflow, subject: str) -> list[str]:
    if subject == "tag":
        return workflow.shown_tags
    if subject == "source":
        return [workflow.source.name]
    if subject == "id":
        return [workflow.upstream_id]
    return [workflow.category if subject == "category" else workflow.name]


class FilterChain(Generic[Rule]):
    """The enabled filters, compiled. A workflow that no filter matches is let through unless there is an
    include filter. A filter with an unusable pattern, such as one loaded past validation, hides each workflow
    that reaches it: which of them it was meant to hide is unknown."""

    def __init__(self, filters: Iterable[Rule], *, whether_enabled: bool = True) -> None:
        self._rules = [_compiled(rule) for rule in filters if rule.enabled or not whether_enabled]
        self._default = not any(rule.lets_through for rule in self._rules)

    def deciding_filter(self, workflow: Workflow) -> Rule | None:
        rule = self._deciding_rule(workflow)
        return None if rule is None else rule.filter

    def lets_through(self, workflow: Workflow) -> bool:
        rule = self._deciding_rule(workflow)
        return self._default if rule is None else rule.lets_through

    def _deciding_rule(self, workflow: Workflow) -> "_Rule[Rule] | None":
        return next((rule for rule in self._rules if rule.matches(workflow)), None)


@dataclass(frozen=True, slots=True)
class _Rule(Generic[Rule]):
    filter: Rule
    lets_through: bool
    matches: Callable[[Workflow], bool]


def _compiled(rule: Rule) -> _Rule[Rule]:
    try:
        matches = pattern_matcher(syntax=rule.syntax, pattern=rule.pattern)
    except ValueError as error:
        kind = capfirst(rule._meta.verbose_name)
        logger.warning("{} {} is unusable and hides every workflow that reaches it: {}", kind, rule.pk, error)
        return _Rule(rule, lets_through=False, matches=lambda _: True)
    return _Rule(
        rule,
        lets_through=rule.action == "include",
        matches=lambda workflow: any(map(matches, _subject_values(workflow, rule.subject))),
    )
