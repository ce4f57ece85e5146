"""Values that must never be printed."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Secret:
    """A secret and the reference it came from. Prints as the reference; only `reveal()` returns the value.

    `reveal()` is called at the last moment, by the source or the sink that opens the connection.
    """

    reference: str
    _value: str = field(repr=False)

    def reveal(self) -> str:
        """Return the value itself."""
        return self._value

    def __str__(self) -> str:
        return f"<{self.reference}>"


def reveal_secret(value: str | Secret) -> str:
    """Return a setting as the client library needs it."""
    return value.reveal() if isinstance(value, Secret) else value
