"""Django's own accounts in the look of the other pages."""

from typing import TYPE_CHECKING

from django.contrib import admin
from django.contrib.auth import admin as auth_admin
from django.contrib.auth.models import Group, User
from unfold.forms import AdminPasswordChangeForm, UserChangeForm, UserCreationForm

if TYPE_CHECKING:

    class Unfolded:
        """Typed as nothing: unfold has no types."""

else:
    from unfold.admin import ModelAdmin as Unfolded

admin.site.unregister(User)
admin.site.unregister(Group)


@admin.register(User)
class UserAdmin(auth_admin.UserAdmin, Unfolded):  # type: ignore[type-arg]
    form = UserChangeForm
    add_form = UserCreationForm
    change_password_form = AdminPasswordChangeForm


@admin.register(Group)
class GroupAdmin(auth_admin.GroupAdmin, Unfolded):
    pass
