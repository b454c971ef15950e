"""Defines what the catalogue's rows share: history, reservations, and the revision of what is exposed."""

import time
from collections.abc import Collection, Sequence
from typing import Any, ClassVar, NoReturn, Self, TypeVar

from django.core.exceptions import ValidationError
from django.db import connection, models, transaction
from django.db.models import Exists, OuterRef, Q
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from access.callers import Person, check_form, find_keys
from audit.models import Proven
from catalogue.fields import JSONTextField
from catalogue.naming import find_name_problem

Row = TypeVar("Row", bound=models.Model)


class Recorded(models.Model):
    """Remembers its values as read from the database; `catalogue.history` compares them with the new ones."""

    recorded_besides: ClassVar[Sequence[str]] = ()  # Columns that change although no form edits them
    recorded_as_secret: ClassVar[Sequence[str]] = ()  # Columns whose values the history leaves out
    names_by_people: ClassVar[Sequence[str]] = ()  # Columns with names in free words
    as_read: tuple[Sequence[str], Sequence[Any]] | None = None
    """Names and values of the columns as read; None for a row made in this process."""
    related_as_read: dict[str, Any] | None = None
    changed_besides: dict[str, list[Any]] = {}
    """`{name: [old, new]}` of what a rule changed that no form edits; its entry in the history has it."""

    class Meta:
        abstract = True

    @classmethod
    def from_db(cls, db: str | None, field_names: Any, values: Any, **options: Any) -> Self:
        row = super().from_db(db, field_names, values, **options)
        row.as_read = (field_names, values)
        return row

    def clean_fields(self, exclude: Collection[str] | None = None) -> None:
        """Unchanged names are not validated again."""
        super().clean_fields(exclude=exclude)
        before = dict(zip(*self.as_read, strict=True)) if self.as_read else {}
        checked = set(self.names_by_people) - set(exclude or ())
        given = {column: name for column in checked if (name := getattr(self, column))}
        changed = (column for column, name in given.items() if name != before.get(column))
        problems = {column: find_name_problem(given[column]) for column in changed}
        if any(problems.values()):
            raise ValidationError({column: problem for column, problem in problems.items() if problem})

    def recorded_relations(self) -> dict[str, Any]:
        """Related rows of other tables as JSON, read from the database."""
        return {}

    @staticmethod
    def is_same_secret(one: str, other: str) -> bool:
        return one == other


BUMP = """
    INSERT INTO catalogue_revision (id, number) VALUES (1, 1)
    ON CONFLICT (id) DO UPDATE SET number = catalogue_revision.number + 1
"""


class Revision(models.Model):
    """One counter, incremented in the transaction of every change that can alter the exposed catalogue."""

    number = models.PositiveBigIntegerField(default=0)

    changed_here_at: ClassVar[float] = float("-inf")
    """When this process last committed a change, by `time.monotonic`. Its own requests see that at once."""

    class Meta:
        verbose_name = _("catalogue revision")

    def __str__(self) -> str:
        return str(self.number)

    @classmethod
    def lock(cls) -> None:
        """Lock the exposed catalogue until the transaction ends; call it before any row is touched. So no two
        workflows get one tool name and no two changes deadlock. SQLite has one writer anyway."""
        cls.objects.select_for_update().get_or_create(pk=1)

    @classmethod
    def bump(cls) -> None:
        """Call it in the transaction of a change and, without `lock` before, before touching rows."""
        # Putting this together costs Django several times what the database takes to carry it out.
        with connection.cursor() as cursor:
            cursor.execute(BUMP)
        transaction.on_commit(cls._note_change)

    @classmethod
    def _note_change(cls) -> None:
        cls.changed_here_at = time.monotonic()

    @classmethod
    def current(cls) -> int:
        return cls.objects.filter(pk=1).values_list("number", flat=True).first() or 0


class Exposing(Recorded):
    """A row whose changes can alter the exposed catalogue; saving and deleting it increments the revision."""

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


class ExposingQuerySet(models.QuerySet[Row]):
    def delete(self) -> tuple[int, dict[str, int]]:
        """Increments the revision like the model's own `delete`; `update` does not (see `Revision.bump`)."""
        with transaction.atomic(using=self.db):
            Revision.bump()
            return super().delete()

    delete.alters_data = True  # type: ignore[attr-defined]
    delete.queryset_only = True  # type: ignore[attr-defined]


class HistoryIsKept(TypeError):
    def __init__(self) -> None:
        super().__init__("The history is append-only: entries cannot be changed or removed.")


class HistoryQuerySet(models.QuerySet["HistoryEntry"]):
    def one_of_each_batch(self) -> "HistoryQuerySet":
        """The first entry of what one action changed."""
        earlier = HistoryEntry.objects.filter(batch=OuterRef("batch"), pk__lt=OuterRef("pk"))
        return self.exclude(Exists(earlier))

    def update(self, **_: Any) -> NoReturn:
        raise HistoryIsKept

    def delete(self) -> NoReturn:
        raise HistoryIsKept

    delete.queryset_only = True  # type: ignore[attr-defined]


class HistoryEntry(Proven):
    """One change of one object by a person, a token or a command; it outlives all of them."""

    class Door(models.TextChoices):
        ADMIN = "admin", _("admin")
        REST = "rest", _("REST")
        COMMAND = "command", _("command line")

    class Kind(models.TextChoices):
        ADDED = "added", _("added")
        CHANGED = "changed", _("changed")
        DELETED = "deleted", _("deleted")

    at = models.DateTimeField(default=timezone.now, db_index=True)
    actor = models.CharField(max_length=255, help_text="Such as user:1 or token:7.")
    actor_name = models.CharField(_("who"), max_length=255, help_text="As it was called then.")
    door = models.CharField(max_length=10, choices=Door.choices)
    model = models.CharField(max_length=100, help_text="Such as catalogue.source.")
    object_id = models.CharField(max_length=255)
    object_name = models.CharField(_("object"), max_length=255, help_text="As it was called then.")
    kind = models.CharField(max_length=10, choices=Kind.choices, default=Kind.CHANGED)
    message = models.TextField()
    changes = JSONTextField(default=dict, help_text="What changed: {field: [old value, new value]}.")
    revision = models.PositiveBigIntegerField(
        null=True,
        help_text="Revision of what agents see since this change; empty if it does not affect them.",
    )
    reverts = models.ForeignKey(
        "self",
        null=True,
        on_delete=models.PROTECT,
        related_name="reverted_by",
        help_text="The change that this one reverted.",
    )
    batch = models.UUIDField(null=True, editable=False, help_text="The same for what one action changed.")

    may_change = ("batch",)  # Not proven, because older entries were proven without it

    objects: ClassVar[models.Manager["HistoryEntry"]] = HistoryQuerySet.as_manager()

    class Meta:
        ordering = ("-at", "-pk")
        verbose_name_plural = _("history entries")
        indexes = [
            models.Index(fields=["model", "object_id", "at"], name="history_of_an_object"),
            models.Index(fields=["batch", "id"], name="history_of_a_batch", condition=Q(batch__isnull=False)),
        ]

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
        """The model's label; proxies have their own."""
        return str(model._meta.label_lower)

    @classmethod
    def known_models(cls) -> list[str]:
        """Skips from model to model in the index of objects' histories, because there are many rows and few
        models."""
        known = [cls.objects.order_by("model").values_list("model", flat=True).first()]
        while known[-1] is not None:
            later = cls.objects.filter(model__gt=known[-1]).order_by("model")
            known.append(later.values_list("model", flat=True).first())
        return [label for label in known if label is not None]

    @classmethod
    def of(cls, obj: models.Model) -> "models.QuerySet[HistoryEntry]":
        return cls.of_key(type(obj), obj.pk)

    @classmethod
    def of_key(cls, model: type[models.Model], key: Any) -> "models.QuerySet[HistoryEntry]":
        return cls.objects.filter(model=cls.label_of(model), object_id=str(key))


class Reservable(Exposing):
    """Reserved for the users and groups that had these names when they were entered. A name of which no key
    is known admits no one, so that a deleted user or group does not open the object."""

    reserved_for = JSONTextField(
        default=list,
        blank=True,
        validators=[check_form],
        help_text=_(
            "Users and groups that may use it, such as user:ada and group:Finance. Empty: everyone "
            "who may use workflows."
        ),
    )
    reserved_keys = JSONTextField(
        default=dict, db_default={}, editable=False, help_text="By name, the key such as user:7, or empty."
    )

    class Meta:
        abstract = True

    def save(self, *args: Any, **kwargs: Any) -> None:
        fields = kwargs.get("update_fields")
        if fields is None or "reserved_for" in fields:
            known = self.reserved_keys
            new = find_keys(name for name in self.reserved_for if name not in known)
            self.reserved_keys = {name: known.get(name) or new.get(name, "") for name in self.reserved_for}
            kwargs |= {} if fields is None else {"update_fields": {*fields, "reserved_keys"}}
        super().save(*args, **kwargs)

    @property
    def admitted(self) -> Person:
        return frozenset(self.reserved_keys.get(name, "") for name in self.reserved_for)

    def clean(self) -> None:
        super().clean()
        read: dict[str, Any] = dict(zip(*self.as_read, strict=True)) if self.as_read else {}
        # Those that it has may have been deleted since.
        kept = set(read.get("reserved_for") or ())
        new = set(self.reserved_for) - kept if isinstance(self.reserved_for, list) else set()
        if unknown := sorted(new - find_keys(new).keys()):
            raise ValidationError({"reserved_for": f"These do not exist: {', '.join(unknown)[:500]}."})
        self.reserved_for = sorted(set(self.reserved_for))
