"""Settings that were changed at run time, and the groups of the roles."""

from typing import ClassVar

from django.contrib.auth.models import Group
from django.db import models

from catalogue.fields import JSONTextField
from catalogue.models.history import Recorded


class ProductSettings(Recorded):
    ONLY = 1
    recorded_besides: ClassVar[tuple[str, ...]] = ("overrides",)

    id = models.PositiveSmallIntegerField(primary_key=True, default=ONLY, editable=False)
    overrides = JSONTextField(
        default=dict, editable=False, help_text="By name; what is not there has the environment's value."
    )
    changed_at = models.DateTimeField(null=True, editable=False)
    changed_by = models.CharField(max_length=255, blank=True, editable=False)

    class Meta:
        verbose_name = verbose_name_plural = "settings"
        constraints = [models.CheckConstraint(condition=models.Q(id=1), name="one_product_settings")]

    def __str__(self) -> str:
        return "Settings"


class Role(models.Model):
    """A group that the product manages; an administrator's own group of the same name is not a role."""

    class Name(models.TextChoices):
        VIEWER = "viewer", "Viewer"
        CURATOR = "curator", "Curator"
        OPERATOR = "operator", "Operator"
        OWNER = "owner", "Owner"

    name = models.CharField(max_length=20, primary_key=True, choices=Name.choices)
    group = models.OneToOneField(Group, on_delete=models.PROTECT, related_name="role")

    objects: ClassVar[models.Manager["Role"]]

    class Meta:
        default_permissions = ()

    def __str__(self) -> str:
        return self.get_name_display()
