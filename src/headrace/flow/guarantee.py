"""Delivery guarantees: what a sink contains after a crash and the retry of the in-flight batch."""

from enum import StrEnum


class Guarantee(StrEnum):
    """The delivery guarantee of a sink. The docstring of each sink states the conditions."""

    EXACTLY_ONCE = "exactly-once"
    """A retried batch leaves the sink as if the batch had run once."""
    AT_LEAST_ONCE = "at-least-once"
    """No row is lost. A retried batch may write its rows twice."""
    BEST_EFFORT = "best-effort"
    """For viewing only: rows may be missing or duplicated after a crash."""
