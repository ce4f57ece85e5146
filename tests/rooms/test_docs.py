"""The documentation cannot lag behind the code: each test walks one of the two and looks for it in the other."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import pkgutil
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from typer.core import TyperCommand
from typer.exceptions import TyperException
from typer.main import get_command

from headrace import patterns
from headrace.cdc.flows import CdcSettings
from headrace.cli import output
from headrace.cli.main import app
from headrace.patterns.enrichment.flows import EnrichmentSettings
from headrace.patterns.iot.flows import IotSettings
from headrace.patterns.medallion.flows import MedallionSettings
from headrace.patterns.orders.flows import OrderSettings
from headrace.patterns.rides.flows import RideSettings
from headrace.patterns.sales.flows import SalesSettings
from headrace.project.settings import ConnectSettings, DatabaseSettings, ProjectSettings, TargetSettings

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src" / "headrace"
OPERATE = ROOT / "docs" / "operate"
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")])

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
_INLINE = re.compile(r"`(headrace [a-z][^`]*)`")
# Where a command line ends for the shell: what follows belongs to another program.
_SHELL = {"|", ">", ">>", "&&", ";", "&"}

COMMAND = get_command(app)


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


def fences(page: Path, *languages: str) -> Iterator[str]:
    return (text for language, text in _FENCE.findall(page.read_text()) if language in languages)


def without_fences(page: Path) -> str:
    return _FENCE.sub("", page.read_text())


def commands(group: object = COMMAND, words: tuple[str, ...] = ("headrace",)) -> Iterator[tuple[str, TyperCommand]]:
    """Yield every command that can be run, hidden ones included, with the words that call it."""
    for name, command in getattr(group, "commands", {}).items():
        if hasattr(command, "commands"):
            yield from commands(command, (*words, name))
        else:
            yield " ".join((*words, name)), command


def section(page: Path, heading: str) -> str:
    """Return the text below a heading, up to the next one."""
    _, heading_line, rest = page.read_text().partition(f"# `{heading}`\n")
    assert heading_line, f"{named(page)} has no heading `{heading}`"
    return re.split(r"^#", rest, maxsplit=1, flags=re.MULTILINE)[0]


def in_sources(pattern: str) -> set[str]:
    files = [path for path in SRC.rglob("*") if path.suffix in (".py", ".properties", ".xml", ".tmpl")]
    return {match for path in files for match in re.findall(pattern, path.read_text())}


def anchors(page: Path) -> set[str]:
    """Return the anchors that a page's headings get: lower case, without punctuation, dashes for spaces."""
    headings = _HEADING.findall(without_fences(page))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def command_lines() -> Iterator[tuple[str, list[str]]]:
    """Yield every headrace command in a shell fence, with its page."""
    for page in PAGES:
        for text in fences(page, "sh", "console"):
            for line in text.splitlines():
                words = shlex.split(line, comments=True)
                if words[:1] == ["headrace"]:
                    end = next((number for number, word in enumerate(words) if word in _SHELL), len(words))
                    yield named(page), words[1:end]


def parse(words: list[str], *, complete: bool) -> None:
    """Find the command and its options, or raise LookupError. With `complete`, parse as the command line would."""
    command, rest = COMMAND, list(words)
    while rest and rest[0] in getattr(command, "commands", {}):
        command = command.commands[rest.pop(0)]
    is_group = hasattr(command, "commands")
    if is_group and rest and not rest[0].startswith("-"):
        raise LookupError(f"there is no command {shlex.join(words)}")
    options = {"--help"} | {text for option in command.params for text in option.opts}
    for word in rest:
        if word.startswith("-") and word.partition("=")[0] not in options:
            raise LookupError(f"there is no option {word} in {shlex.join(words)}")
    if complete and not is_group:
        command.make_context(command.name, rest).close()


@pytest.mark.parametrize(
    ("words", "command"),
    [pytest.param(*words_and_command, id=words_and_command[0]) for words_and_command in commands()],
)
def test_every_command_has_a_section_that_names_each_of_its_options(words: str, command: TyperCommand):
    below = section(OPERATE / "cli.md", words)

    options = [text for option in command.params for text in option.opts if text.startswith("-")]
    assert [text for text in options if not re.search(rf"`{text}\b", below)] == []


def test_every_section_of_a_command_names_a_command_that_exists():
    headings = re.findall(r"^### `(headrace .+)`$", (OPERATE / "cli.md").read_text(), re.MULTILINE)

    assert sorted(headings) == sorted(words for words, _ in commands())


def test_every_exit_code_is_documented():
    page = (OPERATE / "cli.md").read_text()

    codes = (output.OK, output.ANSWER_IS_NO, output.USAGE, output.TERMINAL, output.TRANSIENT, output.INTERRUPTED)
    assert [code for code in codes if f"\n| {code} |" not in page] == []


def test_every_environment_variable_is_documented():
    page = (OPERATE / "cli.md").read_text()

    variables = in_sources(r"\bHEADRACE_[A-Z_]+\b")
    assert {name for name in variables if f"\n| `{name}` |" not in page} == set()


def test_every_error_code_is_documented():
    page = (OPERATE / "errors.md").read_text()

    assert {code for code in in_sources(r"\bHR-\d{3}\b") if code not in page} == set()


def test_every_finding_of_the_check_is_documented():
    page = (OPERATE / "errors.md").read_text()

    assert {code for code in in_sources(r"\bHRC-\d{3}\b") if f"\n| {code} |" not in page} == set()


def test_every_documented_code_exists_in_the_sources():
    codes_in_sources = in_sources(r"\bHRC?-\d{3}\b")

    written = {code for page in PAGES for code in re.findall(r"\bHRC?-\d{3}\b", page.read_text())}
    assert written - codes_in_sources == set()


def test_no_code_has_two_meanings():
    page = (OPERATE / "errors.md").read_text()

    rows = re.findall(r"^\| (HRC?-\d{3}) \|", page, re.MULTILINE)
    assert sorted(code for code in set(rows) if rows.count(code) > 1) == []


# Codes that are raised at several places, and what all of these places report. A new place of another kind needs
# another code: users look up the code, and read one meaning and one remedy.
SAME_MEANING = {
    "HR-103": "a secret is not there",
    "HR-111": "a folder is not writable",
    "HR-122": "a pattern generates no records",
    "HR-201": "a text is not a duration",
    "HR-220": "a step of a test is not valid",
    "HR-221": "a rehearsal cannot know a value",
    "HR-321": "no flow has this name",
    "HR-356": "nothing that could be reconciled is closed",
    "HR-516": "no FileSink has committed a file to a folder",
    "HR-521": "the source database writes no log that can be captured",
    "HR-526": "there is no mirror",
    "HR-531": "the mirror is behind its source",
    "HR-560": "roll-ups could not add up",
    "HR-601": "Kafka does not answer",
    "HR-610": "a service does not answer",
}

# The same for findings. The three verdicts of the compatibility matrix (HRC-111 to HRC-113) have a reason per operator.
SAME_FINDING = {
    "HRC-108": "the trigger has no batches, and a sink or an input needs them",
    "HRC-111": "Spark refuses the operator in the output mode",
    "HRC-113": "the trigger does not support the operator",
    "HRC-114": "the trigger does not support the output mode",
    "HRC-201": "the state of an aggregation without a watermark keeps every key",
    "HRC-208": "deduplication or a join never removes rows from its state",
}


def test_a_code_that_is_raised_at_several_places_means_one_thing():
    codes = [code for path in SRC.rglob("*.py") for code in re.findall(r'code="(HR-\d{3})"', path.read_text())]
    findings = [code for path in SRC.rglob("*.py") for code in re.findall(r'"(HRC-\d{3})"', path.read_text())]

    assert {code for code in codes if codes.count(code) > 1} == set(SAME_MEANING)
    assert {code for code in findings if findings.count(code) > 1} == set(SAME_FINDING)


def glossary() -> list[list[str]]:
    """Return the rows of the glossary: term, meaning, links."""
    rows = re.findall(r"^\| (.+) \|$", (ROOT / "docs" / "glossary.md").read_text(), re.MULTILINE)
    return [row.split(" | ") for row in rows if not row.startswith("term |")]


def test_the_glossary_defines_its_terms_once():
    terms = [row[0] for row in glossary()]

    assert len(terms) >= 40
    assert len(set(terms)) == len(terms)
    assert [row for row in glossary() if len(row) != 3 or not row[1].endswith(".") or not row[2]] == []


def test_the_glossary_links_to_pages_of_spark():
    links = [link for row in glossary() for link in re.findall(r"\[Spark\]\((.*?)\)", row[2])]

    assert len(links) >= 10
    assert [link for link in links if not link.startswith("https://spark.apache.org/")] == []


@pytest.mark.parametrize("settings", [ProjectSettings, TargetSettings, DatabaseSettings, ConnectSettings])
def test_every_key_of_headrace_yml_is_documented(settings: type[BaseModel]):
    page = (OPERATE / "project.md").read_text()

    assert [key for key in settings.model_fields if f"\n| `{key}` |" not in page] == []


@pytest.mark.parametrize("pattern", [module.name for module in pkgutil.iter_modules(patterns.__path__) if module.ispkg])
def test_every_pattern_has_a_page_and_an_example(pattern: str):
    assert (ROOT / "docs" / "patterns" / f"{pattern}.md").is_file()
    assert (ROOT / "examples" / pattern / "headrace.yml").is_file()


@pytest.mark.parametrize(
    ("pattern", "settings"),
    [
        ("rides", RideSettings),
        ("orders", OrderSettings),
        ("cdc", CdcSettings),
        ("iot", IotSettings),
        ("sales", SalesSettings),
        ("enrichment", EnrichmentSettings),
        ("medallion", MedallionSettings),
    ],
)
def test_every_setting_of_a_pattern_is_on_its_page(pattern: str, settings: type[Any]):
    page = (ROOT / "docs" / "patterns" / f"{pattern}.md").read_text()

    assert [field.name for field in dataclasses.fields(settings) if f"\n| `{field.name}` |" not in page] == []


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_link_has_a_target(page: Path):
    broken = []
    for link in _LINK.findall(without_fences(page)):
        path, _, anchor = link.partition("#")
        if re.match(r"[a-z]+:", link):
            continue
        there = (page.parent / path).resolve() if path else page
        if not there.exists() or (anchor and anchor not in anchors(there)):
            broken.append(link)
    assert broken == []


@pytest.mark.parametrize(
    "words", [pytest.param(words, id=f"{page}: {shlex.join(words)}") for page, words in command_lines()]
)
def test_every_command_in_a_shell_fence_parses(words: list[str]):
    parse(words, complete=True)


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_command_within_a_sentence_exists(page: Path):
    for line in _INLINE.findall(without_fences(page)):
        parse(shlex.split(line)[1:], complete=False)


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_python_fence_compiles_and_imports_what_exists(page: Path):
    for text in fences(page, "python"):
        tree = ast.parse(text, filename=str(page))
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "headrace":
                module = importlib.import_module(str(node.module))
                assert [alias.name for alias in node.names if not hasattr(module, alias.name)] == []


@pytest.mark.parametrize("line", ["jars burn", "ps --colour", "init --jsn", "wash"])
def test_an_unknown_command_or_option_is_detected(line: str):
    with pytest.raises(LookupError):
        parse(line.split(), complete=False)


@pytest.mark.parametrize("line", ["init", "topics create x --partitions none"])
def test_a_missing_or_wrong_argument_is_detected(line: str):
    with pytest.raises(TyperException):
        parse(line.split(), complete=True)
