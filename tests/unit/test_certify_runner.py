"""The runner of `make certify`, with real pytest processes on tests that take no time."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

CERTIFY = Path(__file__).parents[1] / "certify"
sys.path.insert(0, str(CERTIFY))

from proofs import CASES, Case, select_cases  # noqa: E402
from report import BEGIN, END, duration, markdown_table, replace_block, table_rows  # noqa: E402
from results import Report, Result, code_digest, load_results, needs_run, outcome_of, save_results, wall_seconds  # noqa: E402
from runner import main  # noqa: E402

PATIENCE = 60

# Each run of a test adds a line to the file `runs` at the top.
COUNTED = """
from pathlib import Path

def count(name):
    with Path("runs").open("a") as runs:
        runs.write(name + "\\n")
"""
PASSING = COUNTED + "def test_it(): count('passing')\n"
FAILING = COUNTED + "def test_it():\n    count('failing')\n    assert False, 'on purpose'\n"
SKIPPING = "import pytest\ndef test_it(): pass\ndef test_other(): pytest.skip('no broker here')\n"
CHANGING = "from pathlib import Path\ndef test_it(): Path('src/code.py').write_text('changed while it ran')\n"

# Connects to the test, and so does a process in a session of its own, as a broker has. Both then wait for a byte that
# never comes. A connection ends only when its process does.
WAITING = """
import signal, socket, subprocess, sys
from pathlib import Path
import pytest

CHILD = "import socket, sys; s = socket.create_connection(('127.0.0.1', int(sys.argv[1]))); s.sendall(b'x'); s.recv(1)"

@pytest.fixture
def torn_down():
    yield
    Path("torn-down").touch()

def test_it(torn_down):
    {first}
    subprocess.Popen([sys.executable, "-c", CHILD, "{port}"], start_new_session=True)
    with socket.create_connection(("127.0.0.1", {port})) as connection:
        connection.sendall(b"x")
        while True:
            connection.recv(1)
"""


def case(name: str, part: str = "some") -> Case:
    return Case(name, part, (f"tests/test_{name}.py",), f"That {name} | works.")


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a repository with a package, a page with markers, and no proofs yet."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # faster
    for folder in ("src", "tests", "docs"):
        (tmp_path / folder).mkdir()
    (tmp_path / "src" / "code.py").write_text("first")
    (tmp_path / "docs" / "proof.md").write_text(f"# The proof\n\n{BEGIN}\nNot run yet.\n{END}\n\nThe end.\n")
    (tmp_path / ".gitignore").write_text("__pycache__/\n.certify/\nruns\n")
    for command in (["init"], ["add", "."], ["commit", "-m", "Start"]):
        identity = ["-c", "user.name=test", "-c", "user.email=test@localhost", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", *identity, *command], cwd=tmp_path, check=True, capture_output=True)
    return tmp_path


def write_test(root: Path, name: str, text: str) -> None:
    (root / "tests" / f"test_{name}.py").write_text(text)


def runs(root: Path) -> list[str]:
    return (root / "runs").read_text().split() if (root / "runs").exists() else []


def saved(root: Path) -> dict[str, Result]:
    return load_results(root / ".certify" / "results.json")


def result(case_name: str, **changes: object) -> Result:
    result_of_case = Result(case_name, "digest", "passed", 3, (), "2026-03-02T12:00:00+00:00", 10.0)
    return replace(result_of_case, **changes)  # type: ignore[arg-type]


# ---- which cases run ----


def test_only_selects_by_part_by_name_and_by_letters_of_a_name():
    cases = [case("kills-delta", "delta"), case("kills-kafka", "kafka"), case("slots", "kafka")]

    def selected(*words: str) -> list[str]:
        return [case.name for case in select_cases(cases, words)]

    assert selected() == ["kills-delta", "kills-kafka", "slots"]
    assert selected("kafka") == ["kills-kafka", "slots"]
    assert selected("slots") == ["slots"]
    assert selected("kills") == ["kills-delta", "kills-kafka"]
    assert selected("slots", "delta") == ["kills-delta", "slots"]


def test_an_unknown_word_is_an_error_that_lists_the_parts_and_the_names(root: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["--only", "kafak"], root=root, cases=[case("slots", "kafka"), case("zombie", "drivers")]) == 2

    message = capsys.readouterr().err
    assert "'kafak'" in message
    assert "kafka, drivers" in message
    assert "slots, zombie" in message


def test_every_case_has_a_unique_name_that_is_a_valid_file_name():
    names = [row.name for row in CASES]

    assert len(set(names)) == len(names)
    assert [name for name in names if not name.replace("-", "").isalnum()] == []


def test_a_case_needs_a_run_unless_it_passed_for_the_same_code():
    assert needs_run(None, "digest")
    assert needs_run(result("it", outcome="failed (exit code 1)"), "digest")
    assert needs_run(result("it"), "another digest")
    assert not needs_run(result("it"), "digest")


def test_the_digest_covers_code_and_no_docs(root: Path):
    digests = [code_digest(root)]
    for path in ("src/new.py", "tests/new.py", "requirements-dev.lock"):
        (root / path).write_text("text")
        digests.append(code_digest(root))
    (root / "src/new.py").rename(root / "src/renamed.py")
    digests.append(code_digest(root))
    (root / "src/code.py").unlink()
    digests.append(code_digest(root))
    assert len(set(digests)) == len(digests)

    (root / "docs" / "proof.md").write_text("text")
    (root / "README.md").write_text("text")
    (root / "src" / "__pycache__").mkdir()
    (root / "src" / "__pycache__" / "ignored.pyc").write_text("text")
    assert code_digest(root) == digests[-1]


# ---- what counts as passed ----


def test_a_case_passes_only_if_a_test_passed_and_none_was_skipped():
    assert outcome_of(0, Report(2, 2, ())) == "passed"
    assert outcome_of(1, Report(2, 1, ())) == "failed (exit code 1)"
    assert outcome_of(0, Report(2, 1, ("test_it: no broker here",))) == "1 skipped"
    assert outcome_of(0, Report(0, 0, ())) == "no test ran"


def test_a_skipped_test_does_not_count_as_passed(root: Path, capsys: pytest.CaptureFixture[str]):
    write_test(root, "skipping", SKIPPING)

    assert main([], root=root, cases=[case("skipping")]) == 1

    assert saved(root)["skipping"].outcome == "1 skipped"
    assert saved(root)["skipping"].tests == 2
    assert "test_other: no broker here" in capsys.readouterr().out


def test_a_result_for_code_that_changed_during_the_case_does_not_count(root: Path, capsys: pytest.CaptureFixture[str]):
    write_test(root, "changing", CHANGING)
    before = code_digest(root)

    assert main([], root=root, cases=[case("changing")]) == 1

    assert saved(root)["changing"].digest == before
    assert needs_run(saved(root)["changing"], before)
    assert "Warning: the code changed while changing ran." in capsys.readouterr().out


# ---- resuming ----


def test_only_new_code_repeats_a_passed_case_and_a_failed_case_is_always_repeated(
    root: Path, capsys: pytest.CaptureFixture[str]
):
    cases = [case("failing"), case("passing")]
    write_test(root, "passing", PASSING)
    write_test(root, "failing", FAILING)

    assert main(["--workers", "1"], root=root, cases=cases) == 1
    printed = capsys.readouterr().out
    assert runs(root) == ["failing", "passing"]
    assert "failing: failed (exit code 1), 1 test" in printed
    assert "AssertionError: on purpose" in printed

    assert main([], root=root, cases=cases) == 1
    assert runs(root) == ["failing", "passing", "failing"]

    assert main(["--only", "passing"], root=root, cases=cases) == 0
    assert runs(root) == ["failing", "passing", "failing"]

    (root / "src" / "code.py").write_text("second")
    assert main(["--only", "passing"], root=root, cases=cases) == 0
    assert runs(root) == ["failing", "passing", "failing", "passing"]

    assert main(["--only", "passing", "--again"], root=root, cases=cases) == 0
    assert runs(root) == ["failing", "passing", "failing", "passing", "passing"]


def test_results_of_another_version_of_the_file_are_ignored(tmp_path: Path):
    path = tmp_path / "results.json"
    save_results(path, {"it": result("it")})
    assert load_results(path) == {"it": result("it")}

    path.write_text('{"results": [{"case": "it", "colour": "green"}]}')
    assert load_results(path) == {}


# ---- interruptions ----


@pytest.fixture
def server() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(PATIENCE)
        yield listening


@pytest.mark.parametrize(
    ("stop", "first", "tears_down"),
    [(signal.SIGINT, "pass", True), (signal.SIGTERM, "signal.signal(signal.SIGINT, signal.SIG_IGN)", False)],
    ids=["ctrl-c", "sigterm-and-a-test-that-ignores-signals"],
)
def test_an_interrupted_run_retains_finished_results_and_leaves_no_process(
    root: Path, server: socket.socket, stop: signal.Signals, first: str, tears_down: bool
):
    write_test(root, "passing", PASSING)
    write_test(root, "waiting", WAITING.format(port=server.getsockname()[1], first=first))
    grace = PATIENCE if tears_down else 0.2
    script = (
        f"import sys; sys.path.insert(0, {str(CERTIFY)!r})\n"
        "from pathlib import Path; from proofs import Case; from runner import main\n"
        "cases = [Case(name, 'some', (f'tests/test_{name}.py',), 'It.') for name in ('passing', 'waiting')]\n"
        f"sys.exit(main(['--workers', '1'], root=Path({str(root)!r}), cases=cases, grace={grace}))"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as runner:
        connections = [server.accept()[0] for _ in range(2)]
        for connection in connections:
            connection.settimeout(PATIENCE)
            assert connection.recv(1) == b"x"
        os.kill(runner.pid, stop)
        printed, _ = runner.communicate(timeout=PATIENCE)

    assert runner.returncode == 130
    assert "Interrupted: 1 of 2 cases have passed. The same command runs only the others." in printed
    for connection in connections:
        assert connection_ended(connection)
    assert (root / "torn-down").exists() is tears_down
    assert saved(root).keys() == {"passing"}

    assert main([], root=root, cases=[case("passing")]) == 0
    assert runs(root) == ["passing"]


def connection_ended(connection: socket.socket) -> bool:
    """Whether the process at the other end has ended: without it, reading waits and fails by its timeout."""
    with connection:
        try:
            return connection.recv(1) == b""
        except ConnectionResetError:
            return True


def test_a_second_runner_does_not_start(root: Path, capsys: pytest.CaptureFixture[str]):
    (root / ".certify").mkdir()
    with (root / ".certify" / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert main([], root=root, cases=[case("passing")]) == 2

    assert "Another `make certify` runs" in capsys.readouterr().err


# ---- what is written ----


def test_docs_are_written_only_when_every_case_has_passed_for_this_code(root: Path, capsys: pytest.CaptureFixture[str]):
    page, data = root / "docs" / "proof.md", root / "docs" / "proof.json"
    before = page.read_text()
    cases = [case("one"), case("two")]
    write_test(root, "one", PASSING)
    write_test(root, "two", PASSING)

    assert main(["--only", "one"], root=root, cases=cases) == 0
    assert "unchanged (no passed result for this code: two)" in capsys.readouterr().out
    assert main(["--keep-docs"], root=root, cases=cases) == 0
    assert "unchanged (--keep-docs)" in capsys.readouterr().out
    assert page.read_text() == before
    assert not data.exists()

    assert main([], root=root, cases=cases) == 0
    assert runs(root) == ["passing", "passing"]
    text, proof = page.read_text(), json.loads(data.read_text())
    assert text.startswith(f"# The proof\n\n{BEGIN}\n")
    assert text.endswith(f"{END}\n\nThe end.\n")
    assert "| one | That one \\| works. | passed | 1 |" in text
    assert f"commit `{proof['commit'][:12]}` with uncommitted changes, {os.cpu_count()} cores." in text
    assert proof["digest"] == code_digest(root)
    assert proof["dirty"] is True
    assert "version" in proof["machine"]["java"]
    assert [row["name"] for row in proof["cases"]] == ["one", "two"]
    assert proof["case_seconds"] == pytest.approx(sum(row["seconds"] for row in proof["cases"]), abs=0.2)
    assert proof["wall_seconds"] <= proof["case_seconds"] + 0.1


def test_list_runs_nothing(root: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["--list"], root=root, cases=[case("slots", "kafka")]) == 0

    assert "kafka       slots             not run" in capsys.readouterr().out


def test_the_table_shows_a_result_for_other_code_as_not_run():
    cases = [case("one"), case("two"), case("three")]
    rows = table_rows(cases, {"one": result("one"), "two": result("two", digest="old")}, "digest")

    assert [row[2] for row in rows] == ["passed", "not run for this code", "not run"]
    assert markdown_table(rows).splitlines()[2] == "| one | That one \\| works. | passed | 3 | 10 s |"


@pytest.mark.parametrize("page", ["no marker", f"{END} {BEGIN}", f"{BEGIN} {END} {BEGIN} {END}", BEGIN])
def test_a_page_without_both_markers_is_not_changed(page: str):
    with pytest.raises(ValueError, match=r"docs/proof\.md must contain"):
        replace_block(page, "table")


def test_wall_time_counts_an_overlap_once_and_a_pause_never():
    results = [
        result("one"),
        result("within it", started="2026-03-02T12:00:02+00:00", seconds=3.0),
        result("overlapping", started="2026-03-02T12:00:05+00:00"),
        result("after a pause", started="2026-03-02T13:00:00+00:00"),
    ]

    assert wall_seconds(results) == 25.0


@pytest.mark.parametrize(("seconds", "text"), [(47.6, "48 s"), (182, "3 min 02 s"), (3900, "1 h 05 min")])
def test_a_duration_reads_well(seconds: float, text: str):
    assert duration(seconds) == text
