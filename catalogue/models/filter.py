"""Rules that choose workflows by pattern, and the filters: those that hold for the whole catalogue."""

from collections.abc import Collection
from typing import ClassVar

from django.core.exceptions import ValidationError
from django.db import models

from catalogue.models.history import Exposing, ExposingQuerySet
from catalogue.patterns import find_pattern_problem


class ChoosingRule(Exposing):
    """One rule of an ordered list; the first that matches a workflow decides about it."""

    class Action(models.TextChoices):
        INCLUDE = "include", "include"
        EXCLUDE = "exclude", "exclude"

    class Subject(models.TextChoices):
        NAME = "name", "name"
        ID = "id", "engine's id"
        CATEGORY = "category", "category"
        TAG = "tag", "any tag"
        SOURCE = "source", "source"

    class Syntax(models.TextChoices):
        GLOB = "glob", "glob (*, ?, [abc])"
        REGEX = "regex", "regular expression"

    position = models.PositiveIntegerField(
        default=0, db_index=True, help_text="Lower numbers come first; the first match decides."
    )
    action = models.CharField(max_length=10, choices=Action.choices, default=Action.INCLUDE)
    subject = models.CharField(max_length=10, choices=Subject.choices, default=Subject.NAME)
    syntax = models.CharField(max_length=10, choices=Syntax.choices, default=Syntax.GLOB)
    pattern = models.CharField(max_length=500)
    enabled = models.BooleanField(default=True)
    note = models.CharField(max_length=255, blank=True)

    class Meta:
        abstract = True
        ordering = ("position", "pk")

    def __str__(self) -> str:
        return f"{self.get_action_display()} {self.get_subject_display()} {self.pattern}"

    def clean_fields(self, exclude: Collection[str] | None = None) -> None:
        super().clean_fields(exclude=exclude)
        if "pattern" not in (exclude or ()) and (problem := self.pattern_problem):
            raise ValidationError({"pattern": problem})

    @property
    def pattern_problem(self) -> str:
        """Why the rule cannot be used; empty for a usable one."""
        return find_pattern_problem(syntax=self.syntax, pattern=self.pattern)


class WorkflowFilter(ChoosingRule):
    objects: ClassVar[models.Manager["WorkflowFilter"]] = ExposingQuerySet.as_manager()

    class Meta(ChoosingRule.Meta):
        abstract = False
