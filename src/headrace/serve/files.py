"""The routes of the files: the page, its scripts and styles, and the reference of the API."""

from fastapi import APIRouter, HTTPException, Request
from fastapi.responses import Response

from headrace.serve.assets import Assets

router = APIRouter(include_in_schema=False)


@router.get("/")
def live_page(request: Request) -> Response:
    """Send the live page."""
    return _page_files(request).page("index.html").respond(request, immutable=False)


@router.get("/api/v1/docs")
def reference_page(request: Request) -> Response:
    """Send the reference of the API, drawn by the page from the OpenAPI document."""
    return _page_files(request).page("reference.html").respond(request, immutable=False)


@router.get("/favicon.ico")
def icon(request: Request) -> Response:
    """Send the icon to clients that request /favicon.ico directly."""
    return _page_files(request).page("icon.svg").respond(request, immutable=False)


@router.get("/assets/{digest}/{name}")
def asset(request: Request, digest: str, name: str) -> Response:
    """Send one file of the page."""
    file = _page_files(request).find(digest, name)
    if file is None:
        raise HTTPException(status_code=404)
    return file.respond(request)


def _page_files(request: Request) -> Assets:
    assets: Assets = request.app.state.assets
    return assets
