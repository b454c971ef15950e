from collections.abc import Sequence
from typing import Any

from django.core.exceptions import ValidationError

from catalogue.fields import JSONTextField
from catalogue.models.history import Exposing
from catalogue.reservations import check_form, find_unknown


class Reservable(Exposing):
    """By name, so that a deleted user or group opens nothing: a name without either admits nobody."""

    reserved_for = JSONTextField(
        default=list,
        blank=True,
        validators=[check_form],
        help_text="The users and groups that may use it, such as user:ada and group:Finance. Empty: everyone "
        "who may use workflows.",
    )

    class Meta:
        abstract = True

    def clean(self) -> None:
        super().clean()
        kept = set(self._stored_reservation())
        if isinstance(self.reserved_for, list) and (
            unknown := find_unknown([name for name in self.reserved_for if name not in kept])
        ):
            raise ValidationError({"reserved_for": f"There is no {', '.join(unknown)[:500]}."})
        self.reserved_for = sorted(set(self.reserved_for))

    def _stored_reservation(self) -> Sequence[str]:
        """Those may be gone by now."""
        if self.as_read is None:
            return ()
        read: dict[str, Any] = dict(zip(*self.as_read, strict=True))
        stored: Sequence[str] = read.get("reserved_for") or ()
        return stored
