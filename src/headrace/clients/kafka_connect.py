"""Kafka Connect over its REST interface: connectors made, looked at, started again and removed."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast
from urllib.parse import quote

from urllib3 import PoolManager, Retry, Timeout
from urllib3.exceptions import HTTPError

from headrace.errors import ConfigError, PartUnavailable

# A worker that just got a connector answers 409 while it hands out the work anew: a second or two on an idle machine.
_RETRIES = Retry(total=8, connect=2, backoff_factor=0.2, backoff_max=4, status_forcelist=(409,), allowed_methods=None)
_TIMEOUT = Timeout(connect=5.0, read=60.0)
# For whoever only looks, and will look again.
_QUICK_RETRIES = Retry(total=3, connect=0, read=0, backoff_factor=0.2, status_forcelist=(409,), allowed_methods=None)
_QUICK_TIMEOUT = Timeout(connect=3.0, read=10.0)

# How much of a trace is looked at, and how long the sentence out of it may be.
_SENTENCE = 300


@dataclass(frozen=True)
class ConnectorStatus:
    """What a worker says of one connector. `state` is FAILED as soon as the connector or one of its tasks is.

    `trace` is the first trace of a failure, or empty. `tasks` counts tasks: none in the first moments.
    """

    state: str
    tasks: int
    trace: str = ""

    @property
    def running(self) -> bool:
        """Whether the connector and at least one task run."""
        return self.state == "RUNNING" and self.tasks > 0

    @property
    def cause(self) -> str:
        """What the failure comes from, in one sentence: the deepest cause that has words."""
        causes = [line.removeprefix("Caused by: ") for line in self.trace.splitlines() if not line.startswith("\t")]
        told = [re.sub(r"^(?:[\w$]+\.)+([\w$]+):? ?", r"\1: ", line).rstrip(".: ") for line in causes if line.strip()]
        worded = [line for line in told if ": " in line]
        return (worded or told or ["nothing was said"])[-1][:_SENTENCE]


class ConnectClient:
    """One worker, or a cluster of them behind one address. Every call raises HR-613, transient, without an answer.

    A `quick` one gives up within seconds, where others wait for minutes.
    """

    def __init__(self, url: str, *, quick: bool = False) -> None:
        self.url = url.rstrip("/")
        self._pool = PoolManager(
            timeout=_QUICK_TIMEOUT if quick else _TIMEOUT, retries=_QUICK_RETRIES if quick else _RETRIES
        )

    def put(self, name: str, settings: Mapping[str, str]) -> None:
        """Make a connector, or give it other settings: it is started again if they differ. Raises HR-133."""
        self._asked("PUT", f"/connectors/{quote(name)}/config", dict(settings))

    def put_stopped(self, name: str, settings: Mapping[str, str]) -> None:
        """Make a connector that does not run: it can be asked for a position that an earlier one of its name saved."""
        self._asked("POST", "/connectors", {"name": name, "config": dict(settings), "initial_state": "STOPPED"})

    def resume(self, name: str) -> None:
        """Let a connector run that was stopped. One that runs goes on."""
        self._asked("PUT", f"/connectors/{quote(name)}/resume")

    def names(self) -> tuple[str, ...]:
        """Return the names of all connectors."""
        return tuple(sorted(cast("list[str]", self._asked("GET", "/connectors") or [])))

    def settings(self, name: str) -> dict[str, str] | None:
        """Return the settings of a connector, or None where there is none."""
        return cast("dict[str, str] | None", self._asked("GET", f"/connectors/{quote(name)}/config"))

    def status(self, name: str) -> ConnectorStatus | None:
        """Return how a connector is, or None where there is none."""
        answer = cast("dict[str, object] | None", self._asked("GET", f"/connectors/{quote(name)}/status"))
        if answer is None:
            return None
        tasks = cast("list[dict[str, str]]", answer["tasks"])
        everything = [cast("dict[str, str]", answer["connector"]), *tasks]
        failed = next((each for each in everything if each["state"] == "FAILED"), None)
        waiting = next((each["state"] for each in everything if each["state"] != "RUNNING"), "RUNNING")
        state = failed["state"] if failed else waiting
        return ConnectorStatus(state, len(tasks), failed.get("trace", "") if failed else "")

    def restart(self, name: str) -> None:
        """Start what failed of a connector again. Its position is kept."""
        self._asked("POST", f"/connectors/{quote(name)}/restart?includeTasks=true&onlyFailed=true")

    def stop(self, name: str) -> None:
        """Stop a connector and keep it: needed before its position may be deleted."""
        self._asked("PUT", f"/connectors/{quote(name)}/stop")

    def delete(self, name: str) -> None:
        """Remove a connector. Its position stays, and a connector of this name goes on from it."""
        self._asked("DELETE", f"/connectors/{quote(name)}")

    def position(self, name: str) -> dict[str, object]:
        """Return the saved position of a connector in its own words; empty before the first one was saved."""
        answer = cast(
            "dict[str, list[dict[str, object]]] | None", self._asked("GET", f"/connectors/{quote(name)}/offsets")
        )
        saved = [cast("dict[str, object] | None", each["offset"]) for each in (answer or {}).get("offsets", [])]
        return next((each for each in saved if each), {})

    def forget_position(self, name: str) -> None:
        """Delete the saved position of a stopped connector: it will take a snapshot again."""
        self._asked("DELETE", f"/connectors/{quote(name)}/offsets")

    def _asked(self, method: str, path: str, body: object = None) -> object:
        """Return the answer of the worker, None for 404 or an answer without words."""
        try:
            response = self._pool.request(method, self.url + path, json=body)
        except HTTPError as error:
            raise PartUnavailable(
                f"Kafka Connect at {self.url} does not answer.",
                why=f"The client says: {type(error).__name__}.",
                state="Positions are kept; nothing is captured meanwhile, and the source keeps its log.",
                remedy="Start it (`headrace up --with connect` for the local one), or correct its address.",
                code="HR-613",
            ) from error
        if response.status == 404:
            return None
        try:
            answer: object = json.loads(response.data) if response.data else None
        except ValueError:
            answer = None
        if response.status >= 400:
            said = cast("dict[str, object]", answer).get("message", "") if isinstance(answer, dict) else ""
            raise ConfigError(
                f"Kafka Connect at {self.url} refuses what it was asked.",
                why=f"It answers {response.status}: {' '.join(str(said).split())[:_SENTENCE] or 'nothing'}.",
                state="The connector and its position are as they were.",
                remedy="Correct the capture, or the rights of its user in the source database.",
                code="HR-133",
            )
        return answer
