from django.contrib import admin

from executions.admin import executions, policies, sources, usage

__all__ = ["executions", "policies", "sources", "usage"]

admin.site.index_template = "executions/admin/index.html"
admin.site.index_title = "Overview"
