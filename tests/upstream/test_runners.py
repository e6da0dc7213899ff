"""The runners of other libraries' tests: a test not run is listed, or fails the run."""

import sys

import pytest

from support.paths import TESTS


@pytest.fixture
def load(monkeypatch):
    """Return a function that imports a runner."""
    monkeypatch.syspath_prepend(TESTS / "upstream")
    monkeypatch.setenv("FASTSHARD_UPSTREAM", "theirs")

    def load(name):
        monkeypatch.delitem(sys.modules, name, raising=False)
        return __import__(name)

    yield load
    for name in ("run", "atdata_run", "atdata_lists", "atdata_plugin"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize(
    ("chosen", "array", "status"),
    [
        ("names:array", "410 passed in 1s", 0),
        ("names:array", "409 passed in 1s", 1),
        ("names:array", "409 passed, 1 failed in 1s", 1),
        ("names:array,nosuchfile", "410 passed in 1s", 1),
    ],
)
def test_a_file_with_fewer_tests_than_recorded_fails_a_run(
    monkeypatch, load, chosen, array, status
):
    runner = load("run")

    def run(path, *_):
        return [array if path.endswith("test_array.py") else "no tests ran in 1s"]

    monkeypatch.setattr(runner, "run", run)
    assert runner.main("tests", chosen) == status


def test_a_run_without_a_summary_is_an_error(load, tmp_path):
    first = load("run").run(str(tmp_path / "test_nosuchfile.py"), "theirs", ())[0]
    assert first.startswith("ERROR")
    assert "nosuchfile" in first


@pytest.fixture
def release(load, tmp_path):
    """Return a folder of tests with the files of the list, and one more."""
    for name in (*load("atdata_lists").NOT_RUN, "integration/test_b.py", "test_a.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    return tmp_path


def test_every_file_of_a_release_is_run_or_listed(load, release, capsys):
    runner = load("atdata_run")
    paths = [release / "test_a.py", release / "integration/test_b.py"]
    assert runner.choose(release, "") == list(map(str, paths))
    assert capsys.readouterr().out.count(": not run: ") == len(
        load("atdata_lists").NOT_RUN
    )


def test_a_file_that_a_release_lacks_ends_a_run(load, release):
    runner = load("atdata_run")
    with pytest.raises(SystemExit, match="nosuchfile"):
        runner.choose(release, "a,nosuchfile")
    (release / "test_cli.py").unlink()
    with pytest.raises(SystemExit, match=r"test_cli\.py"):
        runner.choose(release, "")


def test_test_functions_of_a_file_are_those_that_pytest_collects(load, tmp_path):
    path = tmp_path / "test_x.py"
    path.write_text(
        "def test_a(): ...\ndef helper(): ...\nclass TestB:\n"
        "    async def test_c(self): ...\nclass Other:\n    def test_d(self): ..."
    )
    assert load("atdata_plugin").functions_of(path) == {"test_a", "TestB::test_c"}
