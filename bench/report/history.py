"""History of benchmarks: one line of JSON a run, and a page of tables.

    python -m bench.report.history add bench.json >> bench/results/history.jsonl
    python -m bench.report.history page bench/results/history.jsonl > docs/history.md

A line has the medians of all contenders. The page has a table for each machine and
scale: the groups in which fastshard has a rival, the latest runs side by side. A line
may get a "note" by hand.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from .table import duration, merge_turns

MOST_RUNS = 8  # columns of a table
OURS = "fastshard"
HEAD = """\
# History of the benches

The workflow `bench` runs `pytest bench` once a week and keeps the medians of all
contenders as one line of JSON. A cell is the time of one operation by fastshard, and
how many times as long the fastest other contender of the same run took: times of
different runs are of different days of a shared machine, ratios are comparable.
Groups whose contenders are all fastshard's own are left out.

This page is made by `python -m bench.report.history page`.
"""


def record(run: Mapping[str, Any]) -> dict[str, Any]:
    """Return the kept part of a run: where and when, seconds by group and contender."""
    groups = merge_turns(run["benchmarks"])
    return {
        "date": run["datetime"][:10],
        "commit": run["commit_info"]["id"][:9],
        "machine": describe(run["machine_info"]),
        "scale": run["scale"],
        "turns": run["turns"],
        "seconds": {
            group: {who: median(found["turns"]) for who, found in contenders.items()}
            for group, contenders in groups.items()
        },
    }


def describe(machine: Mapping[str, Any]) -> str:
    """Return the common facts of compared runs."""
    name = machine["cpu"].get("brand_raw", machine["machine"])
    python = machine["python_version"].rpartition(".")[0]
    count = machine["cpu"]["count"]
    return f"{name}, {count} processors, {machine['system']}, Python {python}"


def split_contenders(
    seconds: Mapping[str, float],
) -> tuple[list[float], list[float]]:
    """Return the times of fastshard, its plain call first, and those of the others."""
    ours = [value for who, value in seconds.items() if who.startswith(OURS)]
    others = [value for who, value in seconds.items() if not who.startswith(OURS)]
    return ([seconds[OURS]] if OURS in seconds else ours), others


def cell(run: Mapping[str, Any], group: str) -> str:
    """Return fastshard's time and its ratio to the fastest other contender."""
    ours, others = split_contenders(run["seconds"].get(group, {}))
    if not ours or not others:
        return ""
    return f"{duration(ours[0])}, {min(others) / ours[0]:.3g} x"


def table(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the lines of a table of runs that are comparable, the latest first."""
    latest = sorted(runs, key=lambda run: run["date"], reverse=True)[:MOST_RUNS]
    heads = [f"{run['date']} `{run['commit']}`" for run in latest]
    lines = [" | ".join(["| what", *heads]) + " |", "|---" * (len(heads) + 1) + "|"]
    for group in dict.fromkeys(group for run in latest for group in run["seconds"]):
        cells = [cell(run, group) for run in latest]
        if any(cells):
            lines.append(" | ".join([f"| {group}", *cells]) + " |")
    return lines


def page(runs: Sequence[Mapping[str, Any]]) -> str:
    """Return the page: a section for each machine and scale."""
    sections: dict[tuple[str, float], list[Mapping[str, Any]]] = {}
    for run in runs:
        sections.setdefault((run["machine"], run["scale"]), []).append(run)
    lines = [HEAD]
    for (where, scale), found in sections.items():
        turns = ", ".join(sorted({str(run["turns"]) for run in found}))
        command = f"BENCH_SCALE={scale:g} BENCH_TURNS={turns} pytest bench"
        lines += [f"## {where}, scale {scale:g}\n", f"`{command}`\n"]
        notes = dict.fromkeys(run["note"] for run in found if "note" in run)
        lines += [f"{note}\n" for note in notes]
        lines += [*table(found), ""]
    return "\n".join(lines)


def main(args: Sequence[str]) -> int:
    """Print the line of a run, or the page of the runs of some files."""
    if len(args) < 2 or args[0] not in ("add", "page"):
        usage = "usage: python -m bench.report.history add|page FILE..."
        print(usage, file=sys.stderr)
        return 2
    command, *paths = args
    texts = [Path(path).read_text() for path in paths]
    if command == "add":
        for text in texts:
            print(json.dumps(record(json.loads(text))))
        return 0
    lines = [line for text in texts for line in text.splitlines() if line.strip()]
    print(page(list(map(json.loads, lines))), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
