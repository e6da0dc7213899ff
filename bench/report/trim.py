"""The part of a benchmark's JSON that reports use, a tenth of its size, to be kept.

    python -m bench.report.trim bench.json > bench/results/NAME.json

A second argument keeps only the groups whose names contain it. Names of machines,
users and commits are left out.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

MACHINE = ("machine", "system", "release", "python_version")
CPU = ("brand_raw", "arch", "count", "hz_advertised_friendly")
BENCH = ("group", "name", "extra_info")
STATS = ("min", "median", "rounds")


def trim(run: Mapping[str, Any], part: str = "") -> dict[str, Any]:
    """Return a run without facts that reports do not read."""
    machine = run["machine_info"]
    return {
        "datetime": run["datetime"],
        "version": run["version"],
        "machine_info": {name: machine[name] for name in MACHINE}
        | {"cpu": {name: machine["cpu"].get(name) for name in CPU}},
        "benchmarks": [
            {name: bench[name] for name in BENCH}
            | {"stats": {name: bench["stats"][name] for name in STATS}}
            for bench in run["benchmarks"]
            if part in bench["group"]
        ],
    }


def main(args: Sequence[str]) -> int:
    """Print the trimmed JSON of one file."""
    if len(args) not in (1, 2):
        print("usage: python -m bench.report.trim BENCH.json [GROUP]", file=sys.stderr)
        return 2
    path, *part = args
    print(json.dumps(trim(json.loads(Path(path).read_text()), *part), indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
