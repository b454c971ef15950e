"""What the product's own backend of PostgreSQL changes; on SQLite the same is true anyway."""

from itertools import product

import pytest
from django.db import DataError, connection, transaction

from catalogue.models import HistoryEntry

PARTS = ("", "NULL", '"', "\\", '\\"', "{}", "a,b", "'", " ", "\n", "\u2003", "😀", "%s", "$1", "\x01")


@pytest.mark.databases("config.postgresql")
@pytest.mark.django_db
def test_texts_of_rows_that_are_written_together_come_back_as_they_were() -> None:
    texts = ["".join(parts) for parts in product(PARTS, repeat=2)]

    written = HistoryEntry.objects.bulk_create(
        [HistoryEntry(message=text, revision=None, changes={text: [text, [text]]}) for text in texts]
    )

    stored = HistoryEntry.objects.in_bulk([entry.pk for entry in written])
    for entry, text in zip(written, texts, strict=True):
        found = stored[entry.pk]
        assert (found.message, found.changes) == (text, {text: [text, [text]]})


@pytest.mark.databases("config.postgresql")
@pytest.mark.django_db
def test_no_text_is_cut_off_where_the_database_would_end_it() -> None:
    entries = [HistoryEntry(message="first"), HistoryEntry(message="before\0after")]

    if connection.vendor == "postgresql":
        with pytest.raises(DataError, match="NUL"), transaction.atomic():
            HistoryEntry.objects.bulk_create(entries)
        assert not HistoryEntry.objects.exists()
    else:
        HistoryEntry.objects.bulk_create(entries)
        assert set(HistoryEntry.objects.values_list("message", flat=True)) == {"first", "before\0after"}
