"""The admin of executions, a file for each kind of page."""

from django.contrib import admin

from executions.admin import (
    engine_runs,
    executions,
    result_cache,
    retention,
    source_deletion,
    workflow_usage,
)

__all__ = ["engine_runs", "executions", "result_cache", "retention", "source_deletion", "workflow_usage"]

admin.site.index_template = "executions/admin/index.html"
admin.site.index_title = "Overview"
