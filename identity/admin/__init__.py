from importlib import import_module
from pkgutil import iter_modules

for _page in iter_modules(__path__):
    import_module(f"{__name__}.{_page.name}")
