"""The tables keep the apps in which they were made: docs/decisions/0026-rooms.md."""

from typing import ClassVar

from django.contrib.auth.models import Group
from django.db import models
from django.utils.translation import gettext_lazy as _


class Role(models.Model):
    """A group that the product manages; an administrator's own group of the same name is not a role."""

    class Name(models.TextChoices):
        VIEWER = "viewer", _("Viewer")
        CURATOR = "curator", _("Curator")
        OPERATOR = "operator", _("Operator")
        OWNER = "owner", _("Owner")

    name = models.CharField(max_length=20, primary_key=True, choices=Name.choices)
    group = models.OneToOneField(Group, on_delete=models.PROTECT, related_name="role")

    objects: ClassVar[models.Manager["Role"]]

    class Meta:
        app_label = "catalogue"
        default_permissions = ()

    def __str__(self) -> str:
        return self.get_name_display()


class RateBucket(models.Model):
    """Stores how far ahead the calls of one rate are booked (GCRA); `access.rates` writes it."""

    key = models.CharField(max_length=255, primary_key=True)
    booked_until = models.BigIntegerField()  # Microseconds since 1970

    class Meta:
        app_label = "executions"

    def __str__(self) -> str:
        return self.key
