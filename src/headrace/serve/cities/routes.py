"""The cities: the newest window of each, and the history of one."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import JSONResponse

from headrace.errors import DataError
from headrace.serve.cities.board import MAX_HISTORY, BoardSnapshot, CityBoard
from headrace.serve.cities.responses import CitiesResponse, HistoryResponse, UnknownCityResponse, WindowResponse

router = APIRouter(tags=["cities"])

_DEFAULT_LIMIT = 48  # four hours of 5-minute windows


@router.get("/cities", summary="All cities, newest window each")
def list_cities(request: Request) -> CitiesResponse:
    """Return the newest window of every city that has data, with its surge, sorted by name."""
    return CitiesResponse.of(_snapshot(request), datetime.now(UTC))


@router.get(
    "/cities/{city:path}/history",
    summary="Windows of one city",
    response_model=HistoryResponse,
    responses={404: {"model": UnknownCityResponse, "description": "No such city on the board."}},
)
def city_history(
    request: Request,
    city: Annotated[str, Path(description="Name of the city, as `/cities` spells it.", max_length=200)],
    limit: Annotated[
        int, Query(ge=1, le=MAX_HISTORY, description="How many windows, counted from the newest.")
    ] = _DEFAULT_LIMIT,
) -> HistoryResponse | JSONResponse:
    """Return the newest windows of one city, oldest first."""
    snapshot = _snapshot(request)
    city_state = snapshot.cities.get(city)
    if city_state is None:
        return JSONResponse(_unknown(city, snapshot).model_dump(), status_code=404)
    windows = [WindowResponse.of(window) for window in city_state.windows[-limit:]]
    return HistoryResponse(city=city, available=len(city_state.windows), windows=windows)


def _unknown(city: str, snapshot: BoardSnapshot) -> UnknownCityResponse:
    nearest = snapshot.nearest(city)
    if nearest:
        remedy = f"Did you mean '{nearest}'? GET /api/v1/cities lists all names."
    elif snapshot.cities:
        remedy = "GET /api/v1/cities lists all names."
    else:
        remedy = "Start the ride analytics flows; cities appear with their first window."
    problem = DataError(
        f"There is no city '{city}' on the board.",
        why=f"None of the {len(snapshot.cities)} cities with data has this name.",
        state="Nothing was changed.",
        remedy=remedy,
        code="HR-580",
    )
    return UnknownCityResponse(**problem.as_dict(), nearest=nearest)


def _snapshot(request: Request) -> BoardSnapshot:
    board: CityBoard = request.app.state.board
    return board.snapshot()
