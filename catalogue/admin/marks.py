"""Forms carry a mark of the values that they showed. Changes that others made meanwhile are kept, and
conflicts are reported.

Without a mark, as from a script, a form is saved unchanged.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from django import forms
from django.contrib import messages
from django.core.exceptions import ValidationError
from django.core.serializers.json import DjangoJSONEncoder
from django.db.models import Model
from django.forms.formsets import DELETION_FIELD_NAME
from django.http import HttpRequest
from django.utils import timezone
from django.utils.choices import flatten_choices

from catalogue.admin.form_fields import SecretTextarea
from catalogue.admin.rendering import value_in_full
from catalogue.models import HistoryEntry

MARK = "_shown"
SHOWN_NAMES, SHOWN_TEXT, SHOWN_ENTRIES = 10, 500, 3
SECRETS_CHANGED = (
    "The credentials were changed in the meantime, perhaps others than these: they are not compared. Save "
    "again to replace them anyway."
)
GONE = "A {} that you changed was deleted in the meantime and stays deleted. To restore it, add it again."

if TYPE_CHECKING:
    Form = forms.ModelForm[Any]
    FormSet = forms.BaseInlineFormSet[Any, Any, Any]
else:
    Form = FormSet = object


class FormSnapshot(NamedTuple):
    at: datetime
    values: Mapping[str, Any]  # By the field's name in the page


def read_mark(request: HttpRequest) -> FormSnapshot | None:
    try:
        at, values = json.loads(request.POST[MARK])
        return FormSnapshot(datetime.fromtimestamp(at, UTC), dict(values))
    except (KeyError, TypeError, ValueError, OverflowError, OSError):
        return None


def _marked(form: Any) -> list[forms.BoundField]:
    """Secrets are never shown, and hidden fields have a separate check."""
    return [
        field
        for field in form.visible_fields()
        if not (field.field.disabled or isinstance(field.field.widget, forms.PasswordInput | SecretTextarea))
    ]


def _plain(value: Any) -> Any:
    if isinstance(value, list) and value and isinstance(value[0], Model):
        return sorted(row.pk for row in value)
    return json.loads(json.dumps(value.pk if isinstance(value, Model) else value, cls=DjangoJSONEncoder))


class MarkedForm(Form):
    """The form of an object, or of one of its rows."""

    shown: ClassVar[Mapping[str, Any]] = {}
    shown_at: ClassVar[datetime]
    clashing: Sequence[forms.BoundField] = ()  # What both changed, to different values

    def full_clean(self) -> None:
        differing = [
            field
            for field in _marked(self)
            if field.html_name in self.shown and _plain(field.initial) != self.shown[field.html_name]
        ]
        touched = [field for field in differing if self._changes(field, self.shown[field.html_name])]
        self.clashing = [field for field in touched if self._changes(field, field.initial)]
        kept = [] if self._is_gone else [field.field for field in differing if field not in touched]
        for field in kept:
            field.disabled = True  # So Django takes the stored value
        super().full_clean()
        vars(self).pop("changed_data", None)  # Formsets read it before they check the form
        _ = self.changed_data  # Cached now, while the kept fields do not count as changed
        for field in kept:
            field.disabled, field.bound_data = False, lambda data, initial: initial  # type: ignore[method-assign]
        if self._is_gone:
            self.cleaned_data[DELETION_FIELD_NAME] = True
            self.fields[DELETION_FIELD_NAME].bound_data = lambda *_: True  # type: ignore[method-assign]
        else:
            for clash in self.clashing:
                self.add_error(clash.name, f"It was changed in the meantime, and is now: {_describe(clash)}")
        self._report_secrets()

    def _changes(self, field: forms.BoundField, value: Any) -> bool:
        is_deleted = DELETION_FIELD_NAME in self.fields and self[DELETION_FIELD_NAME].data
        return bool(is_deleted) or field.field.has_changed(value, field.data)

    @property
    def _is_gone(self) -> bool:
        """A row that others deleted."""
        is_row = DELETION_FIELD_NAME in self.fields and not self.empty_permitted
        return is_row and self.instance._state.adding

    def _report_secrets(self) -> None:
        """Uses the history, for all secrets together, because marks contain nothing about secrets."""
        if not (typed := getattr(self, "typed_secrets", ())):
            return
        columns = {*self.instance.recorded_as_secret}
        later = HistoryEntry.of(self.instance).filter(at__gt=self.shown_at)
        if any(columns & entry.changes.keys() for entry in later):
            self.clashing = [*self.clashing, *(self[name] for name in typed)]
            for name in typed:
                self.add_error(name, SECRETS_CHANGED)

    @property
    def told_of_deletion(self) -> str:
        """Django does not check deleted rows for errors."""
        if not (self.clashing and self.cleaned_data.get(DELETION_FIELD_NAME)):
            return ""
        if self._is_gone:
            return GONE.format(self.instance._meta.verbose_name)
        now = ", ".join(f"{field.label}: {_describe(field)}" for field in self.clashing)
        return f"The object that you are deleting was changed in the meantime, and is now: {now}"


class MarkedFormSet(FormSet):
    def clean(self) -> None:
        super().clean()
        if told := [told for form in self.forms if (told := form.told_of_deletion)]:
            raise ValidationError(told)


def _describe(shown: forms.BoundField) -> str:
    """Returns the stored value as text, cut after SHOWN_TEXT characters."""
    field: Any = shown.field
    value = shown.initial
    if isinstance(field, forms.ModelChoiceField):
        value = _named(field, _plain(value) if isinstance(value, list) else [value])
    elif isinstance(field, forms.ChoiceField) and not isinstance(value, list):
        choices: Any = field.choices
        value = dict(flatten_choices(choices)).get(value, value)
    text = value_in_full(_plain(value))
    return text if len(text) <= SHOWN_TEXT else f"{text[:SHOWN_TEXT]}…"


def _named(field: Any, keys: list[Any]) -> list[str]:
    names = [field.label_from_instance(row) for row in field.queryset.filter(pk__in=keys)[:SHOWN_NAMES]]
    more = len(keys) - len(names) if names else 0
    return [*names, f"{more} more"] if more else names


def show_mark(request: HttpRequest, obj: Model | None, shown: Sequence[Any]) -> dict[str, str]:
    """The context of mark.html for the forms of an object, or of the rows of a list. Reports who caused a
    conflict, and when, from the history."""
    if clashing := [form for form in shown if getattr(form, "clashing", ())]:
        known: list[str] = []
        for one in [form.instance for form in clashing] if obj is None else [obj]:
            entries = HistoryEntry.of(one).filter(at__gt=vars(request)[MARK].at)[:SHOWN_ENTRIES]
            named = f"{one}: " if obj is None else ""
            known += (
                f"{named}{entry.actor_name}, {entry.at:%Y-%m-%d %H:%M} UTC: {entry.message}"
                for entry in entries
            )
            if len(known) >= SHOWN_ENTRIES:
                break
        what = "the object was" if obj else "rows were"
        told = f"Nothing was saved: {what} changed after you opened the form."
        messages.error(
            request, " ".join([told, *known, "Saving again overwrites the changes described below."])
        )
    return {"mark": write_mark(shown)}


def write_mark(shown: Sequence[Any]) -> str:
    values = {field.html_name: _plain(field.initial) for form in shown for field in _marked(form)}
    return json.dumps([timezone.now().timestamp(), values])


def marked(form: Any, request: HttpRequest) -> Any:
    """The form's class, which compares with the mark of the request, if it has one."""
    mark: FormSnapshot | None = vars(request).get(MARK)
    return (
        form
        if mark is None
        else type(form)(form.__name__, (MarkedForm, form), {"shown": mark.values, "shown_at": mark.at})
    )
