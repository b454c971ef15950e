"""What the admin pages of all rooms share: reading without writing, and buttons that post."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from django import forms
from django.contrib import admin
from django.contrib.admin.models import LogEntry
from django.contrib.admin.utils import quote, unquote
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseBase, HttpResponseRedirect
from django.urls import URLPattern, path, reverse

if TYPE_CHECKING:
    CatalogueAdmin = admin.ModelAdmin[Any]
    CatalogueForm = forms.ModelForm[Any]
else:
    from unfold.admin import ModelAdmin as CatalogueAdmin

    CatalogueForm = forms.ModelForm


class ReadOnlyMixin:
    """Records are made by what happens, never by hand."""

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


@dataclass(frozen=True, kw_only=True, slots=True)
class Button:
    """One thing that can be done to one object."""

    name: str
    label: str
    icon: str
    """A Material symbol."""
    variant: str = "default"
    confirm: str = ""
    """A question to answer before it is done."""


def button(label: str, **looks: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Mark a method `(request, obj) -> None` as what a button does; it tells its result in messages."""

    def mark(method: Callable[..., None]) -> Callable[..., None]:
        method.button = Button(name=method.__name__, label=label, **looks)  # type: ignore[attr-defined]
        return method

    return mark


class ButtonsMixin(CatalogueAdmin):
    """Buttons on the change page.

    They post, unlike unfold's own actions: a link in somebody's mail must not refresh or cancel anything.
    """

    buttons: Iterable[str] = ()

    def get_buttons(self, request: HttpRequest, obj: Any) -> list[Button]:
        """Those that make sense for the object; none for people who may only look."""
        if not self.may_press_buttons(request):
            return []
        return [getattr(self, name).button for name in self.buttons]

    def may_press_buttons(self, request: HttpRequest) -> bool:
        """The model's own permission, also where its rows cannot be edited."""
        return request.user.has_perm(f"{self.opts.app_label}.change_{self.opts.model_name}")

    def get_urls(self) -> list[URLPattern]:
        return [self._button_url(name) for name in self.buttons] + super().get_urls()

    def _button_url(self, name: str) -> URLPattern:
        view = self.admin_site.admin_view(partial(self._press, name=name))
        return path(f"<path:object_id>/{name}/", view, name=f"{self._url_name}_{name}")

    @property
    def _url_name(self) -> str:
        return f"{self.opts.app_label}_{self.opts.model_name}"

    def _press(self, request: HttpRequest, object_id: str, *, name: str) -> HttpResponseBase:
        if not self.may_press_buttons(request):
            raise PermissionDenied
        obj = self.get_object(request, unquote(object_id))
        if obj is None:
            return HttpResponseRedirect(reverse(f"admin:{self._url_name}_changelist"))
        if request.method == "POST":
            method = getattr(self, name)
            method(request, obj)
            self.log_change(request, obj, f"Pressed “{method.button.label}”.")
        return HttpResponseRedirect(reverse(f"admin:{self._url_name}_change", args=[quote(obj.pk)]))

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any
    ) -> HttpResponse:
        if (obj := self._stored(request, context.get("original"))) is not None:
            context |= {"original": obj, "subtitle": str(obj), "buttons": self.get_buttons(request, obj)}
            context |= {"show_history": self._has_history(obj)} | self.panel(request, obj)
        return super().render_change_form(request, context, *args, **kwargs)

    def _stored(self, request: HttpRequest, obj: Any) -> Any:
        """Of a refused form, the object as it still is: the form has written its values to its own."""
        if obj is None or request.method != "POST":
            return obj
        return self.get_object(request, str(obj.pk)) or obj

    def _has_history(self, obj: Any) -> bool:
        """Of a record that nobody edits there is one only if somebody pressed a button of its page."""
        if not isinstance(self, ReadOnlyMixin):
            return True
        entries = LogEntry.objects.filter(content_type__app_label=self.opts.app_label)
        return entries.filter(content_type__model=self.opts.model_name, object_id=str(obj.pk)).exists()

    def panel(self, request: HttpRequest, obj: Any) -> dict[str, Any]:
        """What the template above the form shows of the object."""
        return {}
