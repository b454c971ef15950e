"""Toolsets, with what their lists of tools cost."""

from django.contrib import admin

from catalogue.admin.base import CatalogueAdmin
from catalogue.models import Toolset


@admin.register(Toolset)
class ToolsetAdmin(CatalogueAdmin):
    list_display = ("slug", "title", "mode", "enabled")
    search_fields = ("slug", "title", "description")
    autocomplete_fields = ("picked",)
