"""The search for workflows in the admin and in REST: `tag:billing source:erp -old "exact words" name:a,b`."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from fnmatch import fnmatchcase

from django.core.exceptions import ValidationError
from django.db.models import Q
from django.utils import timezone
from django.utils.translation import gettext as _

from catalogue.exposure import explain_all
from catalogue.long_lists import among, search_problem
from catalogue.models import Review, Source, Workflow
from catalogue.models.workflow import WorkflowQuerySet, has_text, is_hinted, is_tagged

GLOB_SIGNS = "*?["
TERM = re.compile(r'(-?)(?:(name|tag|source|is):)?(?:"([^"]*)"(?=\s|$)|(\S+))', re.IGNORECASE)
MAX_SHOWN = 50  # Characters of a term in a message


@dataclass(frozen=True, slots=True)
class Term:
    kind: str  # "name", "tag", "source", "is", or empty for a text anywhere
    text: str
    excluded: bool = False
    quoted: bool = False

    def condition(self) -> Q:
        """After a colon, one of the values between commas has to fit."""
        several = bool(self.kind) and not self.quoted
        values = [one for one in self.text.split(",") if one] if several else [self.text]
        if self.kind == "name":
            found = Workflow.objects.is_named_like(*values)
        else:
            found = Q(*map(self._fits, values), _connector=Q.OR)
        # Columns without a value are not in the negation of a condition, but rows are.
        return ~Q(pk__in=Workflow.objects.filter(found).order_by().values("pk")) if self.excluded else found

    def _fits(self, value: str) -> Q:
        match self.kind:
            case "tag":
                return is_tagged(value)
            case "source":
                return _is_of_source(value)
            case "is":
                return MARKS[value.lower()]()
            case _ if not self.quoted and any(sign in value for sign in GLOB_SIGNS):
                return Workflow.objects.is_named_like(value)
        return has_text(value) | is_tagged(value)


def parse_search(text: str) -> list[Term]:
    """Raises ValidationError with a sentence about what is wrong."""
    if problem := search_problem(text):
        raise ValidationError(problem)
    return [_read_term(*found) for found in TERM.findall(text)]


def _read_term(sign: str, kind: str, quoted: str, plain: str) -> Term:
    term, kind = plain or quoted, kind.lower()
    if plain.startswith('"'):
        raise ValidationError(_("Close the quotation mark of %(term)s.") % {"term": plain[:MAX_SHOWN]})
    if not term.strip(",") or term.lower() in ("name:", "tag:", "source:", "is:"):
        raise ValidationError(_("Enter a text after each colon, and within quotation marks."))
    if kind == "is" and (unknown := [mark for mark in term.lower().split(",") if mark not in MARKS]):
        known = {"term": unknown[0][:MAX_SHOWN], "known": ", ".join(MARKS)}
        raise ValidationError(_("is:%(term)s is unknown. Known are: %(known)s.") % known)
    return Term(kind, term, excluded=bool(sign), quoted=not plain)


def search_workflows(rows: WorkflowQuerySet, text: str) -> WorkflowQuerySet:
    """Filters by all terms of a search. Raises ValidationError."""
    for term in parse_search(text):
        rows = rows.filter(term.condition())
    return rows


def _is_of_source(name: str) -> Q:
    wanted = name.casefold()
    names = Source.objects.values_list("pk", "name")
    return Q(source__in=[key for key, known in names if fnmatchcase(known.casefold(), wanted)])


def _exposed() -> Q:
    return among(key for key, verdict in explain_all().items() if verdict.is_exposed)


def _awaiting(kind: str) -> Q:
    return Q(pk__in=Review.objects.awaiting().filter(kind=kind).values("pk"))


def _since(column: str) -> Q:
    return Q(**{f"{column}__gte": timezone.now() - timedelta(days=7)})


MARKS: Mapping[str, Callable[[], Q]] = {
    "exposed": _exposed,
    "enabled": lambda: Q(enabled=True),
    "new": lambda: _since("first_seen_at"),
    "changed": lambda: _since("changed_at"),
    "new-held": lambda: _awaiting(Review.Kind.NEW),
    "change-held": lambda: _awaiting(Review.Kind.CHANGED),
    "missing": lambda: ~Q(missing_since=None),
    "undescribed": lambda: Q(description="", description_override=""),
    "suspicious": lambda: ~Q(warning=""),
    "look-alike": lambda: ~Q(resembles=""),
    "schema-replaced": lambda: ~Q(schema_problem=""),
    "read-only": lambda: is_hinted("readOnlyHint"),
    "destructive": lambda: is_hinted("destructiveHint"),
    "idempotent": lambda: is_hinted("idempotentHint"),
    "open-world": lambda: is_hinted("openWorldHint"),
    "limited": lambda: ~Q(max_concurrent=None),
    "cached": lambda: Q(pk__in=Workflow.objects.cached().order_by().values("pk")),
    "prompt": lambda: Q(offered_as_prompt=True),
}
"""What `is:` and the list's filter of the same name know. The two agree, because they are one."""
