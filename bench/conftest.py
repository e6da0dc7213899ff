"""Fixtures of all benchmarks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from harness import SCALE, TURNS, Tar, names_of_reads, write
from report.table import bars, merge_turns


def pytest_benchmark_update_json(output_json: dict[str, Any]) -> None:
    """Store the size of the data and the turns of each contender for the history."""
    output_json |= {"scale": SCALE, "turns": TURNS}


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Print which bars were met."""
    session: Any = getattr(config, "_benchmarksession", None)
    benches = [
        {
            "group": bench.group,
            "extra_info": bench.extra_info,
            "stats": {"median": bench.stats.median},
        }
        for bench in getattr(session, "benchmarks", ())
        if bench  # one that failed has no rounds
    ]
    if reached := bars(merge_turns(benches)):
        terminalreporter.section("bars")
        terminalreporter.write_line("\n".join(reached))


@pytest.fixture(autouse=True)
def who(request: pytest.FixtureRequest, benchmark: Any) -> None:
    """Store the contender's name for the report."""
    read = request.node.callspec.params["read"]
    benchmark.extra_info["who"] = names_of_reads[read]


@pytest.fixture(scope="session")
def tars(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Tar]:
    """Return a function that makes each shard once; the page cache is warm."""
    folder = tmp_path_factory.mktemp("bench")
    made: dict[tuple[Any, ...], Tar] = {}

    def make(kind: str, count: int, size: int, npy: bool = False, n: int = 0) -> Tar:
        count = max(int(count * SCALE), 10)
        key = (kind, count, size, npy, n)
        if key not in made:
            path = folder / f"{kind}-{count}-{size}-{npy}-{n}.tar"
            made[key] = write(path, kind, count, size, npy)
        return made[key]

    return make
