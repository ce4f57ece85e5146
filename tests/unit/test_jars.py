"""The lock, the cache, and jars that are not what they should be. Nothing here reaches a network."""

from __future__ import annotations

import hashlib
import multiprocessing
import re
from importlib import resources
from pathlib import Path
from xml.etree import ElementTree

import pytest

from headrace.errors import StackError
from headrace.stack.jars import JarCache, LockedJar, cache_root, read_lock

BODIES = {"alpha": b"the first jar" * 1000, "beta": b"the second jar" * 1000}


def locked(name: str) -> LockedJar:
    body = BODIES[name]
    digest = hashlib.sha256(body).hexdigest()
    return LockedJar("spark", f"org.example:{name}:1.0", f"{name}-1.0.jar", len(body), digest)


def write_jars(cache: JarCache) -> None:
    for jar in cache.lock:
        path = cache.path(jar)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(BODIES[jar.file.removesuffix("-1.0.jar")])


def own_repository(folder: Path, serves: dict[str, bytes]) -> Path:
    """A repository of files and the Ivy settings that name it: a real Ivy, and no network."""
    for name, body in serves.items():
        target = folder / "repository" / "org.example" / name / "1.0"
        target.mkdir(parents=True, exist_ok=True)
        (target / f"{name}-1.0.jar").write_bytes(body)
        (target / "ivy.xml").write_text(
            f'<ivy-module version="2.0"><info organisation="org.example" module="{name}" revision="1.0"/>'
            f'<publications><artifact name="{name}"/></publications></ivy-module>'
        )
    settings = folder / "ivysettings.xml"
    pattern = f"{folder}/repository/[organisation]/[module]/[revision]"
    settings.write_text(
        '<ivysettings><settings defaultResolver="own"/><resolvers><filesystem name="own">'
        f'<ivy pattern="{pattern}/ivy.xml"/><artifact pattern="{pattern}/[artifact]-[revision].[ext]"/>'
        "</filesystem></resolvers></ivysettings>"
    )
    return settings


@pytest.fixture
def cache(tmp_path: Path) -> JarCache:
    return JarCache(tmp_path / "cache", [locked("alpha"), locked("beta")])


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HEADRACE_IVY_SETTINGS", str(own_repository(tmp_path, BODIES)))
    return tmp_path / "repository"


def test_valid_jars_are_returned_in_the_order_of_the_lock(cache: JarCache) -> None:
    write_jars(cache)
    assert [path.name for path in cache.verify("spark")] == ["alpha-1.0.jar", "beta-1.0.jar"]
    assert cache.jars_argument() == ",".join(str(cache.path(jar)) for jar in cache.lock)


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:-1]), "has 12999 bytes instead of 13000"),
        (lambda path: path.write_bytes(b"X" + path.read_bytes()[1:]), "was changed"),
        (lambda path: path.unlink(), "is missing"),
        (lambda path: path.write_bytes(b""), "has 0 bytes instead of 13000"),
    ],
    ids=["truncated", "tampered", "missing", "empty"],
)
def test_an_invalid_jar_is_reported_with_its_fault_and_the_fix(cache: JarCache, damage, says: str) -> None:  # type: ignore[no-untyped-def]
    write_jars(cache)
    damage(cache.path(cache.lock[0]))
    with pytest.raises(StackError, match=says) as caught:
        cache.verify("spark")
    assert caught.value.code == "HR-402"
    assert "alpha-1.0.jar" in caught.value.what
    assert "beta-1.0.jar" not in caught.value.what
    assert "headrace jars sync" in caught.value.remedy
    assert cache.missing("spark") == (cache.lock[0],)


def test_an_unknown_configuration_is_rejected_with_the_nearest_name(cache: JarCache) -> None:
    with pytest.raises(StackError, match="Did you mean 'spark'") as caught:
        cache.verify("sparc")
    assert caught.value.code == "HR-404"


def test_a_sync_of_valid_jars_starts_nothing(cache: JarCache, monkeypatch: pytest.MonkeyPatch) -> None:
    write_jars(cache)
    monkeypatch.setenv("HEADRACE_JAVA", "/nowhere")
    assert cache.sync(["spark"]) == 0


def test_a_sync_into_an_empty_cache_downloads_all_and_reports_progress(cache: JarCache, repository: Path) -> None:
    steps: list[tuple[str, int, int]] = []
    assert cache.sync(["spark"], lambda *step: steps.append(step)) == 2
    cache.verify("spark")
    assert steps[0][1:] == (0, 4)
    assert steps[-1][1:] == (4, 4)
    assert [done for _, done, _ in steps] == sorted(done for _, done, _ in steps)
    assert not list(cache.root.glob("staging-*"))


def test_a_sync_fetches_only_the_damaged_jar(cache: JarCache, repository: Path) -> None:
    write_jars(cache)
    stat_before = cache.path(cache.lock[1]).stat()
    cache.path(cache.lock[0]).write_bytes(b"damaged")
    assert cache.sync(["spark"]) == 1
    cache.verify("spark")
    assert cache.path(cache.lock[1]).stat().st_ino == stat_before.st_ino


def test_a_jar_that_is_damaged_in_ivys_own_cache_too_is_fetched_again(cache: JarCache, repository: Path) -> None:
    cache.sync(["spark"])
    copies = list((cache.root / "ivy").rglob("alpha-1.0.jar"))
    assert copies
    for path in [cache.path(cache.lock[0]), *copies]:
        path.write_bytes(b"damaged")
    assert cache.sync(["spark"]) == 1
    cache.verify("spark")


def test_jars_with_another_checksum_are_rejected(cache: JarCache, repository: Path) -> None:
    (repository / "org.example" / "alpha" / "1.0" / "alpha-1.0.jar").write_bytes(b"evil" * 3250)
    with pytest.raises(StackError, match=r"alpha-1\.0\.jar") as caught:
        cache.sync(["spark"])
    assert caught.value.code == "HR-403"
    assert not cache.path(cache.lock[0]).exists()
    assert not list(cache.root.glob("staging-*"))


def test_a_jar_that_no_repository_has_is_hr_403(cache: JarCache, repository: Path) -> None:
    (repository / "org.example" / "beta" / "1.0" / "ivy.xml").unlink()
    (repository / "org.example" / "beta" / "1.0" / "beta-1.0.jar").unlink()
    with pytest.raises(StackError, match="beta") as caught:
        cache.sync(["spark"])
    assert caught.value.code == "HR-403"


def test_the_next_sync_cleans_up_after_a_killed_one(cache: JarCache, repository: Path) -> None:
    leftover = cache.root / "staging-killed" / "jars"
    leftover.mkdir(parents=True)
    cache.sync(["spark"])
    assert not leftover.exists()


def _sync(root: Path) -> None:
    JarCache(root, [locked("alpha"), locked("beta")]).sync(["spark"])


def test_two_concurrent_syncs_leave_a_valid_cache(cache: JarCache, repository: Path) -> None:
    spawn = multiprocessing.get_context("spawn")
    both = [spawn.Process(target=_sync, args=(cache.root,)) for _ in range(2)]
    for process in both:
        process.start()
    for process in both:
        process.join()
    assert [process.exitcode for process in both] == [0, 0]
    cache.verify("spark")


def test_a_cache_that_cannot_be_written_is_hr_405(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StackError) as caught:
        JarCache(tmp_path / "file" / "cache", [locked("alpha")]).sync(["spark"])
    assert caught.value.code == "HR-405"


def test_the_cache_follows_headrace_cache_then_xdg(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    monkeypatch.delenv("HEADRACE_CACHE", raising=False)
    assert cache_root() == Path("/xdg/headrace")
    monkeypatch.setenv("HEADRACE_CACHE", "/own")
    assert cache_root() == Path("/own")


def test_a_lock_line_reads_back_as_it_was_written() -> None:
    assert LockedJar.parse(str(locked("alpha"))) == locked("alpha")


def test_the_lock_is_sorted_and_contains_every_module_of_ivy_xml() -> None:
    lock = read_lock()
    assert list(lock) == sorted(lock)
    text = resources.files("headrace.stack").joinpath("ivy.xml").read_text()
    for dependency in ElementTree.fromstring(text).iter("dependency"):  # noqa: S314  our own file
        conf = dependency.attrib["conf"].partition("->")[0]
        coordinate = f"{dependency.attrib['org']}:{dependency.attrib['name']}:{dependency.attrib['rev']}"
        assert any(jar.conf == conf and jar.coordinate == coordinate for jar in lock), coordinate


def test_no_repository_is_configured() -> None:
    for file in ("ivy.xml", "jars.lock"):
        assert not re.search(r"https?://|maven2", resources.files("headrace.stack").joinpath(file).read_text())


def test_a_cluster_gets_the_token_provider_of_its_own_spark() -> None:
    packages = JarCache().packages()
    assert "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.2.0" in packages
    assert "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0" in packages
