"""The admin of executions, a file for each kind of page."""

from django.contrib import admin

from executions.admin import executions, retention

__all__ = ["executions", "retention"]

admin.site.index_template = "executions/admin/index.html"
admin.site.index_title = "Overview"
