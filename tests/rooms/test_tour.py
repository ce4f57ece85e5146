"""The tour names the steps of an input and the guards of a query as the code has them, in the same order."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from headrace.runtime import inputs
from headrace.runtime.guards import order
from headrace.runtime.guards.guard import Guard

ROOT = Path(__file__).parents[2]
RUNTIME = ROOT / "src" / "headrace" / "runtime"
TOUR = (ROOT / "docs" / "tour.md").read_text()


def table(heading: str) -> list[str]:
    """Return the names in the first column of the table with this heading."""
    (rows,) = re.findall(rf"^\| {heading} +\|.*\n\|[-|]+\|\n((?:\|.*\n)+)", TOUR, re.MULTILINE)
    return re.findall(r"^\| `(\w+)` +\|", rows, re.MULTILINE)


def listed_guards() -> list[str]:
    """Return the guards in the only list of them: classes that are created there, or a parameter by its class."""
    (function,) = [
        node
        for node in ast.walk(ast.parse((RUNTIME / "guards" / "order.py").read_text()))
        if isinstance(node, ast.FunctionDef) and node.name == "__init__"
    ]
    parameters = {argument.arg: ast.unparse(argument.annotation or ast.Name("")) for argument in function.args.args}
    (guards,) = [
        node.value
        for node in function.body
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "self._guards"
    ]
    assert isinstance(guards, ast.Tuple)
    return [
        ast.unparse(guard.func) if isinstance(guard, ast.Call) else parameters[ast.unparse(guard)]
        for guard in guards.elts
    ]


def test_the_tour_shows_the_steps_of_an_input():
    steps = [step.__name__ for step in inputs.STEPS]

    assert len(steps) > 1
    assert table("step") == steps
    (path,) = re.findall(r"^```\n(source\.stream -> .*?)^```$", TOUR, re.MULTILINE | re.DOTALL)
    after_read = " -> ".join(steps[1:])
    assert " ".join(path.split()) == f"source.stream -> {after_read} -> transform -> count_results -> sink.write"


def test_every_step_of_an_input_is_explained_where_it_is_defined():
    rows = re.findall(r"^\| (\w+) +\|", inputs.__doc__ or "", re.MULTILINE)

    assert rows == ["step", *(step.__name__ for step in inputs.STEPS)]


def test_the_tour_shows_the_guards_of_a_query():
    guards = listed_guards()

    assert len(guards) > 1
    assert table("guard") == guards
    assert [name for name in guards if not issubclass(getattr(order, name), Guard)] == []


def test_every_guard_is_in_the_list():
    classes = {
        node.name
        for path in RUNTIME.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef) and "Guard" in [ast.unparse(base) for base in node.bases]
    }

    assert classes - {"OrderedGuards"} == set(listed_guards())


def test_there_is_one_list_of_guards():
    builders = {
        path.relative_to(RUNTIME).as_posix()
        for path in RUNTIME.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in set(listed_guards()) - {"Stopper"}
    }

    assert builders == {"guards/order.py"}
