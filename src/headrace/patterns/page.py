"""The declaration of a live page: what the web server needs to know of a pattern to show its results.

A pattern with a page has a module `page` with a `PAGE`. Declarations use pydantic only: `headrace.serve` makes the
routes, the event stream and the process of them.

    topics ── TopicFeed ──> Page.apply() ── Page.update() ──> routes and event streams
"""

import argparse
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import ClassVar, Literal, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field

from headrace.clients.topic_feed import FeedState, FeedStatus


class Response(BaseModel):
    """The base of all responses: the OpenAPI document is generated from their types."""

    model_config = ConfigDict(frozen=True)


class FeedResponse(Response):
    """How the topics are being read."""

    state: FeedState
    rows: int = Field(description="Rows read since the start, repeated ones included.")
    malformed: int = Field(description="Messages that were skipped because they are not such rows.")
    last_error: str | None = Field(description="Name of the Kafka error, while there is one.")
    missing_topics: list[str]

    @classmethod
    def of(cls, status: FeedStatus) -> Self:
        """Build the response from a feed status."""
        return cls.model_validate(asdict(status))


class ServerHealth(Response):
    """Whether the server serves what it should.

    The answer is 200 as long as the process lives; `status` says whether its data can be trusted to be
    current.
    """

    status: Literal["ok", "waiting", "degraded"] = Field(
        description="ok: rows flow. waiting: no data yet. degraded: the broker is away, the data is old."
    )
    version: str = Field(description="Version of Headrace.")
    live_connections: int = Field(description="Open event streams.")
    feed: FeedResponse


class NotFoundError(Exception):
    """Raised by the function of an endpoint. The server answers 404 with the body."""

    def __init__(self, body: BaseModel) -> None:
        super().__init__(str(body))
        self.body = body


@dataclass(frozen=True)
class Endpoint:
    """A GET route of the API. FastAPI reads the parameters and the response from the types of the function."""

    path: str
    function: Callable[..., BaseModel]
    tag: str
    summary: str
    not_found: type[BaseModel] | None = None


class PageUpdate(NamedTuple):
    """What an event stream sends: a body, or None if nothing changed, and the version that it brings a client to."""

    version: int
    body: BaseModel | None


class Page(ABC):
    """A live page over the rows of some topics. Called by several threads; `apply` by one only."""

    title: ClassVar[str]
    """One line for the OpenAPI document and the help of the server."""
    description: ClassVar[str]
    """What the API returns, as Markdown."""
    files: ClassVar[str]
    """The package with the folder `console`: index.html and its scripts."""
    update_description: ClassVar[str]
    """The events of the stream, as a Markdown table."""
    health_response: ClassVar[type[ServerHealth]]
    """The response of /health; its own fields are those of `health_fields`."""

    @classmethod
    @abstractmethod
    def add_options(cls, parser: argparse.ArgumentParser) -> None:
        """Add the page's options to the command line of the server."""

    @classmethod
    @abstractmethod
    def from_options(cls, options: argparse.Namespace) -> Self:
        """Create the page that these options describe."""

    @property
    @abstractmethod
    def topics(self) -> Mapping[str, type[BaseModel]]:
        """The topics to read, and the type of the rows of each."""

    @property
    @abstractmethod
    def endpoints(self) -> Sequence[Endpoint]:
        """The routes of the API, in the order of its reference."""

    @property
    @abstractmethod
    def has_data(self) -> bool:
        """Whether any row has arrived."""

    @abstractmethod
    def apply(self, rows: Iterable[tuple[BaseModel, datetime]]) -> int:
        """Apply rows with their publish times, and return how many changed the page."""

    @abstractmethod
    def subscribe(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` after every change, on the thread of `apply`; return the function that ends this."""

    @abstractmethod
    def update(self, since: int | None = None) -> PageUpdate:
        """Return what changed since a version; None is everything."""

    @abstractmethod
    def health_fields(self) -> Mapping[str, object]:
        """Return the page's own fields of /health."""


def int_in_range(low: int, high: int) -> Callable[[str], int]:
    """Return the type of an option: a integer between two bounds."""

    def number(text: str) -> int:
        value = int(text)
        if not low <= value <= high:
            msg = f"{value} is not between {low} and {high}"
            raise argparse.ArgumentTypeError(msg)
        return value

    return number
