"""One module per question a paper asks. Every module here is imported, so a new file is a new analysis."""

from importlib import import_module
from pkgutil import iter_modules

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
