"""Rows whose history tells the old and the new values of what was changed."""

from collections.abc import Sequence
from typing import Any, ClassVar, Self

from django.db import models


class Recorded(models.Model):
    """Remembers what it was when it was read; `catalogue.history` compares that with what it is."""

    recorded_besides: ClassVar[Sequence[str]] = ()
    """Columns that no form edits, and people change nevertheless."""
    recorded_as_secret: ClassVar[Sequence[str]] = ()
    """Columns of which only that they changed is kept."""
    as_read: tuple[Sequence[str], Sequence[Any]] | None = None
    """Names and values of the columns that were read; None for what was made here."""
    related_as_read: dict[str, Any] | None = None

    class Meta:
        abstract = True

    @classmethod
    def from_db(cls, db: str | None, field_names: Any, values: Any, **options: Any) -> Self:
        row = super().from_db(db, field_names, values, **options)
        row.as_read = (field_names, values)
        return row

    def recorded_relations(self) -> dict[str, Any]:
        """What other tables hold of it, as JSON and from the database."""
        return {}

    @staticmethod
    def is_same_secret(one: str, other: str) -> bool:
        return one == other
