"""Print a table of the benchmarks in some JSON files."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from .table import bars, machine, merge_turns, rows


def main(paths: Sequence[str]) -> int:
    """Print the machine of the first file, one table of all, and the bars."""
    if not paths:
        print("usage: python -m bench.report BENCH.json...", file=sys.stderr)
        return 2
    runs = [json.loads(Path(path).read_text()) for path in paths]
    print(f"{machine(runs[0])}\n")
    groups = merge_turns(bench for run in runs for bench in run["benchmarks"])
    print("\n".join(rows(groups)))
    if reached := bars(groups):
        print("", *reached, sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
