"""Capabilities of sources, sinks and demos: declared by inheritance, never recognized by the names of methods."""

from __future__ import annotations

import inspect
import re
from abc import ABC
from dataclasses import FrozenInstanceError, dataclass, replace
from pathlib import Path

import pytest

from headrace.cdc.capture import declaration
from headrace.demos import protocol
from headrace.flow import sink, source
from headrace.flow.sink import WrapsSinks, leaf_sinks
from headrace.sinks.console import Console
from headrace.sinks.fan_out import FanOut, Filtered
from headrace.sinks.noop import Noop

CAPABILITIES = [
    kind
    for module in (source, sink, declaration, protocol)
    for kind in vars(module).values()
    if inspect.isclass(kind) and kind.__module__ == module.__name__ and ABC in kind.__bases__
]
MEMBERS = [(capability, name) for capability in CAPABILITIES for name in sorted(capability.__abstractmethods__)]


def implementations(capability: type, *, without: str = "") -> dict[str, object]:
    """Return a value for each member of a capability, as a class would define it."""

    def method(*_arguments: object) -> str:
        return "called"

    is_property = {name: isinstance(vars(capability)[name], property) for name in capability.__abstractmethods__}
    return {name: "set" if is_property[name] else method for name in is_property if name != without}


def test_the_table_of_capabilities_lists_all_of_them() -> None:
    page = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text().split("### Capabilities")[1].split("\n### ")[0]
    documented = re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)
    assert sorted(documented) == sorted(capability.__name__ for capability in CAPABILITIES)


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_a_capability_is_abstract_and_documented(capability: type) -> None:
    assert inspect.isabstract(capability)
    assert inspect.getdoc(capability)
    assert not getattr(capability, "_is_protocol", False)


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_a_class_that_has_the_methods_but_not_the_base_lacks_the_capability(capability: type) -> None:
    look_alike = type("LookAlike", (), implementations(capability))
    assert not isinstance(look_alike(), capability)


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_a_class_that_inherits_and_implements_all_members_has_the_capability(capability: type) -> None:
    declared = type("Declared", (capability,), implementations(capability))
    assert isinstance(declared(), capability)


@pytest.mark.parametrize(("capability", "member"), MEMBERS)
def test_a_class_that_inherits_without_implementing_a_member_cannot_be_instantiated(
    capability: type, member: str
) -> None:
    incomplete = type("Incomplete", (capability,), implementations(capability, without=member))
    with pytest.raises(TypeError, match=rf"abstract class Incomplete .*\b{member}\b"):
        incomplete()


@pytest.mark.parametrize("slots", [False, True])
@pytest.mark.parametrize("capability", CAPABILITIES)
def test_a_frozen_dataclass_can_declare_a_capability(capability: type, slots: bool) -> None:
    """A field with a default implements a property."""
    values = implementations(capability)
    fields = {"path": "str", **{name: "str" for name, value in values.items() if value == "set"}}
    declared = type("Declared", (capability,), {"__annotations__": fields, "path": "a", **values})
    frozen = dataclass(frozen=True, slots=slots)(declared)
    assert frozen("b") == frozen(path="b") != frozen()
    assert hash(frozen("b")) == hash(frozen("b"))
    assert replace(frozen(), path="b") == frozen("b")
    assert isinstance(frozen(), capability)
    with pytest.raises(FrozenInstanceError):
        frozen().path = "b"


def test_sinks_that_wrap_others_are_replaced_by_them_with_their_steps() -> None:
    console, noop = Console(), Noop()
    fan_out = FanOut(console, Filtered("a > 0", FanOut(noop, console)))
    assert list(leaf_sinks(fan_out)) == [("0.0", console), ("0.1.0", noop), ("0.1.1", console)]
    assert isinstance(fan_out, WrapsSinks)


@pytest.mark.parametrize("attribute", ["sink", "sinks"])
def test_a_sink_with_an_attribute_named_like_that_of_a_wrapper_is_a_leaf(attribute: str) -> None:
    leaf = type("Leaf", (), {attribute: "something else"})()
    assert list(leaf_sinks(leaf)) == [("0", leaf)]
