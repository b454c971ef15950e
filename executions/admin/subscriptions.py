"""Subscriptions to events: everybody's own, and all of them for those who manage them."""

from functools import partial
from typing import Any, ClassVar

from django import forms
from django.conf import settings
from django.contrib import admin, messages
from django.core.exceptions import ValidationError
from django.db.models import OuterRef, QuerySet, Subquery
from django.http import HttpRequest
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from unfold import widgets

from catalogue.admin.base import ButtonsMixin, button
from catalogue.admin.extensions import added
from catalogue.admin.rendering import ago
from catalogue.secrets import CredentialsUnreadable
from connectors.network.policy import endpoint_url
from executions import subscriptions
from executions.models import EventKind, EventNotice, Subscription
from executions.notices import MIN_KEY, NotSent, is_key
from executions.subscriptions import REPORTED

EMAIL, WEBHOOK = Subscription.Medium.EMAIL, Subscription.Medium.WEBHOOK
NEEDED = {
    WEBHOOK.value: {"address", "secret"},
    Subscription.Medium.SLACK.value: {"address"},
    Subscription.Medium.TEAMS.value: {"address"},
}
hidden_input = partial(
    forms.CharField, required=False, widget=widgets.UnfoldAdminPasswordWidget(attrs={"autocomplete": "off"})
)


class SubscriptionForm(forms.ModelForm):  # type: ignore[type-arg]
    kinds = forms.MultipleChoiceField(
        label=gettext_lazy("Events"), widget=widgets.UnfoldAdminCheckboxSelectMultipleWidget
    )
    callers = forms.MultipleChoiceField(
        label=gettext_lazy("Only of these tokens"),
        required=False,
        widget=widgets.UnfoldAdminSelect2MultipleWidget,
        help_text=gettext_lazy("Of runs and approvals; empty: of all callers."),
    )
    address = hidden_input(
        label=gettext_lazy("Address"),
        help_text=gettext_lazy("Of the webhook. It is stored encrypted and never shown; empty: unchanged."),
    )
    secret = hidden_input(
        label=gettext_lazy("Secret"),
        help_text=gettext_lazy(
            "Signs the messages: whsec_ and a key in Base64, such as openssl rand -base64 32 prints."
        ),
    )
    user: ClassVar[Any]  # Who fills it in

    class Meta:
        model = Subscription
        fields = (
            "name", "kinds", "workflows", "callers", "only_failed", "medium", "address", "secret",
            "frequency", "enabled",
        )  # fmt: skip

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        visible = {topic.kind for topic in REPORTED.values() if topic.is_visible_to(self.user)}
        choices = [(kind.value, kind.label) for kind in EventKind if kind in visible]
        self.fields["kinds"].choices = choices  # type: ignore[attr-defined]
        known = dict(one for choices in added("subscription_callers") for one in choices(self.user))
        kept = {key: f"{key} (ended, or not visible)" for key in self.instance.callers or ()}
        self.fields["callers"].choices = [*(kept | known).items()]  # type: ignore[attr-defined]
        if not self.user.has_perm(subscriptions.MANAGE):
            self.fields["medium"].choices = [(EMAIL.value, EMAIL.label)]  # type: ignore[attr-defined]

    def clean_address(self) -> str:
        address: str = self.cleaned_data["address"]
        try:
            return endpoint_url(address, may_have_query=True) if address else ""
        except ValueError as error:
            raise ValidationError(str(error)) from None

    def clean_secret(self) -> str:
        secret: str = self.cleaned_data["secret"]
        if secret and not is_key(secret):
            raise ValidationError(_("This is no key of at least %(number)s bytes.") % {"number": MIN_KEY})
        return secret

    def clean(self) -> dict[str, Any]:
        given: dict[str, Any] = super().clean() or self.cleaned_data
        medium = given.get("medium", "")
        entered = {name: given[name] for name in ("address", "secret") if given.get(name)}
        self.target = {} if medium == EMAIL else self._target_before() | entered
        if medium == EMAIL and (problem := self._mail_problem()):
            self.add_error("medium", problem)
        for name in NEEDED.get(medium, set()) - self.target.keys() - self.errors.keys():
            self.add_error(name, _("A webhook needs this."))
        return given

    def _mail_problem(self) -> str:
        if not settings.EMAIL_HOST:
            return _("This installation has no mail server: EMAIL_HOST is not set.")
        owner = self.instance.owner if self.instance.pk else self.user
        return "" if owner.email else _("The account has no e-mail address.")

    def _target_before(self) -> dict[str, str]:
        try:
            return dict(self.instance.target)
        except CredentialsUnreadable:
            return {}

    def save(self, commit: bool = True) -> Any:
        self.instance.target = self.target
        self.instance.chooses_workflows = bool(self.cleaned_data["workflows"])
        return super().save(commit)


@admin.register(Subscription)
class SubscriptionAdmin(ButtonsMixin):
    form = SubscriptionForm
    list_display = ("name", "events", "medium", "frequency", "owner", "last_message", "enabled")
    list_select_related = ("owner",)
    search_fields = ("name", "owner__username")
    autocomplete_fields = ("workflows",)
    buttons = ("send_example",)
    conditional_fields: ClassVar[dict[str, str]] = {
        "address": "medium != 'email'",
        "secret": "medium == 'webhook'",
    }
    change_form_outer_before_template = "executions/admin/subscription.html"

    def may_press_buttons(self, request: HttpRequest) -> bool:
        """Of the rows that `get_queryset` shows."""
        return subscriptions.may_subscribe(request.user) or request.user.has_perm(subscriptions.MANAGE)

    def has_module_permission(self, request: HttpRequest) -> bool:
        return self.may_press_buttons(request)

    def has_add_permission(self, request: HttpRequest) -> bool:
        return self.may_press_buttons(request)

    def has_view_permission(self, request: HttpRequest, obj: Subscription | None = None) -> bool:
        is_theirs = obj is None or obj.owner_id == request.user.pk
        return request.user.has_perm(subscriptions.MANAGE) or (is_theirs and self.may_press_buttons(request))

    has_change_permission = has_delete_permission = has_view_permission

    def get_queryset(self, request: HttpRequest) -> QuerySet[Subscription]:
        rows: QuerySet[Subscription] = super().get_queryset(request)
        if not request.user.has_perm(subscriptions.MANAGE):
            rows = rows.filter(owner=request.user.pk)
        latest = EventNotice.objects.filter(subscription=OuterRef("pk")).order_by("-pk")
        return rows.annotate(
            last_sent=Subquery(latest.exclude(sent_at=None).values("sent_at")[:1]),
            last_error=Subquery(latest.values("error")[:1]),
        )

    def get_form(
        self, request: HttpRequest, obj: Subscription | None = None, change: bool = False, **kwargs: Any
    ) -> Any:
        form = super().get_form(request, obj, change, **kwargs)
        return type(form.__name__, (form,), {"user": request.user})

    def save_model(self, request: HttpRequest, obj: Subscription, form: Any, change: bool) -> None:
        """A webhook tells what the user may see who last set it up: nobody directs another's elsewhere."""
        if not change or obj.medium != EMAIL:
            obj.owner = request.user  # type: ignore[assignment]
        super().save_model(request, obj, form, change)

    @admin.display(description=gettext_lazy("events"))
    def events(self, subscription: Subscription) -> str:
        return ", ".join(str(kind.label) for kind in EventKind if kind in subscription.kinds)

    @admin.display(description=gettext_lazy("last message"))
    def last_message(self, subscription: Any) -> str:
        return subscription.last_error or ago(subscription.last_sent)

    @button(gettext_lazy("Send an example"), icon="send", variant="primary")
    def send_example(self, request: HttpRequest, subscription: Subscription) -> None:
        try:
            subscriptions.send_example(subscription)
        except NotSent as why:
            messages.error(request, str(why))
        else:
            messages.success(request, _("An example was sent."))
