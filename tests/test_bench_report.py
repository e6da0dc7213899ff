"""The report of the benches, and the chart of the README."""

import json
import os
import subprocess
import sys
from collections import defaultdict
from statistics import median

import pytest

from support.paths import TREE

RESULTS = TREE / "bench" / "results" / "batches.json"
CHART = TREE / "docs" / "batches.svg"
SHOWN = (
    "fastshard",
    "fastshard shuffled",
    "HF datasets",
    "HF datasets shuffled",
    "webshart",
    "webdataset",
    "mosaicml streaming",
)
pytestmark = pytest.mark.skipif(not RESULTS.exists(), reason="no source tree")


def run(*args):
    return subprocess.run(
        [sys.executable, "-m", *args],
        cwd=TREE,
        env={**os.environ, "PYTHONPATH": str(TREE)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_chart_is_drawn_from_the_figures_that_are_kept():
    drawn = run("bench.report.chart", str(RESULTS), "batches of", *SHOWN)

    assert drawn.returncode == 0, drawn.stderr
    assert drawn.stdout == CHART.read_text()
    for name in SHOWN:
        assert f">{name}</text>" in drawn.stdout


def test_the_longest_bar_is_the_fastest():
    turns = defaultdict(list)
    for bench in json.loads(RESULTS.read_text())["benchmarks"]:
        turns[bench["extra_info"]["who"]].append(bench["stats"]["median"])

    drawn = run("bench.report.chart", str(RESULTS), "batches of", *SHOWN).stdout

    names = [name for name in drawn.split(">") if name.endswith("</text")]
    bars = [name.removesuffix("</text") for name in names[1:-1:2]]
    assert bars == sorted(SHOWN, key=lambda name: median(turns[name]))


def test_an_unknown_contender_or_group_is_refused():
    assert (
        "no contenders"
        in run("bench.report.chart", str(RESULTS), "batches of", "quux").stderr
    )
    assert (
        "is part of 0 of"
        in run("bench.report.chart", str(RESULTS), "no such group").stderr
    )


def test_trimmed_figures_give_the_same_table(tmp_path):
    trimmed = run("bench.report.trim", str(RESULTS))
    again = tmp_path / "again.json"
    again.write_text(trimmed.stdout)

    table = run("bench.report", str(again))

    assert table.returncode == 0, table.stderr
    assert table.stdout == run("bench.report", str(RESULTS)).stdout
    assert "| fastshard |" in table.stdout


def bench(who, seconds, **extra):
    info = {"who": who, "operations": 2, **extra}
    return {"group": "rows", "stats": {"median": seconds}, "extra_info": info}


def test_bars_are_met_by_the_medians_of_the_turns(tmp_path):
    path = tmp_path / "bench.json"
    machine = {"cpu": {}, "machine": "m", "system": "s", "release": "r"}
    bars = {"bars": {"rival": 10, "absent": 2, "other": 30}}
    limits = {"limits": [["CPU", 0.5, "rival", 0.1], ["MB", 9, None, 0]]}
    limits["limits"] += [["MB", 2, "absent", 0]]
    ours = {"CPU": 3, "MB": 10} | bars | limits
    benches = [bench("ours", seconds, **ours) for seconds in (1e-6, 2e-6, 90e-6)]
    benches += [bench("rival", seconds, CPU=7) for seconds in (20e-6, 40e-6, 50e-6)]
    benches += [bench("other", 40e-6)]
    machine["python_version"] = "3.11.7"
    path.write_text(json.dumps({"machine_info": machine, "benchmarks": benches}))

    done = run("bench.report", str(path))

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-4:] == [
        "met: rows: ours 1 us, rival 20 us: 20 x, bar 10 x",
        "MISSED: rows: ours 1 us, other 20 us: 20 x, bar 30 x",
        "met: rows: ours: CPU 3, rival 7: 0.429 x, bar 3.6",
        "MISSED: rows: ours: MB 10, bar 9",
    ]
