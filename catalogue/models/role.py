from typing import ClassVar

from django.contrib.auth.models import Group
from django.db import models


class Role(models.Model):
    """A group that the product keeps; an administrator's own group of the same name is another one."""

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
