"""The revision of what agents see, and the rows whose changes move it."""

from typing import Any

from django.db import models, transaction

from catalogue.models.recorded import Recorded


class Revision(models.Model):
    """One counter, moved in the transaction of every change that can alter what agents see."""

    number = models.PositiveBigIntegerField(default=0)

    class Meta:
        verbose_name = "catalogue revision"

    def __str__(self) -> str:
        return str(self.number)

    @classmethod
    def lock(cls) -> None:
        """Let nobody else change what agents see until the transaction ends; call it before touching a row.

        So no two workflows get one tool name and no two changes wait for each other's rows. SQLite, which
        has one writer at a time, works like that anyway.
        """
        cls.objects.select_for_update().get_or_create(pk=1)

    @classmethod
    def bump(cls) -> None:
        """Say that what agents see may have changed. Call it inside the transaction that changes it.

        Locks like `lock`, so call it first unless that was called.
        """
        if not cls.objects.filter(pk=1).update(number=models.F("number") + 1):
            cls.objects.update_or_create(pk=1, defaults={"number": 1})

    @classmethod
    def current(cls) -> int:
        return cls.objects.filter(pk=1).values_list("number", flat=True).first() or 0


class Exposing(Recorded):
    """A row whose every change may alter what agents see, and so moves the revision."""

    class Meta:
        abstract = True

    def save(self, *args: Any, **kwargs: Any) -> None:
        with transaction.atomic():
            Revision.bump()
            super().save(*args, **kwargs)

    def delete(self, *args: Any, **kwargs: Any) -> tuple[int, dict[str, int]]:
        with transaction.atomic():
            Revision.bump()
            return super().delete(*args, **kwargs)
