"""Settings that were changed at run time."""

from typing import ClassVar

from django.db import models
from django.utils.translation import gettext_lazy as _

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
        verbose_name = verbose_name_plural = _("settings")
        constraints = [models.CheckConstraint(condition=models.Q(id=1), name="one_product_settings")]

    def __str__(self) -> str:
        return "Settings"
