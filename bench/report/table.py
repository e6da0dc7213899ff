"""Table of benchmarks in Markdown.

The turns of a contender count once, by their median, as do their other figures.
Ratios are relative to the first contender of the group.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import median, median_low
from typing import Any

UNITS = ((1e-6, 1e9, "ns"), (1e-3, 1e6, "us"), (1.0, 1e3, "ms"), (float("inf"), 1, "s"))


def duration(seconds: float) -> str:
    """Format a time in a suitable unit."""
    for limit, factor, unit in UNITS:
        if seconds < limit:
            return f"{seconds * factor:.3g} {unit}"
    raise AssertionError("unreachable")


def merge_turns(
    benches: Iterable[dict[str, Any]],
) -> dict[str, dict[str, dict[str, Any]]]:
    """Return the turns' seconds per operation and extra figures, by contender."""
    groups: dict[str, dict[str, dict[str, Any]]] = {}
    for bench in benches:
        info = dict(bench["extra_info"])
        seconds = bench["stats"]["median"] / info.pop("operations", 1)
        group = groups.setdefault(bench["group"], {})
        bars, limits = info.pop("bars", {}), info.pop("limits", [])
        found = group.setdefault(
            info.pop("who"),
            {"turns": [], "extra": {}, "bars": bars, "limits": limits},
        )
        found["turns"].append(seconds)
        for name, value in info.items():
            found["extra"].setdefault(name, []).append(value)
    return groups


def typical(values: Sequence[Any]) -> Any:
    """Return the median of the turns' values, or the first if they are text."""
    return median_low(values) if all(map(is_number, values)) else values[0]


def is_number(value: Any) -> bool:
    return isinstance(value, int | float)


def rows(groups: dict[str, dict[str, dict[str, Any]]]) -> list[str]:
    """Return the lines of a Markdown table."""
    lines = ["| what | who | each | to the first |", "|---|---|---|---|"]
    for group, found in groups.items():
        first = median(next(iter(found.values()))["turns"])
        for i, (name, figures) in enumerate(found.items()):
            seconds = median(figures["turns"])
            extra = "".join(f"; {typical(v)} {k}" for k, v in figures["extra"].items())
            ratio = "" if i == 0 else f"{seconds / first:.3g} x"
            what = group if i == 0 else ""
            lines.append(f"| {what} | {name} | {duration(seconds)}{extra} | {ratio} |")
    return lines


def bars(groups: dict[str, dict[str, dict[str, Any]]]) -> list[str]:
    """Return a line for each bar: how many times as fast a contender is, and must be.

    A bar whose other contender was skipped has no line.
    """
    lines = []
    for group, found in groups.items():
        for who, figures in found.items():
            own = median(figures["turns"])
            for other, times in figures["bars"].items():
                if other in found:
                    ratio = median(found[other]["turns"]) / own
                    state = "met" if ratio >= times else "MISSED"
                    lines.append(
                        f"{state}: {group}: {who} {duration(own)}, {other} "
                        f"{duration(own * ratio)}: {ratio:.3g} x, bar {times:.3g} x"
                    )
            lines += _limits(group, found, who)
    return lines


def _limits(group: str, found: dict[str, dict[str, Any]], who: str) -> list[str]:
    """Return a line for each bar on another figure of a contender."""
    lines = []
    for figure, at_most, other, plus in found[who]["limits"]:
        own = median(found[who]["extra"][figure])
        text = f"{figure} {own:.3g}"
        if other is not None:
            if figure not in found.get(other, {"extra": {}})["extra"]:
                continue
            theirs = median(found[other]["extra"][figure])
            text += f", {other} {theirs:.3g}"
            text += f": {own / theirs:.3g} x" if theirs else ""
            at_most = at_most * theirs + plus
        state = "met" if own <= at_most else "MISSED"
        lines.append(f"{state}: {group}: {who}: {text}, bar {at_most:.3g}")
    return lines


def machine(run: Mapping[str, Any]) -> str:
    """Return the processor, the system and the Python of a run."""
    info = run["machine_info"]
    return (
        f"{info['cpu'].get('brand_raw', info['machine'])}, {info['system']} "
        f"{info['release']}, Python {info['python_version']}"
    )
