"""The client of Kafka Connect's REST API: create, inspect, restart and delete connectors."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast
from urllib.parse import quote

from urllib3 import PoolManager, Retry, Timeout
from urllib3.exceptions import HTTPError

from headrace.errors import ConfigError, ServiceUnavailable

# A worker answers 409 during a rebalance, for example after a new connector: a second or two on an idle machine.
_RETRIES = Retry(total=8, connect=2, backoff_factor=0.2, backoff_max=4, status_forcelist=(409,), allowed_methods=None)
_TIMEOUT = Timeout(connect=5.0, read=60.0)
# For status checks, which are repeated anyway.
_QUICK_RETRIES = Retry(total=3, connect=0, read=0, backoff_factor=0.2, status_forcelist=(409,), allowed_methods=None)
_QUICK_TIMEOUT = Timeout(connect=3.0, read=10.0)

# The maximum length of a cause or an error message.
_SENTENCE = 300


@dataclass(frozen=True)
class ConnectorStatus:
    """The status of a connector. `state` is FAILED if the connector or one of its tasks has failed.

    `trace` is the stack trace of the first failure, or empty. `tasks` is the number of tasks, 0 right after the start.
    """

    state: str
    tasks: int
    trace: str = ""

    @property
    def running(self) -> bool:
        """Whether the connector and all of its tasks are running, at least one."""
        return self.state == "RUNNING" and self.tasks > 0

    @property
    def cause(self) -> str:
        """The cause of the failure in one sentence: the deepest cause with a message."""
        causes = [line.removeprefix("Caused by: ") for line in self.trace.splitlines() if not line.startswith("\t")]
        messages = [
            re.sub(r"^(?:[\w$]+\.)+([\w$]+):? ?", r"\1: ", line).rstrip(".: ") for line in causes if line.strip()
        ]
        detailed = [line for line in messages if ": " in line]
        return (detailed or messages or ["nothing was said"])[-1][:_SENTENCE]


class ConnectClient:
    """A client of one worker or cluster. Every call raises HR-613 (transient) if there is no response.

    With `quick` it fails within seconds instead of minutes.
    """

    def __init__(self, url: str, *, quick: bool = False) -> None:
        self.url = url.rstrip("/")
        self._pool = PoolManager(
            timeout=_QUICK_TIMEOUT if quick else _TIMEOUT, retries=_QUICK_RETRIES if quick else _RETRIES
        )

    def put(self, name: str, settings: Mapping[str, str]) -> None:
        """Create or reconfigure a connector; other settings restart it. Raises HR-133."""
        self._request("PUT", f"/connectors/{quote(name)}/config", dict(settings))

    def put_stopped(self, name: str, settings: Mapping[str, str]) -> None:
        """Create a stopped connector: it gives access to the offsets of an earlier connector of its name."""
        self._request("POST", "/connectors", {"name": name, "config": dict(settings), "initial_state": "STOPPED"})

    def resume(self, name: str) -> None:
        """Resume a stopped connector. No effect on a running one."""
        self._request("PUT", f"/connectors/{quote(name)}/resume")

    def names(self) -> tuple[str, ...]:
        """Return the names of all connectors."""
        return tuple(sorted(cast("list[str]", self._request("GET", "/connectors") or [])))

    def settings(self, name: str) -> dict[str, str] | None:
        """Return the settings of a connector, or None if it does not exist."""
        return cast("dict[str, str] | None", self._request("GET", f"/connectors/{quote(name)}/config"))

    def status(self, name: str) -> ConnectorStatus | None:
        """Return the status of a connector, or None if it does not exist."""
        answer = cast("dict[str, object] | None", self._request("GET", f"/connectors/{quote(name)}/status"))
        if answer is None:
            return None
        tasks = cast("list[dict[str, str]]", answer["tasks"])
        everything = [cast("dict[str, str]", answer["connector"]), *tasks]
        failed = next((part for part in everything if part["state"] == "FAILED"), None)
        waiting = next((part["state"] for part in everything if part["state"] != "RUNNING"), "RUNNING")
        state = failed["state"] if failed else waiting
        return ConnectorStatus(state, len(tasks), failed.get("trace", "") if failed else "")

    def restart(self, name: str) -> None:
        """Restart the failed parts of a connector. Its offsets stay."""
        self._request("POST", f"/connectors/{quote(name)}/restart?includeTasks=true&onlyFailed=true")

    def stop(self, name: str) -> None:
        """Stop a connector without deleting it: required before its offsets can be deleted."""
        self._request("PUT", f"/connectors/{quote(name)}/stop")

    def delete(self, name: str) -> None:
        """Delete a connector. Its offsets stay, and a new connector of this name resumes from them."""
        self._request("DELETE", f"/connectors/{quote(name)}")

    def position(self, name: str) -> dict[str, object]:
        """Return the saved offset of a connector in its own format; empty before the first one."""
        answer = cast(
            "dict[str, list[dict[str, object]]] | None", self._request("GET", f"/connectors/{quote(name)}/offsets")
        )
        saved = [
            cast("dict[str, object] | None", saved_offset["offset"])
            for saved_offset in (answer or {}).get("offsets", [])
        ]
        return next((saved_offset for saved_offset in saved if saved_offset), {})

    def delete_position(self, name: str) -> None:
        """Delete the saved offsets of a stopped connector: it will take a new snapshot."""
        self._request("DELETE", f"/connectors/{quote(name)}/offsets")

    def _request(self, method: str, path: str, body: object = None) -> object:
        """Return the parsed response; None for status 404 or a response without JSON."""
        try:
            response = self._pool.request(method, self.url + path, json=body)
        except HTTPError as error:
            raise ServiceUnavailable(
                f"Kafka Connect at {self.url} does not answer.",
                why=f"The client says: {type(error).__name__}.",
                state="Offsets are kept; no changes are captured until then, and the source retains its log.",
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
            message = cast("dict[str, object]", answer).get("message", "") if isinstance(answer, dict) else ""
            raise ConfigError(
                f"Kafka Connect at {self.url} refuses the request.",
                why=f"It answers {response.status}: {' '.join(str(message).split())[:_SENTENCE] or 'nothing'}.",
                state="The connector and its position are as they were.",
                remedy="Correct the capture, or the rights of its user in the source database.",
                code="HR-133",
            )
        return answer
