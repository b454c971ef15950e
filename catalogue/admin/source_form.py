"""A source's form: our own fields, and those of the connector that its kind names."""

from typing import TYPE_CHECKING, Any, ClassVar, cast

from django import forms
from django.core.exceptions import ValidationError
from pydantic import BaseModel
from unfold.widgets import UnfoldBooleanWidget

from catalogue.admin.base import CatalogueForm
from catalogue.admin.setting_fields import default_of, is_secret, setting_field
from catalogue.connections import find_setting_problems
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
from connectors.registry import connector_class

SETTING = "setting_"
FORGET = "forget_"
STORED = "stored; leave empty to keep"


if TYPE_CHECKING:
    SourceModelForm = CatalogueForm
else:
    SourceModelForm = forms.ModelForm


class SourceForm(SourceModelForm):
    """Made for one kind by `source_form`; secrets are only ever written, never shown."""

    Config: ClassVar[type[BaseModel] | None] = None

    class Meta:
        model = Source
        fields = UPDATABLE

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._stored = stored_credentials(self.instance)
        for name, info in setting_infos(self.Config).items():
            field = self.fields.get(SETTING + name)
            if field is None:
                continue
            if is_secret(info):
                self._mark_stored(name, field)
            elif name in self.instance.config:
                self.initial[SETTING + name] = self.instance.config[name]

    def _mark_stored(self, name: str, field: forms.Field) -> None:
        if self._stored.get(name):
            field.required = False
            field.widget.attrs["placeholder"] = STORED
        else:
            self.fields.pop(FORGET + name, None)

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or self.cleaned_data
        if self.Config is None:
            return cleaned
        for name, messages in find_setting_problems(self.kind, self.config | self.credentials).items():
            field = SETTING + name if SETTING + name in self.fields else None
            if field is None or field not in self.errors:
                self.add_error(field, ValidationError(messages))
        if not self.errors:
            self._check_address()
            self._check_connector()
        return cleaned

    def _check_address(self) -> None:
        kept = [name for name in self._stored if self.credentials.get(name) and not self._entered(name)]
        try:
            if kept:
                check_address_is_kept(self.instance, self.config)
        except ValidationError as error:
            self.add_error(SETTING + kept[0], error.messages)

    def _check_connector(self) -> None:
        """The settings may be well-formed and still be unusable, such as a file that is not there."""
        candidate = Source(name=self.cleaned_data["name"], kind=self.kind, config=self.config)
        candidate.credentials = self.credentials
        try:
            check_settings(candidate)
        except ValidationError as error:
            self.add_error(None, error.messages)

    @property
    def kind(self) -> str:
        return self.instance.kind or str(self.cleaned_data["kind"])

    @property
    def config(self) -> dict[str, Any]:
        """What differs from the connector's defaults, so that better defaults reach old sources."""
        infos = setting_infos(self.Config)
        given = {name: self.cleaned_data.get(SETTING + name) for name in infos}
        return {
            name: value
            for name, value in given.items()
            if value is not None and not is_secret(infos[name]) and value != default_of(infos[name])
        }

    @property
    def credentials(self) -> dict[str, str]:
        """What is stored, as the new values and the boxes to forget change it."""
        names = [name for name, info in setting_infos(self.Config).items() if is_secret(info)]
        entered = {name: value for name in names if (value := self._entered(name))}
        kept = {
            name: value for name, value in self._stored.items() if not self.cleaned_data.get(FORGET + name)
        }
        return kept | entered

    def _entered(self, name: str) -> str:
        return self.cleaned_data.get(SETTING + name) or ""

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


def source_form(kind: str) -> type[SourceForm]:
    """The form for sources of this kind; without settings where no connector knows the kind (any more)."""
    fields: dict[str, Any] = {"Config": config_class(kind)}
    for name, info in setting_infos(fields["Config"]).items():
        fields[SETTING + name] = setting_field(name, info)
        if is_secret(info) and not info.is_required():
            fields[FORGET + name] = _forget_field(name, info.title or name)
    return cast(type[SourceForm], cast(Any, type(SourceForm))("SourceForm", (SourceForm,), fields))


def _forget_field(name: str, title: str) -> forms.Field:
    return forms.BooleanField(
        required=False,
        label=f"Forget {title}",
        help_text="Delete what is stored.",
        widget=UnfoldBooleanWidget(),
    )


def config_class(kind: str) -> type[BaseModel] | None:
    try:
        return connector_class(kind).Config
    except Misconfigured:
        return None


def setting_infos(config: type[BaseModel] | None) -> dict[str, Any]:
    return {} if config is None else config.model_fields


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
    for name, info in setting_infos(config_class(source.kind)).items():
        value = source.config.get(name, None if is_secret(info) else default_of(info))
        told = ("stored" if stored.get(name) else "not stored") if is_secret(info) else str(value)
        rows.append((info.title or name, told))
    return rows
