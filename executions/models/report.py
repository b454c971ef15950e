from django.db import models
from django.utils.translation import gettext_lazy as _

from catalogue.fields import JSONTextField

MAX_NAME, MAX_TEXT = 100, 1_000


class ProblemReport(models.Model):
    """What agents miss in a tool, or in all of them. The same words about the same tool are one row."""

    key = models.CharField(max_length=64, unique=True, help_text="SHA-256 of what makes reports the same.")
    tool = models.CharField(_("tool"), max_length=MAX_NAME, help_text="As the agent named it. Empty: none.")
    is_tool = models.BooleanField(help_text="Whether the agent saw a tool of this name.")
    missing = models.TextField(_("missing"), help_text="What the first agent missed.")
    last = JSONTextField(default=list, help_text="The latest reports: `at`, `caller` and what was `tried`.")
    times = models.PositiveIntegerField(_("reports"), default=0, help_text="Since it was last resolved.")
    first_at = models.DateTimeField(help_text="Since it was last resolved.")
    last_at = models.DateTimeField()
    resolved_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ("-last_at", "-pk")
        default_permissions = ("view", "change")
        verbose_name, verbose_name_plural = _("problem report"), _("problem reports")

    def __str__(self) -> str:
        return f"Report {self.pk}"
