"""Who changed what, and when."""

from typing import Any, ClassVar, NoReturn

from django.db import models
from django.utils import timezone

from catalogue.fields import JSONTextField


class HistoryIsKept(TypeError):
    """Nothing of the history is changed or removed."""

    def __init__(self) -> None:
        super().__init__("The history is only added to: entries are neither changed nor removed.")


class HistoryQuerySet(models.QuerySet["HistoryEntry"]):
    def update(self, **_: Any) -> NoReturn:
        raise HistoryIsKept

    def delete(self) -> NoReturn:
        raise HistoryIsKept

    delete.queryset_only = True  # type: ignore[attr-defined]


class HistoryEntry(models.Model):
    """One thing that a person, a token or a command did to one object; it outlives all of them."""

    class Door(models.TextChoices):
        ADMIN = "admin", "admin"
        REST = "rest", "REST"
        COMMAND = "command", "command line"

    class Kind(models.TextChoices):
        ADDED = "added", "added"
        CHANGED = "changed", "changed"
        DELETED = "deleted", "deleted"

    at = models.DateTimeField(default=timezone.now, db_index=True)
    actor = models.CharField(max_length=255, help_text="Such as user:1 or token:7.")
    actor_name = models.CharField("who", max_length=255, help_text="As it was called then.")
    door = models.CharField(max_length=10, choices=Door.choices)
    model = models.CharField(max_length=100, help_text="Such as catalogue.source.")
    object_id = models.CharField(max_length=255)
    object_name = models.CharField("object", max_length=255, help_text="As it was called then.")
    kind = models.CharField(max_length=10, choices=Kind.choices, default=Kind.CHANGED)
    message = models.TextField()
    changes = JSONTextField(default=dict, help_text="What changed: {field: [old value, new value]}.")
    revision = models.PositiveBigIntegerField(
        null=True, help_text="Of what agents see, since this change; none where it is nothing to them."
    )
    reverts = models.ForeignKey(
        "self",
        null=True,
        on_delete=models.PROTECT,
        related_name="reverted_by",
        help_text="What it took back.",
    )

    objects: ClassVar[models.Manager["HistoryEntry"]] = HistoryQuerySet.as_manager()

    class Meta:
        ordering = ("-at", "-pk")
        verbose_name_plural = "history entries"
        indexes = [models.Index(fields=["model", "object_id", "at"], name="history_of_an_object")]

    def __str__(self) -> str:
        return f"{self.object_name}: {self.message}"

    def save(self, *args: Any, **kwargs: Any) -> None:
        if not self._state.adding:
            raise HistoryIsKept
        super().save(*args, **kwargs)

    def delete(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise HistoryIsKept

    @staticmethod
    def label_of(model: type[models.Model]) -> str:
        """What `model` holds; of a proxy its own name."""
        return str(model._meta.label_lower)

    @classmethod
    def of(cls, obj: models.Model) -> "models.QuerySet[HistoryEntry]":
        return cls.of_key(type(obj), obj.pk)

    @classmethod
    def of_key(cls, model: type[models.Model], key: Any) -> "models.QuerySet[HistoryEntry]":
        return cls.objects.filter(model=cls.label_of(model), object_id=str(key))
