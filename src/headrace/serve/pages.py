"""Find the live pages that patterns declare. Imports no flow, so that the server starts without Spark."""

import importlib
import pkgutil
from pathlib import Path
from typing import cast

from headrace import patterns
from headrace.patterns.page import Page


def page_names() -> list[str]:
    """Return the names of the patterns that have a page."""
    (folder,) = patterns.__path__
    packages = [module.name for module in pkgutil.iter_modules([folder]) if module.ispkg]
    return [name for name in packages if (Path(folder) / name / "page.py").is_file()]


def find_page(name: str) -> type[Page]:
    """Return the page of a pattern that has one."""
    return cast("type[Page]", importlib.import_module(f"{patterns.__name__}.{name}.page").PAGE)
