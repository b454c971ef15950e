from typing import Any

from django import forms
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from catalogue.secrets import EntriesLost, seal_entries, unseal_entries

KEPT = "kept_entries"


class SealedForm(forms.Form):
    """Secrets of a refused form travel with it, encrypted; the browser gets none back."""

    sealed_for = ""  # The user and the page; sealed entries open in no other form
    kept_entries = forms.CharField(
        label=gettext_lazy("Kept entries"), required=False, widget=forms.HiddenInput
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.kept: dict[str, Any] = {}
        self._lost = False
        try:
            self.kept = unseal_entries(self.data.get(KEPT, ""), form=self.sealed_for)
        except EntriesLost:
            self._lost = True

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or self.cleaned_data
        if self._lost:
            self.add_error(None, _("The secrets that you entered have expired. Enter them again."))
        return cleaned

    def keep(self, secrets: dict[str, Any]) -> None:
        data: Any = self.data
        self.data = data = data.copy()
        data[KEPT] = seal_entries(secrets, form=self.sealed_for)
