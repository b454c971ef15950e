"""A source's form: our own fields, and those of the connector that its kind names."""

import json
import re
from typing import TYPE_CHECKING, Any, ClassVar, cast

from django import forms
from django.core.exceptions import NON_FIELD_ERRORS, ValidationError
from django.utils.functional import cached_property
from django.utils.safestring import mark_safe
from unfold.widgets import UnfoldBooleanWidget

from catalogue.admin.base import CatalogueForm
from catalogue.admin.sealed import EntriesLost, seal_entries, unseal_entries
from catalogue.admin.setting_fields import ONLY_IF, SETTING, setting_field
from catalogue.connections import find_setting_problems
from catalogue.engine_settings import EMPTY, Setting, settings_of
from catalogue.models import Source
from catalogue.secrets import CredentialsUnreadable
from catalogue.sources import (
    UPDATABLE,
    check_address_is_kept,
    check_settings,
    configure_source,
    create_source,
    update_source,
)
from connectors.errors import Misconfigured

FORGET = "forget_"
STORED = "stored; leave empty to keep"
ENTERED = "entered; leave empty to keep"
KEPT_ENTRIES = "kept_entries"
"""The hidden field with the secrets, encrypted, that were typed into the form before it was refused."""
WITHOUT_ONE = re.compile(r"\s*\bEmpty: [^.<]*\.")
TEST = "_test"
"""The button that tries the form's settings instead of saving them."""


if TYPE_CHECKING:
    SourceModelForm = CatalogueForm
else:
    SourceModelForm = forms.ModelForm


class SourceForm(SourceModelForm):
    """Made for one kind by `source_form`; secrets are only ever written, never shown."""

    settings: ClassVar[dict[str, Setting]] = {}
    sealed_for: ClassVar[str] = ""
    """Whose form it is, and for which source: what is sealed in it opens in no other."""
    kept_entries = forms.CharField(required=False, widget=forms.HiddenInput)

    class Meta:
        model = Source
        fields = UPDATABLE

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._stored = stored_credentials(self.instance)
        self._kept, self._lost = self._open_entries()
        for name, setting in self.settings.items():
            field = self.fields.get(SETTING + name)
            if field is None:
                continue
            if setting.secret:
                self._mark_stored(name, field)
            elif name in self.instance.config:
                self.initial[SETTING + name] = self.instance.config[name]

    def _open_entries(self) -> tuple[dict[str, str], bool]:
        """The secrets that were typed before; whether there were some that cannot be read any more."""
        try:
            return unseal_entries(self.data.get(KEPT_ENTRIES, ""), form=self.sealed_for), False
        except EntriesLost:
            return {}, True

    def _mark_stored(self, name: str, field: forms.Field) -> None:
        if self._stored.get(name):
            _mark_as_known(field, STORED)
        else:
            self.fields.pop(FORGET + name, None)
        if name in self._kept:
            _mark_as_known(field, ENTERED)

    def is_valid(self) -> bool:
        """Whether to save; what is only tried is not."""
        return super().is_valid() and not self.is_tried

    @property
    def is_tried(self) -> bool:
        return TEST in self.data

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or self.cleaned_data
        if not self.settings:
            return cleaned
        if self._lost:
            self.add_error(None, "The secrets that were entered here are no longer kept: enter them again.")
        for name, messages in find_setting_problems(self.kind, self.config | self.credentials).items():
            field = SETTING + name if SETTING + name in self.fields else None
            if field is None or field not in self.errors:
                self.add_error(field, ValidationError(messages))
        if not self.setting_errors:
            self._check_address()
            self._check_connector()
        self._keep_entries()
        return cleaned

    def _keep_entries(self) -> None:
        """A browser gets no secret back: those typed into a refused form go with it, encrypted."""
        usable = {
            name: value
            for name, setting in self.settings.items()
            if setting.secret and SETTING + name not in self.errors and (value := self._entered(name))
        }
        data: Any = self.data
        self.data = data = data.copy()
        data[KEPT_ENTRIES] = seal_entries(usable, form=self.sealed_for)
        for name in usable:
            _mark_as_known(self.fields[SETTING + name], ENTERED)

    @cached_property
    def changed_data(self) -> list[str]:
        """What was typed before the form was refused is part of what changes."""
        changed = {*super().changed_data, *(SETTING + name for name in self._kept)}
        return [name for name in self.fields if name in changed and name != KEPT_ENTRIES]

    @property
    def setting_errors(self) -> dict[str, list[str]]:
        """By the field's name in the form, `__all__` for what concerns several."""
        about_settings = (
            name for name in self.errors if name == NON_FIELD_ERRORS or name.startswith(SETTING)
        )
        return {name: [str(message) for message in self.errors[name]] for name in about_settings}

    def _check_address(self) -> None:
        kept = [name for name in self._stored if self.credentials.get(name) and not self._entered(name)]
        try:
            if kept:
                check_address_is_kept(self.instance, self.config)
        except ValidationError as error:
            self.add_error(SETTING + kept[0], error.messages)

    def _check_connector(self) -> None:
        """The settings may be well-formed and still be unusable, such as a file that is not there."""
        try:
            check_settings(self.candidate())
        except ValidationError as error:
            self.add_error(None, error.messages)

    def candidate(self) -> Source:
        """The source as the form has it, to be tried and not to be saved."""
        candidate = Source(name=self.cleaned_data.get("name", ""), kind=self.kind, config=self.config)
        candidate.credentials = self.credentials
        return candidate

    @property
    def kind(self) -> str:
        return self.instance.kind or str(self.cleaned_data["kind"])

    @property
    def config(self) -> dict[str, Any]:
        """What differs from the connector's defaults, so that better defaults reach old sources."""
        return {
            name: value
            for name, setting in self.settings.items()
            if not setting.secret
            and self._matters(setting)
            and (value := self._chosen(setting)) != setting.default
        }

    @property
    def credentials(self) -> dict[str, str]:
        """What is stored, as the new values and the boxes to forget change it."""
        names = [name for name, setting in self.settings.items() if setting.secret and self._matters(setting)]
        kept = {name: self._stored[name] for name in names if name in self._stored}
        forgotten = {name for name in kept if self.cleaned_data.get(FORGET + name)}
        entered = {name: value for name in names if (value := self._entered(name))}
        return {name: value for name, value in kept.items() if name not in forgotten} | entered

    def _chosen(self, setting: Setting) -> Any:
        name = SETTING + setting.name
        value = self.cleaned_data.get(name)
        if self.fields[name].widget.value_omitted_from_data(self.data, self.files, self.add_prefix(name)):
            return self.instance.config.get(setting.name, setting.default)
        if value in EMPTY and value is not False:
            return setting.empty if setting.can_be_empty else setting.default
        return value

    def _matters(self, setting: Setting) -> bool:
        """What a field holds that another choice has made pointless is neither checked nor stored."""
        return all(
            _as_sent(self._chosen(self.settings[name])) in values
            for name, values in setting.hints.only_if.items()
            if name in self.settings
        )

    def _entered(self, name: str) -> str:
        return self.cleaned_data.get(SETTING + name) or self._kept.get(name, "")

    def create(self) -> Source:
        own = {name: self.cleaned_data[name] for name in UPDATABLE}
        return create_source(kind=self.kind, config=self.config, credentials=self.credentials, **own)

    def update(self) -> None:
        """Only what was changed: new settings make a listing due and replace open connections."""
        own = {name: self.cleaned_data[name] for name in UPDATABLE if name in self.changed_data}
        if own:
            update_source(self.instance, **own)
        if any(name.startswith((SETTING, FORGET)) for name in self.changed_data):
            configure_source(self.instance, config=self.config, credentials=self.credentials)


def source_form(kind: str, *, sealed_for: str) -> type[SourceForm]:
    """The form for sources of this kind; without settings where no connector knows the kind (any more)."""
    settings = known_settings(kind)
    fields: dict[str, Any] = {"settings": settings, "sealed_for": sealed_for}
    for name, setting in settings.items():
        field = fields[SETTING + name] = setting_field(setting, settings)
        if setting.secret and not setting.required:
            fields[FORGET + name] = _forget_field(setting, field)
    return cast(type[SourceForm], cast(Any, type(SourceForm))("SourceForm", (SourceForm,), fields))


def _mark_as_known(field: forms.Field, told: str) -> None:
    field.required = False
    field.widget.attrs["placeholder"] = told
    # The help says what holds without one; left empty, the field now keeps what there is.
    field.help_text = mark_safe(WITHOUT_ONE.sub("", str(field.help_text)))  # noqa: S308 - escaped


def _as_sent(value: Any) -> str:
    """As the conditions of `only_if` have it."""
    return value if isinstance(value, str) else json.dumps(value)


def _forget_field(setting: Setting, asking: forms.Field) -> forms.Field:
    conditions = {name: value for name, value in asking.widget.attrs.items() if name == ONLY_IF}
    return forms.BooleanField(
        required=False,
        label=f"Forget {setting.title}",
        help_text="Delete what is stored.",
        widget=UnfoldBooleanWidget(attrs=conditions),
    )


def known_settings(kind: str) -> dict[str, Setting]:
    """None where no connector can be used for the kind."""
    try:
        return settings_of(kind)
    except Misconfigured:
        return {}


def stored_credentials(source: Source) -> dict[str, str]:
    """Nothing when they cannot be read any more: then they have to be entered again."""
    try:
        return source.credentials
    except CredentialsUnreadable:
        return {}


def shown_settings(source: Source) -> list[tuple[str, str]]:
    """Every setting by its title, for people who may only look; of secrets, whether there is one."""
    stored = stored_credentials(source)
    rows = []
    for name, setting in known_settings(source.kind).items():
        told = ("stored" if stored.get(name) else "not stored") if setting.secret else ""
        rows.append((setting.title, told or str(source.config.get(name, setting.default))))
    return rows
