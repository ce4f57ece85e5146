"""Rules for the code base: imports, sizes, names, public API. A failure here says what is still to do."""

from __future__ import annotations

import ast
import inspect
import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import pytest

import headrace
from headrace import errors
from headrace.demos.runner import find_demos
from headrace.flow.checks import check, compatibility, matrix, state
from headrace.flow.levers import OutputMode
from headrace.operate.preflight import state_findings

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src" / "headrace"
MODULES = sorted(SRC.rglob("*.py"))
PATTERNS = sorted(path.name for path in (SRC / "patterns").iterdir() if path.is_dir() and path.name[0] not in "_.")
FORBIDDEN_NAMES = {"utils", "util", "helpers", "helper", "common", "misc", "manager"}
LONGEST_MODULE = 400
MOST_MODULES = 15
# The query ties everything together, so it grows unless something holds it.
LONGEST_QUERY, MOST_IMPORTS_OF_THE_QUERY = 200, 15


def module_path(path: Path) -> str:
    return path.relative_to(SRC).as_posix()


def trees() -> Iterator[tuple[str, ast.Module]]:
    for path in MODULES:
        yield module_path(path), ast.parse(path.read_text(), str(path))


def mentions(tree: ast.Module, name: str) -> bool:
    """Whether code, not a comment or a docstring, uses an attribute, a name or an import of this name."""
    return any(
        (isinstance(node, ast.Attribute) and node.attr == name)
        or (isinstance(node, ast.Name) and node.id == name)
        or (isinstance(node, ast.alias) and node.name.split(".")[-1] == name)
        for node in ast.walk(tree)
    )


def places_that_mention(name: str) -> list[str]:
    return [where for where, tree in trees() if mentions(tree, name)]


def quotes_with_backticks(tree: ast.Module) -> bool:
    """Whether code puts a value between backticks, or doubles the backticks of one."""
    return any(
        (isinstance(node, ast.JoinedStr) and re.search(r"`\{[^`]*\}`", ast.unparse(node)) is not None)
        or (isinstance(node, ast.Constant) and node.value == "``")
        for node in ast.walk(tree)
    )


def quotes_values(tree: ast.Module) -> bool:
    """Whether code that uses Spark writes a value between the quotes of an SQL literal."""
    uses_spark = any(str(node.module).startswith("pyspark") for node in tree.body if isinstance(node, ast.ImportFrom))
    return uses_spark and any(
        isinstance(before, ast.Constant)
        and isinstance(value, ast.FormattedValue)
        and re.search(r"(<>| [<>=]|[<>]=|\bIN \(|\bDATE|\bTIMESTAMP(_NTZ)?) ?'$", str(before.value)) is not None
        for node in ast.walk(tree)
        if isinstance(node, ast.JoinedStr)
        for before, value in pairwise(node.values)
    )


def texts(tree: ast.Module) -> Iterator[str]:
    """Yield the texts in code, without docstrings."""
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.value


def places_with_text(text: str) -> list[str]:
    return [where for where, tree in trees() if any(text in constant for constant in texts(tree))]


def builds_a_session(tree: ast.Module) -> bool:
    """Whether code uses `SparkSession.builder`, or makes a context by hand."""
    return any(
        (
            isinstance(node, ast.Attribute)
            and node.attr in ("builder", "getOrCreate")
            and "Spark" in ast.unparse(node.value)
        )
        or (isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] == "SparkContext")
        for node in ast.walk(tree)
    )


# ---- who may do what ----


def test_every_test_module_has_a_unique_name():
    names = [path.name for path in (ROOT / "tests").rglob("*.py")]
    # pytest imports test modules by their bare names, and collects nothing at all when two are the same.
    assert sorted({name for name in names if names.count(name) > 1}) == []


def test_imports_follow_the_contracts_of_the_packages() -> None:
    run = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert re.search(r"Contracts: [1-9]\d* kept, 0 broken", run.stdout), run.stdout


def test_no_class_is_recognized_by_the_names_of_its_methods() -> None:
    # A capability is inherited. A runtime-checkable protocol also matches a class that has such a name by chance.
    assert places_that_mention("runtime_checkable") == []


def test_streams_are_read_in_sources_only() -> None:
    modules = places_that_mention("readStream")
    assert modules
    # The script of a rehearsal replaces a source.
    assert [where for where in modules if not where.startswith("sources/")] == ["testing/source.py"]


def test_streams_are_written_in_one_module_only() -> None:
    assert places_that_mention("writeStream") == ["runtime/query.py"]


def test_sessions_are_built_in_one_module_only() -> None:
    assert [where for where, tree in trees() if builds_a_session(tree)] == ["runtime/session.py"]


def test_files_are_locked_in_one_module_only() -> None:
    assert places_that_mention("flock") == ["clients/file_lock.py"]


@pytest.mark.parametrize("attribute", ["_jvm", "_jdf", "_jsparkSession", "_jsc", "_jc"])
def test_the_private_attributes_by_which_pyspark_reaches_the_jvm_are_used_in_one_module_only(attribute: str) -> None:
    assert places_that_mention(attribute) == ["clients/spark/jvm.py"]


def mutable_memory(tree: ast.Module) -> Iterator[str]:
    """Yield what can remember something from batch to batch: caches of a module, mutable fields of a frozen class."""
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and ast.unparse(node).endswith(("= {}", "= []", "= set()")):
            yield ast.unparse(node)
        if isinstance(node, ast.FunctionDef):
            yield from (node.name for decorator in node.decorator_list if "cache" in ast.unparse(decorator))
        if isinstance(node, ast.ClassDef) and any("frozen=True" in ast.unparse(item) for item in node.decorator_list):
            for field in node.body:
                if isinstance(field, ast.AnnAssign) and re.match("(dict|list|set)\\b", ast.unparse(field.annotation)):
                    yield f"{node.name}.{ast.unparse(field.target)}"


def test_a_sink_remembers_nothing_but_in_the_cache_of_the_run() -> None:
    remembered = {
        f"{where}: {name}"
        for where, tree in trees()
        if where.startswith(("cdc/", "sinks/"))
        for name in mutable_memory(tree)
    }
    # The rows are what this sink is for.
    assert {item for item in remembered if not item.startswith("sinks/memory.py: Memory.")} == set()
    assert len(remembered) == 1
    # Columns belong to the JVM that they were created in. Whoever caches them knows it by its run, not by its gateway.
    assert places_that_mention("_gateway") == []


def test_delta_writes_are_made_idempotent_in_one_module_only() -> None:
    for name in ("txnAppId", "txnVersion", "spark.databricks.delta.write."):
        assert places_with_text(name) == ["sinks/delta/sql.py"]


def test_query_plans_are_walked_by_one_module_only() -> None:
    assert places_that_mention("nodeName") == ["spark_plan/tree.py"]
    assert places_that_mention("getSimpleName") == []
    for mark in ("spark.watermarkDelayMs", "spark.sessionWindow", "spark.timeWindow"):
        assert places_with_text(mark) == ["spark_plan/tree.py"]
    assert places_with_text("TransformWithState") == ["spark_plan/nodes.py"]
    users = {where for where in places_that_mention("analyzed_plan") if not where.startswith("spark_plan/")}
    # The sink hands a plan to another session, and looks at nothing in it.
    assert users == {"sinks/delta/sql.py"}


def test_the_log_of_a_table_is_read_in_one_module_only() -> None:
    assert places_that_mention("DeltaLog") == ["clients/spark/delta_log.py"]
    assert places_with_text("_delta_log") == ["clients/spark/delta_log.py"]
    assert places_that_mention("isDeltaTable") + places_with_text("DESCRIBE DETAIL") == []


def test_names_are_quoted_for_sql_in_one_module_only() -> None:
    modules = [where for where, tree in trees() if quotes_with_backticks(tree)]
    # The other two name a method and a program in an error.
    assert modules == ["clients/sql.py", "stack/mariadb.py", "transforms/keyed/keyed_state.py"]


def test_values_are_quoted_for_sql_in_one_module_only() -> None:
    assert [where for where, tree in trees() if quotes_values(tree)] == ["clients/sql.py"]


@pytest.mark.parametrize(
    ("code", "quotes"),
    [
        ("F.col(f'`{name}`')", True),
        ("f'old.`{name}`'", True),
        ("name.replace('`', '``')", True),
        ("f'{name} and `name`'", False),
    ],
)
def test_the_search_sees_how_a_name_is_quoted(code: str, quotes: bool) -> None:
    assert quotes_with_backticks(ast.parse(code)) is quotes


def test_tables_are_changed_by_sinks_and_operations_only() -> None:
    rooms = {where.split("/")[0] for where in places_that_mention("DeltaTable")}
    assert rooms <= {"sinks", "cdc", "operate"}


@pytest.mark.parametrize(
    ("code", "used"),
    [
        ("spark.readStream.format('kafka')", True),
        ("from pyspark.sql.streaming import readStream", True),
        ("'''Nothing of readStream'''  # readStream", False),
    ],
)
def test_the_search_sees_code_and_no_prose(code: str, used: bool) -> None:
    assert mentions(ast.parse(code), "readStream") is used


def test_the_search_for_texts_sees_no_docstring() -> None:
    code = '"""A docstring of _delta_log."""\nlog = f"{table}/_delta_log"'
    assert list(texts(ast.parse(code))) == ["/_delta_log"]


@pytest.mark.parametrize(
    ("code", "builds"),
    [
        ("SparkSession.builder.getOrCreate()", True),
        ("pyspark.SparkContext('local')", True),
        ("rows.sparkSession.newSession()", False),
    ],
)
def test_the_search_sees_how_a_session_is_built(code: str, builds: bool) -> None:
    assert builds_a_session(ast.parse(code)) is builds


# ---- names and sizes ----


def test_nothing_is_named_utils_or_the_like() -> None:
    named = [module_path(path) for path in SRC.rglob("*") if FORBIDDEN_NAMES & set(path.stem.lower().split("_"))]
    assert named == []


def test_no_module_is_longer_than_400_lines() -> None:
    lengths = {module_path(path): len(path.read_text().splitlines()) for path in MODULES}
    assert {where: lines for where, lines in lengths.items() if lines > LONGEST_MODULE} == {}


def test_the_query_stays_small_and_knows_few_modules() -> None:
    text = (SRC / "runtime" / "query.py").read_text()
    imports = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Import | ast.ImportFrom)]
    assert [ast.unparse(node) for node in imports if any(alias.name == "*" for alias in node.names)] == []
    assert len(imports) <= MOST_IMPORTS_OF_THE_QUERY
    assert len(text.splitlines()) < LONGEST_QUERY


def test_no_folder_has_more_than_15_modules() -> None:
    folders = Counter(module_path(path.parent) for path in MODULES if path.name != "__init__.py")
    assert {folder: modules for folder, modules in folders.items() if modules > MOST_MODULES} == {}


def test_every_module_has_a_docstring() -> None:
    assert [where for where, tree in trees() if not ast.get_docstring(tree)] == []


def test_an_init_only_exports() -> None:
    def exports(node: ast.stmt) -> bool:
        is_all = isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == ["__all__"]
        is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        return is_all or is_text or isinstance(node, ast.Import | ast.ImportFrom)

    statements = {
        where: [ast.unparse(node) for node in tree.body if not exports(node)]
        for where, tree in trees()
        if where.endswith("__init__.py")
    }
    assert {where: rest for where, rest in statements.items() if rest} == {}


# ---- the language ----

# Words of a private dialect: they say nothing to a reader who knows Spark, Kafka and Delta. No identifier may be one of
# these or, split at underscores, contain one.
DIALECT_PARTS = ("told", "given", "kept", "gone", "held", "whole", "anew", "meanwhile", "at_once", "hear")
# Names that say nothing about their value. They are allowed as a part of a name, such as `find_or_create`.
DIALECT_NAMES = (
    *("each", "found", "known", "wanted", "chosen", "said", "one", "things", "made", "seen", "heard"),
    *("beats", "heart", "pulse", "house", "keep"),
)


def identifiers(tree: ast.Module) -> Iterator[str]:
    """Yield every identifier that code defines or uses: names, attributes, parameters, functions, classes, imports."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name):
                yield name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.keyword(arg=str(name)) | ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)):
                yield name
            case ast.alias(name=path, asname=alias):
                yield from [*path.split("."), *([alias] if alias else [])]


def imports_from(tree: ast.Module, package: str) -> set[str]:
    """Return the names that a module imports from a package."""
    return {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == package
        for alias in node.names
    }


def is_dialect(identifier: str) -> bool:
    snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", identifier).lower().strip("_")
    return snake in DIALECT_NAMES or any(f"_{word}_" in f"_{snake}_" for word in DIALECT_PARTS)


@pytest.mark.parametrize(
    ("identifier", "dialect"),
    [
        ("told", True),
        ("_told", True),
        ("rows_kept", True),
        ("run_at_once", True),
        ("KeptRows", True),
        ("each", True),
        ("for_each_row", False),
        ("household", False),
        ("heartbeat", False),
    ],
)
def test_a_word_of_the_dialect_is_recognized_as_a_part_of_a_name(identifier: str, dialect: bool) -> None:
    assert is_dialect(identifier) is dialect


@pytest.mark.parametrize("folder", ["src/headrace", "tests"])
def test_identifiers_are_plain_technical_english(folder: str) -> None:
    remaining = set[str]()
    for path in (ROOT / folder).rglob("*.py"):
        where = path.relative_to(ROOT / folder)
        tree = ast.parse(path.read_text(), str(path))
        # The decorator of hypothesis has a name of the dialect.
        names = {name for name in identifiers(tree) if is_dialect(name)} - imports_from(tree, "hypothesis")
        remaining |= {f"{where}: {name}" for name in names}
        remaining |= {f"{where}: (module)" for part in where.with_suffix("").parts if is_dialect(part)}
    assert sorted(remaining) == []


def test_no_two_public_classes_share_a_name() -> None:
    classes = Counter(
        node.name
        for _, tree in trees()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert sorted(name for name, count in classes.items() if count > 1) == []


# ---- the public surface ----


def test_the_public_names_are_these() -> None:
    assert headrace.__all__ == [
        "AsFastAsPossible",
        "AutoBatchSize",
        "AvailableNow",
        "CaptureGap",
        "ConfigError",
        "Console",
        "Continuous",
        "CustomExactlyOnceSink",
        "CustomSink",
        "DataError",
        "Database",
        "DeltaAppend",
        "DeltaChangesSource",
        "DeltaOverwrite",
        "DeltaSource",
        "DeltaUpsert",
        "EventTime",
        "Every",
        "FanOut",
        "FileSink",
        "FileSource",
        "Filtered",
        "Finding",
        "Flow",
        "FlowError",
        "Guarantee",
        "HeadraceError",
        "HttpEndpoint",
        "InMemory",
        "Input",
        "JdbcUpsert",
        "KafkaConnect",
        "KafkaDataLoss",
        "KafkaExactlyOnceSink",
        "KafkaSink",
        "KafkaSource",
        "KeyedState",
        "Lease",
        "ListOf",
        "MapOf",
        "Memory",
        "Noop",
        "Once",
        "OutputMode",
        "Precision",
        "ProcessingTime",
        "ProducerFenced",
        "RateSource",
        "RealTime",
        "RecoveryError",
        "Rest",
        "RocksDB",
        "ServiceUnavailable",
        "Severity",
        "SocketSource",
        "SourceNotReplayable",
        "StackError",
        "StartOffsets",
        "StartTime",
        "StateBudget",
        "TableNotCreated",
        "Target",
        "Terminal",
        "Timers",
        "TopicNotFound",
        "TopicPartitions",
        "TopicPattern",
        "Transaction",
        "Transient",
        "UnreadableChange",
        "ValueState",
        "Watermark",
        "check",
        "committed_files",
        "deduplicate",
        "exact_distinct",
        "per_key",
        "sessions",
        "sliding",
        "tumbling",
        "window_bounds",
    ]


def test_every_public_name_is_there_and_documented() -> None:
    bare = [name for name in headrace.__all__ if not inspect.getdoc(getattr(headrace, name))]
    assert bare == []


def test_importing_headrace_starts_no_jvm_and_brings_neither_the_server_nor_the_command_line() -> None:
    probe = """
import json, sys
import headrace
from pyspark import SparkContext
heavy = ["fastapi", "uvicorn", "typer", "rich"]
print(json.dumps({"loaded": [name for name in heavy if name in sys.modules],
                  "jvm": SparkContext._gateway is not None or SparkContext._active_spark_context is not None}))
"""
    run = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert json.loads(run.stdout) == {"loaded": [], "jvm": False}


# ---- errors and findings ----


def drawn_tree() -> dict[str, str]:
    """Read the drawing in the docstring of errors.py: each name and the one that it hangs under."""
    parents: dict[str, str] = {}
    path: list[tuple[int, str]] = []
    for line in (errors.__doc__ or "").splitlines():
        drawn = re.match(r"^ {4}([│├└─ ]*)([A-Z]\w+) {2,}\S", line)
        if drawn:
            depth, name = len(drawn[1]), drawn[2]
            path = [ancestor for ancestor in path if ancestor[0] < depth]
            parents[name] = path[-1][1] if path else "Exception"
            path.append((depth, name))
    return parents


def test_the_drawn_tree_of_errors_matches_the_classes() -> None:
    declared = {
        name: kind.__bases__[0].__name__
        for name, kind in vars(errors).items()
        if inspect.isclass(kind) and issubclass(kind, Exception)
    }
    assert len(declared) > 3
    assert drawn_tree() == declared


def test_every_error_of_the_tree_is_public() -> None:
    assert set(drawn_tree()) <= set(headrace.__all__)


def test_the_tree_of_errors_grows_in_one_module_only() -> None:
    kinds = set(drawn_tree())
    parents = {
        where
        for where, tree in trees()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and kinds & {ast.unparse(base).split(".")[-1] for base in node.bases}
    }
    assert parents == {"errors.py"}


def compared_codes(tree: ast.Module) -> Iterator[str]:
    """Yield the comparisons of an error's `code` with a literal, also through a constant."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            sides = [ast.unparse(side) for side in (node.left, *node.comparators)]
            literal = any(re.fullmatch(r"_?[A-Z][A-Z_]+|.*['\"]HRC?-\d+.*", side) for side in sides)
            if literal and any(side.endswith(".code") for side in sides):
                yield ast.unparse(node)


@pytest.mark.parametrize(
    ("text", "compares"),
    [
        ("error.code == 'HR-309'", True),
        ("error.code in ('HR-501', 'HR-502')", True),
        ("error.code not in _LOSS_CODES", True),
        ("isinstance(error, KafkaDataLoss)", False),
        ("self._unhealthy.get(capture) != error.code", False),
    ],
)
def test_a_comparison_with_the_code_of_an_error_is_recognized(text: str, compares: bool) -> None:
    assert bool([*compared_codes(ast.parse(text))]) is compares


def test_errors_are_distinguished_by_class_and_not_by_code() -> None:
    compared = {f"{where}: {text}" for where, tree in trees() for text in compared_codes(tree)}
    assert compared == set()


def test_the_table_of_findings_contains_exactly_the_codes_of_findings() -> None:
    in_matrix = {cell.code for row in [*matrix.MODES.values(), *matrix.TRIGGERS.values()] for cell in row if cell.code}
    of_sinks = matrix.sink_cell("Sink", OutputMode.COMPLETE, frozenset({OutputMode.APPEND})).code
    assert found_in(check, compatibility) | in_matrix | {of_sinks} == documented_in(check)


@pytest.mark.parametrize("module", [state, state_findings])
def test_the_tables_of_findings_on_state_contain_exactly_the_codes_of_findings(module: ModuleType) -> None:
    assert found_in(module)
    assert found_in(module) == documented_in(module)


def documented_in(module: ModuleType) -> set[str]:
    return set(re.findall(r"^\| (HRC-\d{3}) \|", module.__doc__ or "", re.MULTILINE))


def found_in(*modules: ModuleType) -> set[str]:
    """Return the codes of the findings that modules make."""
    return {
        node.value
        for module in modules
        for call in ast.walk(ast.parse(inspect.getsource(module)))
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "Finding"
        for node in ast.walk(call)
        if isinstance(node, ast.Constant) and re.fullmatch(r"HRC-\d{3}", str(node.value))
    }


# ---- a pattern is complete ----


def test_there_are_patterns() -> None:
    assert "rides" in PATTERNS


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("part", ["flows.py", "generator.py", "model.py"])
def test_a_pattern_has_flows_a_generator_and_a_model(pattern: str, part: str) -> None:
    # The flows of a captured database are public: everybody's tables are mirrored by the same declaration.
    folder = SRC if (pattern, part) == ("cdc", "flows.py") else SRC / "patterns"
    assert (folder / pattern / part).is_file()


@pytest.mark.parametrize("pattern", PATTERNS)
def test_only_demos_use_a_pattern(pattern: str) -> None:
    users = [
        path.relative_to(SRC)
        for path in SRC.rglob("*.py")
        if re.search(rf"\bheadrace\.patterns(\.| import .*\b){pattern}\b", path.read_text())
    ]

    assert users
    assert [path for path in users if path.parts[0] != "demos" and path.parts[:2] != ("patterns", pattern)] == []


# Words of one pattern. A generic room finds patterns by name; none of its own names may be about one of them.
PATTERN_WORDS = {"ride", "rides", "city", "cities", "surge", "orders", "payment", "payments"}


@pytest.mark.parametrize("room", ["serve", "operate", "cli"])
def test_no_name_of_a_generic_room_is_about_a_pattern(room: str) -> None:
    remaining = set[str]()
    for where, tree in trees():
        if where.startswith(f"{room}/"):
            names = {*identifiers(tree), *Path(where).with_suffix("").parts}
            remaining |= {f"{where}: {name}" for name in names if PATTERN_WORDS & words_of(name)}
    assert sorted(remaining) == []


def words_of(identifier: str) -> set[str]:
    return set(re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", identifier).lower().split("_"))


@pytest.mark.parametrize("pattern", PATTERNS)
def test_the_model_of_a_pattern_knows_nothing_of_spark(pattern: str) -> None:
    tree = ast.parse((SRC / "patterns" / pattern / "model.py").read_text())
    imported = {
        name.split(".")[0]
        for node in ast.walk(tree)
        for name in (
            [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else []
        )
    }
    assert imported & {"pyspark", "delta"} == set()


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_pattern_has_a_demo(pattern: str) -> None:
    assert find_demos()[pattern].title


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_pattern_has_an_example(pattern: str) -> None:
    folder, file = ROOT / "examples" / pattern, ROOT / "examples" / f"{pattern}.py"
    assert file.is_file() or (folder.is_dir() and any(folder.iterdir()))


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_pattern_has_a_page(pattern: str) -> None:
    page = ROOT / "docs" / "patterns" / f"{pattern}.md"
    assert page.is_file()
    assert page.read_text().startswith("# ")
