"""The public test kit: what the tests of a project use."""

from headrace.testing.keyed_state_tester import KeyedStateTester
from headrace.testing.rehearsal import Rehearsal, rehearse
from headrace.testing.script import Arrive, Clock, Crash, EndOfInput, Keyed, Point
from headrace.testing.session import local_session

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
