"""What a curator is asked about a workflow."""

from typing import ClassVar

from django.db import models
from django.utils import timezone

from catalogue.fields import JSONTextField
from catalogue.models.workflow import Workflow
from catalogue.querysets import ReviewQuerySet


class Review(models.Model):
    """A change of a workflow, or a new workflow, that agents do not see until a curator has accepted it.

    It stands beside the workflow, whose own row has what is served: lists and the exposed catalogue never
    read what is offered.
    """

    class Kind(models.TextChoices):
        CHANGED = "changed", "changed"
        NEW = "new", "new"

    workflow = models.OneToOneField(
        Workflow, on_delete=models.CASCADE, primary_key=True, related_name="review"
    )
    kind = models.CharField(max_length=10, choices=Kind.choices)
    offer_hash = models.CharField(
        max_length=64, help_text="The content hash of what the engine says now; a decision names it."
    )
    offered = JSONTextField(
        null=True, help_text="All that the engine says now; null for a new workflow, whose row has it."
    )
    held_since = models.DateTimeField(default=timezone.now, db_index=True)
    kept_at = models.DateTimeField(
        null=True,
        db_index=True,
        help_text="When a curator turned the offer down; nobody is asked again until it is another one.",
    )

    objects: ClassVar[models.Manager["Review"]] = ReviewQuerySet.as_manager()

    class Meta:
        ordering = ("-held_since", "pk")
        verbose_name = "change to review"
        verbose_name_plural = "changes to review"
        # Who may see or change workflows may see or decide these.
        default_permissions = ()

    def __str__(self) -> str:
        return str(self.workflow)
