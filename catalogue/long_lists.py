"""Lists of tables that grow with use: counts up to a bound, pages by position, searches in the newest rows.

The rows have a time, by which an index sorts them, and a key that tells rows of one time apart.
"""

import base64
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from django.core.exceptions import ValidationError
from django.core.paginator import Page as DjangoPage
from django.core.paginator import Paginator
from django.db import connection
from django.db.models import Func, Model, Q, QuerySet
from django.utils.functional import cached_property

COUNTED = 10_000
SEARCHED = 20_000  # The newest rows, in which a text is searched without an index
MOST_FOUND = 1_000
RowT = TypeVar("RowT", bound=Model)

if TYPE_CHECKING:
    RowPaginator = Paginator[Any]
else:
    RowPaginator = Paginator


class BoundedPaginator(RowPaginator):
    """Counts up to COUNTED; its pages reach as far. The rows are a queryset."""

    def __init__(self, rows: Any, per_page: int, *args: Any, by: str, **options: Any) -> None:
        super().__init__(rows, per_page, *args, **options)
        self._by = by  # The time, with which the indexes of filters end

    @cached_property
    def _found(self) -> int:
        rows: Any = self.object_list
        # By the time, as SQLite would look each row up for its key.
        found: int = rows.order_by().values(self._by)[: COUNTED + 1].count()
        return found

    def page(self, number: Any) -> "DjangoPage[Any]":
        """Sorts and skips keys alone: rows, with what they are joined with, may be long."""
        valid, rows = self.validate_number(number), cast("QuerySet[Any]", self.object_list)
        begin = (valid - 1) * self.per_page
        keys = list(rows.values_list("pk", flat=True)[begin : min(begin + self.per_page, self.count)])
        found = rows.model._default_manager.none() if not keys else rows.order_by().filter(pk__in=keys)
        by_key = {row.pk: row for row in found}
        return DjangoPage([by_key[key] for key in keys if key in by_key], valid, self)

    @cached_property
    def count(self) -> int:
        return min(self._found, COUNTED)

    @property
    def has_more(self) -> bool:
        return self._found > COUNTED

    @property
    def told_count(self) -> str:
        return f"{'more than ' if self.has_more else ''}{self.count:,}"


def newest_of(rows: QuerySet[RowT], by: str, number: int | None = None) -> QuerySet[RowT]:
    """So many, by default more than are counted, and those of the last one's time. Queries at once."""
    number = COUNTED + 1 if number is None else number
    last = list(rows.order_by(f"-{by}").values_list(by, flat=True)[number - 1 : number])
    return rows.filter(**{f"{by}__gte": last[0]}) if last else rows


def search_newest(rows: QuerySet[Any], texts: Iterable[str], fields: Collection[str], *, by: str) -> set[Any]:
    """Keys of the newest with each text in one of the fields, of the newest SEARCHED."""
    anywhere = Q()
    for text in texts:
        anywhere &= Q(*((f"{field}__icontains", text) for field in fields), _connector=Q.OR)
    found = newest_of(rows, by, SEARCHED).filter(anywhere).order_by(f"-{by}")
    return set(found.values_list("pk", flat=True)[:MOST_FOUND])


class Unindexed(Func):
    """A column by which SQLite is not to look for rows, since most of them match."""

    template, arity = "%(expressions)s", 1

    def as_sqlite(self, compiler: Any, connection: Any, **context: Any) -> Any:
        return self.as_sql(compiler, connection, template="+%(expressions)s", **context)


def narrow(rows: QuerySet[RowT], column: str, lookup: str, value: Any) -> QuerySet[RowT]:
    """Filter by what few rows match, or most of them. SQLite knows no numbers, and would read and sort all by
    the column's index: many are found along the time that the list is sorted by."""
    if connection.vendor == "sqlite":
        matching = rows.model._default_manager.filter(**{f"{column}__{lookup}": value}).order_by()
        if matching.values(column)[COUNTED : COUNTED + 1].exists():
            unindexed: Any = rows.alias(unindexed=Unindexed(column))
            return cast("QuerySet[RowT]", unindexed.filter(**{f"unindexed__{lookup}": value}))
    return rows.filter(**{f"{column}__{lookup}": value})


class UnknownCursor(Exception):
    def __init__(self) -> None:
        super().__init__(
            "Unknown cursor: begin again without one, or use next_cursor as the last page had it."
        )


@dataclass(frozen=True, slots=True)
class Page(Generic[RowT]):
    rows: list[RowT]
    next_cursor: str | None


def page_of(rows: QuerySet[RowT], *, by: str, limit: int, cursor: str = "") -> Page[RowT]:
    """The newest first; the last page is as quick as the first. Raises UnknownCursor."""
    wanted = rows.order_by(f"-{by}", "-pk")
    if cursor:
        at, key = _read_cursor(rows.model, cursor)
        # The first condition alone is one that an index answers.
        wanted = wanted.filter(Q(**{f"{by}__lt": at}) | Q(pk__lt=key), **{f"{by}__lte": at})
    found = list(wanted[: limit + 1])
    more = len(found) > limit
    return Page(found[:limit], cursor_after(found[limit - 1], by) if more else None)


def cursor_after(last: Model, by: str) -> str:
    return base64.urlsafe_b64encode(f"{getattr(last, by).isoformat()} {last.pk}".encode()).decode()


def _read_cursor(model: type[Model], cursor: str) -> tuple[datetime, Any]:
    try:
        at, _, key = base64.urlsafe_b64decode(cursor.encode()).decode().partition(" ")
        begins = datetime.fromisoformat(at)
        if begins.tzinfo is None:
            raise UnknownCursor
        return begins, model._meta.pk.to_python(key)
    except (ValueError, ValidationError):
        raise UnknownCursor from None
