from typing import Any, ClassVar

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

MAX_QUERY = 2_000  # Characters


class SavedViewQuerySet(models.QuerySet["SavedView"]):
    def visible_to(self, user: Any) -> "SavedViewQuerySet":
        return self.filter(Q(user=user) | Q(user=None))


class SavedView(models.Model):
    """The filters, search and order of the list of workflows under a name: a user's own, or all users'."""

    name = models.CharField(max_length=60)
    query = models.CharField(max_length=MAX_QUERY, blank=True)
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        null=True,
        on_delete=models.CASCADE,
        related_name="+",
        help_text=_("Whose it is; null: shared."),
    )

    objects: ClassVar[models.Manager["SavedView"]] = SavedViewQuerySet.as_manager()

    class Meta:
        ordering = ("name", "pk")
        # The permissions of workflows apply.
        default_permissions = ()

    def __str__(self) -> str:
        return self.name
