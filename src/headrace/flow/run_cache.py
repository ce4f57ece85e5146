"""What sinks remember from one batch to the next within one run of a query."""

from typing import TypeVar


class CachedFact:
    """A fact that a sink remembers for its next batch. A class of such facts needs no arguments."""

    def close(self) -> None:
        """Release what the fact holds. Called at the end of the run; the default does nothing."""


Fact = TypeVar("Fact", bound=CachedFact)


class RunCache:
    """The cached facts of one run of a query. The cache is created with the query and closed with it.

    A sink is a declaration and holds no facts. It must be correct with an empty cache too: that only costs time.
    """

    def __init__(self) -> None:
        self._facts: dict[tuple[type[CachedFact], str], CachedFact] = {}

    def get(self, kind: type[Fact], key: str) -> Fact:
        """Return the fact of this class for a key, such as the location of a table. The first call creates it.

        Thread-safe: tables are written concurrently.
        """
        # setdefault is atomic: two threads that create a fact get the same one.
        fact = self._facts.get((kind, key)) or self._facts.setdefault((kind, key), kind())
        assert isinstance(fact, kind)  # noqa: S101 - the class is part of the key
        return fact

    def close(self) -> None:
        """Close every fact."""
        for fact in list(self._facts.values()):
            fact.close()
        self._facts.clear()
