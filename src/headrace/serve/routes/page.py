"""The page itself, its files, and the reference of the API."""

from __future__ import annotations

from fastapi import APIRouter, HTTPException, Request
from fastapi.responses import Response

from headrace.serve.assets import Assets

router = APIRouter(include_in_schema=False)


@router.get("/")
def cities_page(request: Request) -> Response:
    """Send the live page of the cities."""
    return _assets(request).page("index.html").respond(request, for_ever=False)


@router.get("/api/v1/docs")
def reference_page(request: Request) -> Response:
    """Send the reference of the API, drawn by the page from the OpenAPI document."""
    return _assets(request).page("reference.html").respond(request, for_ever=False)


@router.get("/favicon.ico")
def icon(request: Request) -> Response:
    """Send the mark to who asks for an icon without reading the page."""
    return _assets(request).page("icon.svg").respond(request, for_ever=False)


@router.get("/assets/{digest}/{name}")
def asset(request: Request, digest: str, name: str) -> Response:
    """Send one file of the page."""
    found = _assets(request).find(digest, name)
    if found is None:
        raise HTTPException(status_code=404)
    return found.respond(request)


def _assets(request: Request) -> Assets:
    assets: Assets = request.app.state.assets
    return assets
