"""Bar chart of one group of benchmarks, as SVG: operations a second of each contender.

    python -m bench.report.chart bench.json "batches of 256" > docs/batches.svg

The group is named by a part of its name; behind it the contenders may be named that
are shown. The fastest come first, those of fastshard are highlighted. The colours
follow the reader's light or dark theme.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from statistics import median
from typing import Any

from .table import machine, merge_turns

WIDTH = 760  # pixels, as are all sizes here
LEFT = 190  # of the first bar
RIGHT = 110  # kept for the figure behind the longest bar
TOP, ROW, BAR, FOOT = 58, 34, 22, 40

STYLE = """
text { font: 14px system-ui, -apple-system, "Segoe UI", Helvetica, sans-serif;
  fill: #1f2328; }
.title { font-size: 16px; font-weight: 600; }
.note { font-size: 12px; fill: #59636e; }
.ours { font-weight: 600; }
rect { fill: #afb8c1; }
rect.ours { fill: #2f6f9f; }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3; }
  .note { fill: #9198a1; }
  rect { fill: #57606a; }
  rect.ours { fill: #58a6d8; }
}
"""


def rates(found: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """Return the operations a second of each contender: medians of the turns."""
    return {name: 1 / median(figures["turns"]) for name, figures in found.items()}


def shorten(rate: float) -> str:
    """Format a rate with three significant digits: 1,350,000 -> "1.35 M"."""
    for factor, unit in ((1e6, " M"), (1e3, " k")):
        if rate >= factor:
            return f"{rate / factor:.3g}{unit}"
    return f"{rate:.3g}"


def draw(title: str, note: str, bars: Mapping[str, float]) -> str:
    """Return an SVG with one horizontal bar for each rate."""
    height = TOP + ROW * len(bars) + FOOT
    scale = (WIDTH - LEFT - RIGHT) / max(bars.values())
    told = "; ".join(f"{name} {shorten(rate)}" for name, rate in bars.items())
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}"'
        f' viewBox="0 0 {WIDTH} {height}" role="img"'
        f' aria-label="{escape(f"{title}: {told}")}">',
        f"<style>{STYLE}</style>",
        f'<text class="title" x="16" y="30">{escape(title)}</text>',
    ]
    for i, (name, rate) in enumerate(bars.items()):
        kind = ' class="ours"' if name.startswith("fastshard") else ""
        y, width = TOP + ROW * i, max(rate * scale, 1)
        text = y + BAR - 6
        lines += [
            f'<text{kind} x="{LEFT - 10}" y="{text}" text-anchor="end">'
            f"{escape(name)}</text>",
            f'<rect{kind} x="{LEFT}" y="{y}" width="{width:.1f}" height="{BAR}"'
            ' rx="3"/>',
            f'<text{kind} x="{LEFT + width + 8:.1f}" y="{text}">{shorten(rate)}</text>',
        ]
    lines += [
        f'<text class="note" x="16" y="{height - 16}">{escape(note)}</text>',
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def chart(run: Mapping[str, Any], part: str, names: Sequence[str] = ()) -> str:
    """Return the chart of the one group whose name contains `part`."""
    groups = merge_turns(run["benchmarks"])
    matches = [name for name in groups if part in name]
    if len(matches) != 1:
        raise SystemExit(f"{part!r} is part of {len(matches)} of {list(groups)}")
    bars = rates(groups[matches[0]])
    if missing := set(names) - set(bars):
        raise SystemExit(f"no contenders {sorted(missing)} among {list(bars)}")
    shown = {name: bars[name] for name in names or bars}
    fastest_first = dict(sorted(shown.items(), key=lambda bar: -bar[1]))
    return draw(f"Samples a second: {matches[0]}", machine(run), fastest_first)


def main(args: Sequence[str]) -> int:
    """Print the chart of a group in a JSON file."""
    if len(args) < 2:
        print(
            "usage: python -m bench.report.chart BENCH.json GROUP [WHO...]",
            file=sys.stderr,
        )
        return 2
    path, part, *names = args
    print(chart(json.loads(Path(path).read_text()), part, names), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
