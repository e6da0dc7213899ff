"""The history of the benches: lines of JSON, and the page made of them."""

import json
import os
import subprocess
import sys

import pytest

from support.paths import TREE

HISTORY = TREE / "bench" / "results" / "history.jsonl"
PAGE = TREE / "docs" / "history.md"
pytestmark = pytest.mark.skipif(not HISTORY.exists(), reason="no source tree")


def run(*args):
    return subprocess.run(
        [sys.executable, "-m", "bench.report.history", *args],
        cwd=TREE,
        env={**os.environ, "PYTHONPATH": str(TREE)},
        capture_output=True,
        text=True,
    )


def bench(group, who, *seconds):
    return [
        {
            "group": group,
            "extra_info": {"who": who, "operations": 10},
            "stats": {"median": value * 10},
        }
        for value in seconds
    ]


def write_run(path, day, benches):
    cpu = {"brand_raw": "A Processor", "count": 2}
    machine = {"cpu": cpu, "machine": "x86_64", "system": "Linux"}
    machine |= {"release": "6.18", "python_version": "3.13.1"}
    run = {"datetime": f"{day}T03:17:00+00:00", "machine_info": machine}
    run |= {"commit_info": {"id": "0123456789abcdef"}, "scale": 0.1, "turns": 3}
    path.write_text(json.dumps(run | {"benchmarks": benches}))
    return str(path)


@pytest.fixture
def history(tmp_path):
    """Two runs in a file of history, the later one first."""
    later = write_run(
        tmp_path / "later.json",
        "2027-01-11",
        bench("a view", "fastshard", 1e-7, 3e-7, 2e-7) + bench("a view", "pread", 1e-6),
    )
    earlier = write_run(
        tmp_path / "earlier.json",
        "2027-01-04",
        bench("a view", "fastshard", 4e-7)
        + bench("a view", "pread", 1e-6)
        + bench("a view", "tarfile", 9e-6)
        + bench("ours alone", "fastshard", 1e-3),
    )
    path = tmp_path / "history.jsonl"
    path.write_text(run("add", later).stdout + run("add", earlier).stdout)
    return path


def test_a_line_has_the_median_of_the_turns_by_operation(history):
    kept = json.loads(history.read_text().splitlines()[0])
    assert kept["seconds"]["a view"]["fastshard"] == pytest.approx(2e-7)
    assert (kept["date"], kept["commit"]) == ("2027-01-11", "012345678")
    assert "3.13" in kept["machine"]
    assert "3.13.1" not in kept["machine"]


def test_the_page_has_the_latest_run_first_and_ratios_to_the_fastest_rival(history):
    lines = run("page", str(history)).stdout.splitlines()
    assert "| what | 2027-01-11 `012345678` | 2027-01-04 `012345678` |" in lines
    assert "| a view | 200 ns, 5 x | 400 ns, 2.5 x |" in lines
    assert "BENCH_SCALE=0.1 BENCH_TURNS=3 pytest bench" in "".join(lines)


def test_a_note_stands_above_the_table(history):
    kept = json.loads(history.read_text().splitlines()[0]) | {"note": "On a laptop."}
    history.write_text(json.dumps(kept))
    text = run("page", str(history)).stdout
    assert text.index("On a laptop.") < text.index("| a view |")


def test_groups_without_a_rival_are_left_out(history):
    assert "ours alone" not in run("page", str(history)).stdout


def test_the_page_in_the_docs_is_made_of_the_kept_runs():
    assert run("page", str(HISTORY)).stdout == PAGE.read_text()


def test_wrong_usage_is_told():
    assert run("page").returncode == 2
