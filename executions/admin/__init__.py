"""The admin of executions: importing the package registers all of its pages."""

from importlib import import_module
from pkgutil import iter_modules

from django.contrib import admin

for _page in iter_modules(__path__):
    import_module(f"{__name__}.{_page.name}")
admin.site.index_template = "executions/admin/index.html"
admin.site.index_title = "Overview"
