"""The web server: results that flows publish, as an API and a live page.

The server reads topics, never objects of the engine. Start it with `python -m headrace.serve`, or build
the application of a page with `create_app` and run it where other services run.
"""

from headrace.serve.app import create_app
from headrace.serve.pages import find_page, page_names

__all__ = ["create_app", "find_page", "page_names"]
