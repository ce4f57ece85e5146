"""The public test kit: what the tests of a project use."""

from headrace.testing.keyed_state_tester import KeyedStateTester
from headrace.testing.rehearsal import Rehearsal, local_session, rehearse
from headrace.testing.script import Arrive, Clock, Crash, EndOfInput, Keyed, Point

__all__ = [
    "Arrive",
    "Clock",
    "Crash",
    "EndOfInput",
    "Keyed",
    "KeyedStateTester",
    "Point",
    "Rehearsal",
    "local_session",
    "rehearse",
]
