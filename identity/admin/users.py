"""Users and groups: users can only grant rights that they have, and the last owner remains an owner."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast

from django import forms
from django.apps import apps
from django.contrib import admin, messages
from django.contrib.auth import admin as auth_admin
from django.contrib.auth.models import Group, Permission, User
from django.contrib.contenttypes.models import ContentType
from django.core.exceptions import PermissionDenied, ValidationError
from django.db import transaction
from django.db.models import Count, Prefetch, Q, QuerySet
from django.http import HttpRequest
from django.utils.safestring import SafeString
from django.utils.text import capfirst
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from unfold.contrib.filters.admin import BooleanRadioFilter, RelatedDropdownFilter
from unfold.forms import AdminPasswordChangeForm, UserChangeForm, UserCreationForm
from unfold.widgets import UnfoldAdminSelectWidget, UnfoldBooleanSwitchWidget

from access import roles
from access.models import Role
from catalogue.actions.sources import rename_in_reservations
from catalogue.admin import rendering
from catalogue.admin.base import Button, ButtonsMixin, CatalogueAdmin, CatalogueForm, button, column
from catalogue.history import actor_of, record_change
from catalogue.naming import find_name_problem
from connectors.network.redaction import escaped
from identity.models import ExternalIdentity, SecondFactor

NO_ROLE = gettext_lazy("None: only the groups and permissions under “More” apply")
LAST_OWNER = (
    "This is the last active owner or superuser, and the product needs one. Make another user an owner first."
)


class RoleMixin(CatalogueForm):
    """One choice; its group replaces those of the other roles."""

    editor: Any = None  # Who gives the role
    role = forms.ChoiceField(required=False, widget=UnfoldAdminSelectWidget())

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        offered = roles.grantable_roles(self.editor)
        choices = [(role.name, f"{role}: {roles.DESCRIPTIONS[Role.Name(role.name)]}") for role in offered]
        field = cast("forms.ChoiceField", self.fields["role"])
        field.choices = [("", NO_ROLE), *choices]
        if self.instance.pk and (present := roles.role_of(self.instance)) is not None:
            field.initial = present.name
        if "groups" in self.initial:
            self.initial["groups"] = [group for group in self.initial["groups"] if not hasattr(group, "role")]


class UserForm(RoleMixin, UserChangeForm):  # type: ignore[misc]
    def clean(self) -> Any:
        cleaned = super().clean()
        roles.lock_owners()
        is_superuser = self.cleaned_data.get("is_superuser", self.instance.is_superuser)
        stays = is_superuser or self.cleaned_data.get("role") == Role.Name.OWNER
        active = self.cleaned_data.get("is_active") and self.cleaned_data.get("is_staff")
        if not (stays and active) and roles.would_leave_no_owner([self.instance.pk]):
            raise ValidationError(LAST_OWNER)
        return cleaned


class NewUserForm(RoleMixin, UserCreationForm):  # type: ignore[misc]
    is_staff = User._meta.get_field("is_staff").formfield(widget=UnfoldBooleanSwitchWidget(), initial=True)

    class Meta(UserCreationForm.Meta):  # type: ignore[misc]
        fields = ("username", "is_staff")


class OwnPermissionsMixin(CatalogueAdmin):
    """Users can grant only their own permissions, and change only accounts that have no others."""

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return super().has_change_permission(request, obj) and _covers(request, obj)

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return super().has_delete_permission(request, obj) and _covers(request, obj)

    def get_deleted_objects(self, objs: Any, request: HttpRequest) -> Any:
        """Django names the rows that link users, groups and permissions by their keys only."""
        found, *rest = super().get_deleted_objects(objs, request)
        return _in_words(found, dict(_links_of(objs))), *rest

    def formfield_for_manytomany(self, db_field: Any, request: Any = None, **kwargs: Any) -> Any:
        field = super().formfield_for_manytomany(db_field, request=request, **kwargs)
        if field is None or field.queryset is None:
            return field
        if field.queryset.model is Group:
            # Roles have a choice of their own.
            field.queryset = field.queryset.filter(role=None)
        if not request.user.is_superuser:
            own = roles.permissions_of(request.user).values("pk")
            if field.queryset.model is Group:
                others = Permission.objects.exclude(pk__in=own)
                field.queryset = field.queryset.exclude(permissions__in=others)
            else:
                field.queryset = field.queryset.filter(pk__in=own)
        return _of_permissions(db_field, field)


def _covers(request: HttpRequest, other: User | Group | None) -> bool:
    """Cached for a request, because Django asks a dozen times for one page."""
    known: dict[object, bool] = vars(request).setdefault("_covered", {})
    if other not in known:
        known[other] = roles.covers(request.user, other)
    return known[other]


def _links_of(objs: Iterable[User | Group]) -> Iterator[tuple[str, str]]:
    """Yields Django's words and ours for each row that is deleted with these."""
    keys = [obj.pk for obj in objs]
    deleted = "user" if isinstance(next(iter(objs), None), User) else "group"
    for links, others in (
        (User.groups.through, ("user", "group")),
        (User.user_permissions.through, ("user", "permission")),
        (Group.permissions.through, ("group", "permission")),
    ):
        if deleted not in others:
            continue
        rows: QuerySet[Any] = links._default_manager.filter(**{f"{deleted}__in": keys})
        for row in rows.select_related(*others):
            one, other = (getattr(row, name) for name in others)
            said, given = _("Permission of %(holder)s: %(given)s"), other.name
            if links is User.groups.through:
                said, given = _("Membership of %(holder)s in %(given)s"), str(other)
            yield (
                escaped(f"{capfirst(links._meta.verbose_name)}: {row}"),
                escaped(said % {"holder": one, "given": given}),
            )


def _in_words(found: Any, words: Mapping[str, str]) -> Any:
    if isinstance(found, list):
        return [_in_words(one, words) for one in found]
    return words.get(found, found)


admin.site.unregister(User)
admin.site.unregister(Group)


@admin.register(User)
class UserAdmin(ButtonsMixin, OwnPermissionsMixin, auth_admin.UserAdmin):  # type: ignore[type-arg]
    buttons = ("reset_second_factor", "unlink_company_login")
    change_form_outer_before_template = "identity/admin/user.html"
    form = UserForm
    add_form = NewUserForm
    change_password_form = AdminPasswordChangeForm
    list_display = ("username", "email", "role_shown", "is_active", "is_staff", "signed_in")
    list_filter = (
        ("is_active", BooleanRadioFilter), ("is_staff", BooleanRadioFilter),
        ("is_superuser", BooleanRadioFilter), ("groups", RelatedDropdownFilter),
    )  # fmt: skip
    readonly_fields = ("last_login", "date_joined")
    filter_horizontal = ()
    fieldsets = (
        (None, {"fields": ("username", "password")}),
        (gettext_lazy("Rights"), {"fields": ("role", ("is_active", "is_staff"))}),
        (gettext_lazy("Person"), {"fields": (("first_name", "last_name"), "email")}),
        (
            gettext_lazy("More"),
            {
                "classes": ("collapse",),
                "fields": ("is_superuser", "groups", "user_permissions", ("last_login", "date_joined")),
            },
        ),
    )
    add_fieldsets = (
        (
            None,
            {"fields": ("username", "usable_password", "password1", "password2", "role", "is_staff")},
        ),
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[User]:
        members = Group.objects.select_related("role")
        users: QuerySet[User] = super().get_queryset(request)
        return users.prefetch_related(Prefetch("groups", queryset=members))

    def lock(self, request: HttpRequest, key: str) -> None:
        roles.lock_owners()  # As everywhere before the accounts
        super().lock(request, key)

    def get_form(self, request: HttpRequest, obj: Any = None, change: bool = False, **kwargs: Any) -> Any:
        form = super().get_form(request, obj, change=change, **kwargs)
        return type(form.__name__, (form,), {"editor": request.user})

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        readonly = super().get_readonly_fields(request, obj)
        if not self.has_change_permission(request, obj):
            readonly = (*readonly, "role_shown")
        if not request.user.is_superuser:
            readonly = (*readonly, "is_superuser")
        return (*readonly, "company_logins")

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        shown = super().get_fieldsets(request, obj)
        if obj is not None and not self.has_change_permission(request, obj):
            shown = [
                (
                    title,
                    {
                        **options,
                        "fields": ["role_shown" if one == "role" else one for one in options["fields"]],
                    },
                )
                for title, options in shown
            ]
        if obj is None or not obj.identities.exists():
            return shown
        return (*shown, (_("Company login"), {"fields": ("company_logins",)}))

    def get_buttons(self, request: HttpRequest, obj: User) -> list[Button]:
        if not self.has_change_permission(request, obj):
            return []
        present = {
            "reset_second_factor": SecondFactor.objects.filter(user=obj).exists(),
            "unlink_company_login": obj.identities.exists(),
        }
        return [button for button in super().get_buttons(request, obj) if present[button.name]]

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        is_last = obj is not None and roles.would_leave_no_owner([obj.pk])
        return super().has_delete_permission(request, obj) and not is_last

    def get_deleted_objects(self, objs: Any, request: HttpRequest) -> Any:
        """All owners together, each of whom could be deleted alone, are kept."""
        found, counts, needed, kept = super().get_deleted_objects(objs, request)
        if roles.would_leave_no_owner([user.pk for user in objs]):
            kept = [*kept, LAST_OWNER]
        return found, counts, needed, kept

    def delete_model(self, request: HttpRequest, obj: User) -> None:
        self._delete([obj])

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[User]) -> None:
        self._delete(queryset)

    @transaction.atomic
    def _delete(self, users: Iterable[User]) -> None:
        roles.lock_owners()
        gone = list(users)
        if roles.would_leave_no_owner([user.pk for user in gone]):
            raise PermissionDenied(LAST_OWNER)
        for user in gone:
            user.delete()

    def save_model(self, request: HttpRequest, obj: User, form: Any, change: bool) -> None:
        former = form.initial.get("username")
        super().save_model(request, obj, form, change)
        if change and former != obj.username:
            rename_in_reservations(f"user:{obj.pk}", f"user:{obj.username}")

    def save_related(self, request: HttpRequest, form: Any, formsets: Any, change: bool) -> None:
        """The form's own groups do not include those of roles."""
        super().save_related(request, form, formsets, change)
        own = form.instance.groups.filter(role=None)
        role = Role.objects.filter(name=form.cleaned_data.get("role") or "").first()
        form.instance.groups.set([*own, *([role.group] if role else [])])
        if role and not form.instance.is_staff:
            messages.warning(
                request,
                _(
                    "%(user)s has a role but cannot log in here: “Staff status” is off. The role applies to "
                    "the user's agents only."
                )
                % {"user": form.instance},
            )

    @admin.display(description=gettext_lazy("role"))
    def role_shown(self, user: User) -> SafeString:
        named = {group.role.name: group.role for group in user.groups.all() if hasattr(group, "role")}
        shown = [
            rendering.badge(str(named[name]), "info") for name in reversed(Role.Name.values) if name in named
        ]
        if user.is_superuser:
            shown.insert(0, rendering.badge(_("Superuser"), "warning"))
        return rendering.side_by_side(shown or [rendering.DASH])

    @button(
        gettext_lazy("Reset second factor"),
        icon="phonelink_erase",
        variant="danger",
        confirm=gettext_lazy(
            "Remove the second factor of this account? Its password alone is then enough to log in."
        ),
    )
    def reset_second_factor(self, request: HttpRequest, user: User) -> None:
        if not self.has_change_permission(request, user):
            raise PermissionDenied
        SecondFactor.objects.filter(user=user).delete()
        messages.success(request, f"{user.get_username()} no longer has a second factor.")

    @button(
        gettext_lazy("Unlink company login"),
        icon="link_off",
        variant="danger",
        records=True,
        confirm=gettext_lazy(
            "Remove the link between this account and the company login? The next company login looks up "
            "the account again. To lock a person out, disable the account instead."
        ),
    )
    def unlink_company_login(self, request: HttpRequest, user: User) -> None:
        if not self.has_change_permission(request, user):
            raise PermissionDenied
        links = ExternalIdentity.objects.filter(user=user)
        named = ", ".join(map(str, links))
        links.delete()
        record_change(actor_of(request), [user], f"Unlinked from {named}.")
        messages.success(request, f"{user.get_username()} is no longer linked to {named}.")

    @admin.display(description=gettext_lazy("Company logins"))
    def company_logins(self, user: User) -> str:
        shown = (
            f"{one}, last used {one.last_login_at:%Y-%m-%d %H:%M} UTC"
            if one.last_login_at
            else f"{one}, never used"
            for one in user.identities.all()
        )
        return "; ".join(shown)

    signed_in = column(gettext_lazy("last sign-in"), "last_login")


class GroupForm(CatalogueForm):
    def clean_name(self) -> str:
        name: str = self.cleaned_data["name"]
        if "name" in self.changed_data and (problem := find_name_problem(name)):
            raise ValidationError(problem)
        return name


@admin.register(Group)
class GroupAdmin(OwnPermissionsMixin, auth_admin.GroupAdmin):
    """The product manages the groups of roles, so they are read-only here."""

    form = GroupForm
    list_display = ("name", "kind", "members")
    filter_horizontal = ()

    def get_queryset(self, request: HttpRequest) -> QuerySet[Group]:
        groups: QuerySet[Group] = super().get_queryset(request).select_related("role")
        return groups.annotate(member_count=Count("user"))

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return super().has_change_permission(request, obj) and not _is_role(obj)

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return super().has_delete_permission(request, obj) and not _is_role(obj)

    def save_model(self, request: HttpRequest, obj: Group, form: Any, change: bool) -> None:
        former = form.initial.get("name")
        super().save_model(request, obj, form, change)
        if change and former != obj.name:
            rename_in_reservations(f"group:{obj.pk}", f"group:{obj.name}")

    @admin.display(description=gettext_lazy("kind"))
    def kind(self, group: Group) -> SafeString:
        return rendering.badge("role", "info") if _is_role(group) else SafeString(_("own group"))

    @admin.display(description=gettext_lazy("members"), ordering="member_count")
    def members(self, group: Any) -> SafeString:
        return rendering.link(
            group.member_count, "auth_user_changelist", query=f"?groups__id__exact={group.pk}"
        )


def _is_role(group: Group | None) -> bool:
    return group is not None and hasattr(group, "role")


def _of_permissions(db_field: Any, field: Any) -> Any:
    """Offers those of models with a page, or of a role: others, such as those of sessions, allow nothing.
    `Can add workflow`: lists would cut it behind the names of app and model."""
    if db_field.remote_field.model is Permission:
        registered = filter(admin.site.is_registered, apps.get_models())
        with_pages = ContentType.objects.get_for_models(*registered).values()
        useful = Q(content_type__in=with_pages) | Q(group__in=Group.objects.exclude(role=None))
        field.queryset = field.queryset.filter(useful).distinct().order_by("content_type__model", "pk")
        field.label_from_instance = lambda permission: permission.name
    return field
