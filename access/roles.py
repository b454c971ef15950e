"""The roles that come with the product, as groups with fixed permissions, and what they can grant."""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from django.contrib.auth.models import Group, Permission, User
from django.db.models import Q, QuerySet
from django.utils.translation import gettext_lazy as _

from access.models import Role

Name = Role.Name

SEEN = {  # Models that all roles see
    "auth": ("group", "user"),
    "audit": ("entry",),
    "catalogue": (
        "discoveryrun", "historyentry", "productsettings", "serverfeature", "source", "toolset",
        "toolsetrule", "workflow", "workflowfilter",
    ),
    "executions": (
        "approval", "cachedresult", "cachepolicy", "cacheuse", "execution", "executionevent",
        "executionpayload", "problemreport", "retention", "standingapproval",
    ),
    "mcp_bridge": ("accesstoken", "allowedapplication"),
    "orchestration": ("workflowrequest",),
}  # fmt: skip
CURATED = {  # Models that curators add, change and delete
    "catalogue": ("serverfeature", "source", "toolset", "toolsetrule", "workflow", "workflowfilter"),
}
OPERATING = frozenset({
    "catalogue.refresh_source", "executions.add_execution", "executions.change_execution",
    "executions.change_problemreport", "executions.decide_approval", "executions.delete_cachedresult",
    "orchestration.add_workflowrequest",
})  # fmt: skip
OWNED = {  # Models that only owners add, change and delete
    "auth": ("group", "user"),
    "catalogue": ("productsettings",),
    "executions": ("approval", "cachepolicy", "cacheuse", "execution", "retention", "standingapproval"),
    "mcp_bridge": ("accesstoken", "allowedapplication"),
    "orchestration": ("workflowrequest",),
}
OWNED_BESIDES = frozenset({
    "executions.manage_subscription", "mcp_bridge.assign_accesstoken", "mcp_bridge.keep_accesstoken",
})  # fmt: skip
WRITING = ("add", "change", "delete")
INTERNAL = {  # They have no page, so no role has permissions for them
    "admin": ("logentry",),
    "auth": ("permission",),
    "catalogue": ("revision",),
    "contenttypes": ("contenttype",),
    "executions": (
        "approvaldecision",
        "approvalnotice",
        "cachedoutput",
        "event",
        "eventnotice",
        "hourlyusage",
        "ratebucket",
        "statisticsstate",
        "workerpresence",
    ),
    "mcp_bridge": ("externalidentity", "failurecount", "secondfactor"),
    "oauth2_provider": ("accesstoken", "application", "devicegrant", "grant", "idtoken", "refreshtoken"),
    "sessions": ("session",),
}
DESCRIPTIONS = {
    Name.VIEWER: _("sees everything except secrets, and changes nothing"),
    Name.CURATOR: _("also curates: sources, workflows, exposure rules, toolsets, reviews and imports"),
    Name.OPERATOR: _("sees everything, runs, cancels, resolves, refreshes sources and decides approvals"),
    Name.OWNER: _("everything, including users, tokens and settings"),
}


def _permissions(models: Mapping[str, tuple[str, ...]], *verbs: str) -> Iterator[str]:
    return (f"{app}.{verb}_{model}" for app in models for model in models[app] for verb in verbs)


_seeing = frozenset(_permissions(SEEN, "view"))
_curating = frozenset(
    {*_permissions(CURATED, *WRITING), "catalogue.refresh_source", "executions.change_problemreport"}
)
PERMISSIONS: dict[Role.Name, frozenset[str]] = {
    Name.VIEWER: _seeing,
    Name.CURATOR: _seeing | _curating,
    Name.OPERATOR: _seeing | OPERATING,
    Name.OWNER: _seeing | _curating | OPERATING | OWNED_BESIDES | frozenset(_permissions(OWNED, *WRITING)),
}


def keep_roles() -> None:
    """Make the groups and give them exactly their permissions, as far as these exist. Safe to repeat."""
    rows = Permission.objects.values_list("content_type__app_label", "codename", "pk")
    present = {f"{app}.{codename}": key for app, codename, key in rows}
    for name in Name:
        role = Role.objects.select_related("group").filter(name=name).first()
        if role is None:
            free = str(name.label)
            while Group.objects.filter(name=free).exists():
                free = f"{free} (role)"
            role = Role.objects.create(name=name, group=Group.objects.create(name=free))
        group, wanted = role.group, {present[one] for one in PERMISSIONS[name] if one in present}
        if wanted != set(group.permissions.values_list("pk", flat=True)):
            group.permissions.set(wanted)


def role_of(user: User) -> Role | None:
    """The role with the most permissions if there are several."""
    roles = {role.name: role for role in Role.objects.filter(group__user=user).select_related("group")}
    return next((roles[name] for name in reversed(Name.values) if name in roles), None)


def grantable_roles(user: Any) -> list[Role]:
    """The roles without permissions that the user lacks."""
    roles = Role.objects.select_related("group")
    if user.is_active and user.is_superuser:
        offered = roles
    else:
        others = Permission.objects.exclude(pk__in=permissions_of(user).values("pk"))
        offered = roles.exclude(group__permissions__in=others)
    by_name = {role.name: role for role in offered}
    return [by_name[name] for name in Name.values if name in by_name]


def permissions_of(holder: Any) -> QuerySet[Permission]:
    """Returns the permissions of a user or group; also of disabled accounts, which can be enabled again."""
    if isinstance(holder, Group):
        return Permission.objects.filter(group=holder)
    return Permission.objects.filter(Q(user=holder) | Q(group__user=holder))


def covers(user: Any, other: User | Group | None) -> bool:
    """Returns whether the user has all permissions of the other."""
    if other is None or user.is_superuser:
        return True
    if getattr(other, "is_superuser", False):
        return False
    return not permissions_of(other).exclude(pk__in=permissions_of(user)).exists()


def owners() -> QuerySet[User]:
    """Returns who can administer everything: active members of staff that are superusers or have the role."""
    everything = Q(is_superuser=True) | Q(groups__role__name=Name.OWNER)
    return User.objects.filter(everything, is_active=True, is_staff=True).distinct()


def lock_owners() -> None:
    """Until the transaction ends, so that no two owners remove each other. SQLite has one writer anyway."""
    Role.objects.select_for_update().filter(name=Name.OWNER).first()


def would_leave_no_owner(without: Collection[int]) -> bool:
    """Returns whether these users (keys) include all owners, if there are any."""
    remaining = owners().exclude(pk__in=without)
    return not remaining.exists() and owners().filter(pk__in=without).exists()
