"""Lists of tables that grow with use: counts up to a bound, pages by position, searches in the newest rows.

The rows have a time, by which an index sorts them, and a key that distinguishes rows of the same time.
"""

import base64
import json
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from django.core.exceptions import ValidationError
from django.core.paginator import Page as DjangoPage
from django.core.paginator import Paginator
from django.db import connection
from django.db.models import F, Func, Model, Q, QuerySet, Value
from django.db.models.expressions import OrderBy
from django.db.models.lookups import In
from django.utils.functional import cached_property

from catalogue.database import in_batches

COUNTED = 10_000
SEARCHED = 20_000  # A text is searched in this many of the newest rows, without an index
MAX_FOUND = 1_000
MIN_KEYS = 10  # For fewer keys SQLite 3.46 reads all rows and sorts them, instead of following an index
MAX_SEARCH = 1_000  # Characters
MAX_WORDS = 20
MAX_KEY_DIGITS = 18
MAX_MERGED = 9  # Values of one condition, such as states, for which rows are merged in the order of time
RowT = TypeVar("RowT", bound=Model)
RowsT = TypeVar("RowsT", bound=QuerySet[Any])

if TYPE_CHECKING:
    RowPaginator = Paginator[Any]
else:
    RowPaginator = Paginator


class KeyPaginator(RowPaginator):
    """Sorts and skips keys alone, because rows with their joins may be long. The rows are a queryset."""

    def page(self, number: Any) -> "DjangoPage[Any]":
        valid, rows = self.validate_number(number), cast("QuerySet[Any]", self.object_list)
        begin = (valid - 1) * self.per_page
        shown = min(self.per_page, self.count - begin)
        keys = list(self._sorted_keys(rows)[begin : begin + max(shown, MIN_KEYS)])
        return DjangoPage(_rows_of(rows, [key for *_, key in keys[:shown]]), valid, self)

    def _sorted_keys(self, rows: QuerySet[Any]) -> QuerySet[Any, Any]:
        """Tuples that end with the key."""
        return rows.values_list("pk")


class BoundedPaginator(KeyPaginator):
    """Counts up to COUNTED; its pages reach as far."""

    def __init__(self, rows: Any, per_page: int, *args: Any, by: str, **options: Any) -> None:
        super().__init__(rows, per_page, *args, **options)
        self._by = by  # The time, with which the indexes of filters end

    @cached_property
    def _found(self) -> int:
        rows: Any = self.object_list
        # By the time, as SQLite would look each row up for its key.
        found: int = rows.order_by().values(self._by)[: COUNTED + 1].count()
        return found

    def _sorted_keys(self, rows: QuerySet[Any]) -> QuerySet[Any, Any]:
        order, usual = rows.query.order_by, (f"-{self._by}", "-pk", f"-{rows.model._meta.pk.name}")
        is_usual = order[:1] == usual[:1] and {*order} <= {*usual}
        return _sort_newest(rows, self._by, "pk") if is_usual else super()._sorted_keys(rows)

    @cached_property
    def count(self) -> int:
        return min(self._found, COUNTED)

    @property
    def goes_on(self) -> bool:
        """Returns whether pages by position reach further than those by number."""
        return self._found > COUNTED

    @property
    def has_more(self) -> bool:
        """Or may have, where a search has found as much as it may."""
        rows: Any = self.object_list
        conditions = rows.query.where.children
        # The keys that `search_newest` found choose the rows of a search.
        is_search = any(isinstance(one, In) and one.lhs.target.primary_key for one in conditions)
        return self.goes_on or (is_search and self._found >= MAX_FOUND)

    @property
    def told_count(self) -> str:
        return f"{'more than ' if self.has_more else ''}{self.count:,}"


def _parts(rows: QuerySet[RowT]) -> list[QuerySet[RowT]]:
    """The rows by the values of a condition that names several, such as two states. PostgreSQL knows their
    number, and sorts them or follows the index of the time."""
    conditions: Any = rows.query.where.children if connection.vendor == "sqlite" else ()
    for one in conditions:
        is_own = isinstance(one, In) and one.rhs_is_direct_value() and one.lhs.alias == rows.query.base_table
        if is_own and not one.lhs.target.primary_key and len(one.rhs) <= MAX_MERGED:
            return [rows.filter(**{one.lhs.target.attname: value}) for value in dict.fromkeys(one.rhs)]
    return [rows]


def _sort_newest(rows: QuerySet[Any], *columns: str) -> QuerySet[Any, Any]:
    """An index sorts the rows of each part, so merging reads no others, whether these are few rows or most of
    the table."""
    first, *others = [part.order_by().values_list(*columns) for part in _parts(rows)]
    return (first.union(*others, all=True) if others else first).order_by(*(f"-{one}" for one in columns))


def with_keys(rows: RowsT, keys: Collection[Any]) -> RowsT:
    """The keys were found among the rows. Without the conditions, SQLite does not search for them again."""
    chosen = rows.all()
    chosen.query.clear_where()
    return chosen.filter(pk__in=keys)


class _Listed(Func):
    """The numbers of a list, which is one parameter. Databases limit the number of parameters, and Django
    takes as long for one as for a row."""

    def as_sqlite(self, compiler: Any, connection: Any, **context: Any) -> Any:
        return self.as_sql(compiler, connection, template="(SELECT value FROM json_each(%(expressions)s))")

    def as_postgresql(self, compiler: Any, connection: Any, **context: Any) -> Any:
        template = "(SELECT value::bigint FROM json_array_elements_text((%(expressions)s)::json))"
        return self.as_sql(compiler, connection, template=template)


def among(keys: Iterable[int]) -> Q:
    """The condition for rows with these keys, which may be as many as there are rows."""
    return Q(pk__in=_Listed(Value(json.dumps(list(keys)))))


def _rows_of(rows: QuerySet[RowT], keys: Collection[Any]) -> list[RowT]:
    """Reads the rows in the order of the keys, with the joins of `rows`."""
    by_key = {row.pk: row for row in with_keys(rows, keys).order_by()} if keys else {}
    return [by_key[key] for key in keys if key in by_key]


def newest_of(rows: QuerySet[RowT], by: str, number: int | None = None) -> QuerySet[RowT]:
    """This many, by default more than are counted, and all others of the last one's time. Queries
    immediately."""
    number = COUNTED + 1 if number is None else number
    last = list(_sort_newest(rows, by)[number - 1 : number])
    return rows.filter(**{f"{by}__gte": last[0][0]}) if last else rows


def read_key(text: object) -> int | None:
    """The number of a row as an address has it; None if it is none. Databases refuse larger numbers."""
    digits = str(text)
    return int(digits) if digits.isascii() and digits.isdecimal() and len(digits) <= MAX_KEY_DIGITS else None


def search_problem(text: str) -> str:
    """Why the text is too long to search for; empty if it is not. Thousands of words take seconds, and SQLite
    refuses them, as it does a word of 50,000 characters."""
    if len(text) > MAX_SEARCH:
        return f"Search for at most {MAX_SEARCH:,} characters."
    return f"Search for at most {MAX_WORDS} words." if len(text.split()) > MAX_WORDS else ""


def search_newest(rows: QuerySet[Any], texts: Iterable[str], fields: Collection[str], *, by: str) -> set[Any]:
    """Keys of the newest MAX_FOUND rows, of SEARCHED, that have each text in one of the fields."""
    anywhere = Q()
    for text in texts:
        anywhere &= Q(*((f"{field}__icontains", text) for field in fields), _connector=Q.OR)
    found = newest_of(rows, by, SEARCHED).filter(anywhere).order_by(f"-{by}")
    return set(found.values_list("pk", flat=True)[:MAX_FOUND])


class Unindexed(Func):
    """A column for which SQLite must not use an index, because most rows match."""

    template, arity = "%(expressions)s", 1

    def as_sqlite(self, compiler: Any, connection: Any, **context: Any) -> Any:
        # Not "+": SQLite still sees that a partial index has all of these rows, and scans that index.
        return self.as_sql(compiler, connection, template="COALESCE(%(expressions)s, NULL)", **context)


class AlongTime(Unindexed):
    """Only in sorted lists."""

    def as_sqlite(self, compiler: Any, connection: Any, **context: Any) -> Any:
        is_sorted = bool(compiler.query.order_by)
        return (super().as_sqlite if is_sorted else self.as_sql)(compiler, connection, **context)


def begin_at(rows: QuerySet[RowT], column: str, begin: datetime) -> QuerySet[RowT]:
    """Filter by another time than the rows are sorted by. SQLite has no statistics, and would read all rows
    by the column's index and sort them. If many match, they are found in the order of the list instead."""
    if connection.vendor == "sqlite":
        matching = rows.model._default_manager.filter(**{f"{column}__gte": begin}).order_by()
        if matching.values(column)[COUNTED : COUNTED + 1].exists():
            along_time: Any = rows.alias(along_time=AlongTime(column))
            return cast("QuerySet[RowT]", along_time.filter(along_time__gte=begin))
    return rows.filter(**{f"{column}__gte": begin})


class UnknownCursor(Exception):
    def __init__(self) -> None:
        super().__init__("Unknown cursor: begin again without a cursor, or use next_cursor of the last page.")


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
    if len(_parts(wanted)) == 1:
        found = list(wanted[: limit + 1])
    else:
        found = _rows_of(rows, [key for _, key in _sort_newest(wanted, by, "pk")[: limit + 1]])
    more = len(found) > limit
    return Page(found[:limit], cursor_after(found[limit - 1], by) if more else None)


def all_pages(rows: QuerySet[RowT], *, by: str, at_a_time: int) -> Iterator[list[RowT]]:
    """Reads without an open cursor in the database. Yields the newest first, or, if `by` is empty, the order
    of `rows`, of which all keys are in memory."""
    if not by:
        keys = list(rows.values_list("pk", flat=True))
        yield from (_rows_of(rows, batch) for batch in in_batches(keys, at_a_time))
        return
    cursor: str | None = ""
    while cursor is not None:
        page = page_of(rows, by=by, limit=at_a_time, cursor=cursor)
        yield page.rows
        cursor = page.next_cursor


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


def find_neighbours(rows: QuerySet[Any], key: Any, *, among: QuerySet[Any]) -> tuple[Any, Any]:
    """Returns the keys of the rows before and after the one with this key, None at the ends. It is one of
    `among`, and need not be one of `rows`: an edit may have moved it out of a filter. The columns by which
    `rows` are sorted are not nullable."""
    order: list[OrderBy] = []
    for one in rows.query.order_by:
        expression: Any = F(one.lstrip("-")) if isinstance(one, str) else one
        is_sorted = isinstance(expression, OrderBy)
        order.append(expression if is_sorted else OrderBy(expression, descending=str(one).startswith("-")))
    places = {f"place_{number}": one.expression for number, one in enumerate(order)}
    own = among.filter(pk=key).order_by().annotate(**places).values(*places).first()
    if own is None:
        return None, None
    before, after, same = Q(), Q(), Q()
    for name, one in zip(places, order, strict=True):
        less, more = same & Q(**{f"{name}__lt": own[name]}), same & Q(**{f"{name}__gt": own[name]})
        before, after = (before | more, after | less) if one.descending else (before | less, after | more)
        same &= Q(**{name: own[name]})
    placed = rows.alias(**places).values_list("pk", flat=True)
    return placed.filter(before).reverse().first(), placed.filter(after).first()
