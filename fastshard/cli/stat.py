"""Command ``stat``: statistics of shards, each and in total."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from typing import Any

from fastshard._util.arguments import add_reading
from fastshard._util.terminal import escape_name, paint, write_line
from fastshard.cli.common import (
    Commands,
    add_packed,
    add_sources,
    find_as,
    find_shards,
    get_reading_of,
    get_settings,
    open_each,
    parse_sources,
)
from fastshard.formats.registry import Format
from fastshard.formats.tar import TarShard
from fastshard.index.contents import LINKS

__all__ = ["add_stat"]

PERCENTILES = (0, 10, 50, 90, 99, 100)
BAR = 40  # characters of the longest bar of the histogram


def compute_figures(shard: TarShard) -> dict[str, Any]:
    """Return the statistics of a shard."""
    import numpy as np

    from fastshard.dataset.verify import find_trailing_data

    sizes = shard.sizes
    percentiles: list[int] = []
    if len(sizes):
        percentiles = np.percentile(sizes, PERCENTILES, method="lower").tolist()
    after = find_trailing_data(shard)
    return {
        "shard": shard.path,
        "index": shard.index,
        "bytes": shard.nbytes,
        "members": len(shard),
        "member_bytes": shard.parts()[1].data_bytes,
        "size_percentiles": dict(zip(map(str, PERCENTILES), percentiles, strict=False)),
        "samples": len(shard.samples),
        "fields": shard.samples.grouping.field_counts(),
        "skipped": None if shard.skipped is None else dict(shard.skipped),
        "unread_links": count_unread(shard),
        "after_end": None if after is None else {"offset": after[0], "what": after[2]},
    }


def count_unread(shard: TarShard) -> int:
    """Return the number of links that lead to no member."""
    return sum((shard.skipped or {}).get(kind, 0) for kind in LINKS)


def format_counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{escape_name(k)}: {n:,}" for k, n in counts.items()) or "none"


def print_figures(figures: dict[str, Any]) -> None:
    percentiles = figures["size_percentiles"].items()
    write_line(paint(figures["shard"], "bold"))
    write_line(f"  bytes    {figures['bytes']:,}")
    write_line(
        f"  members  {figures['members']:,} of {figures['member_bytes']:,} bytes"
    )
    write_line(
        "  sizes    "
        + (
            ", ".join(f"p{p} {n:,}" for p, n in percentiles) + " bytes"
            if percentiles
            else "none"
        )
    )
    write_line(f"  samples  {figures['samples']:,}")
    write_line(f"  fields   {format_counts(figures['fields'])}")
    if figures["skipped"] is not None:
        write_line(f"  skipped  {format_counts(figures['skipped'])}")
    if figures["unread_links"]:
        write_line(f"  links    {figures['unread_links']:,} lead to no member")
    if figures["index"] is not None:
        write_line(f"  index    {figures['index']}")
    if figures["after_end"] is not None:
        write_line(
            f"  byte {figures['after_end']['offset']:,}: {figures['after_end']['what']}"
        )


class Totals:
    """Total statistics of several shards."""

    def __init__(self) -> None:
        self.sums: Counter[str] = Counter()
        self.fields: Counter[str] = Counter()
        self.histogram: Counter[int] = Counter()  # members, by bits of their size

    def add(self, shard: TarShard) -> None:
        import numpy as np

        self.sums["shards"] += 1
        self.sums["indexed"] += shard.index is not None
        self.sums["bytes"] += shard.nbytes
        self.sums["members"] += len(shard)
        self.sums["member_bytes"] += shard.parts()[1].data_bytes
        self.sums["samples"] += len(shard.samples)
        self.sums["unread_links"] += count_unread(shard)
        self.fields.update(shard.samples.grouping.field_counts())
        bits = np.frexp(shard.sizes.astype(np.float64))[1]
        for size, count in zip(*np.unique(bits, return_counts=True), strict=True):
            self.histogram[int(size)] += int(count)

    def figures(self) -> dict[str, Any]:
        """Return the totals; ``sizes`` has pairs of a least size and a member count."""
        pairs = sorted(self.histogram.items())
        return {
            **self.sums,
            "fields": dict(self.fields),
            "sizes": [[1 << bits >> 1, count] for bits, count in pairs],
        }

    def print(self) -> None:
        sums = self.sums
        write_line(paint("all together", "bold"))
        write_line(f"  shards   {sums['shards']:,}, {sums['indexed']:,} with an index")
        write_line(f"  bytes    {sums['bytes']:,}")
        write_line(f"  members  {sums['members']:,} of {sums['member_bytes']:,} bytes")
        write_line(f"  samples  {sums['samples']:,}")
        write_line(f"  fields   {format_counts(dict(self.fields))}")
        if sums["unread_links"]:
            write_line(f"  links    {sums['unread_links']:,} lead to no member")
        most = max(self.histogram.values(), default=1)
        for least, count in self.figures()["sizes"]:
            bar = "#" * max(1, count * BAR // most)
            write_line(f"  from {least:>15,} bytes  {count:>12,}  {bar}")


def cmd_stat(args: argparse.Namespace) -> int:
    """Show counts of members, samples, bytes, sizes, fields and skipped entries."""
    sources = parse_sources(args.sources)
    remote = get_settings(sources, args)
    reading = get_reading_of(sources, args)
    found = find_as(args.tar_format, sources, remote, reading)
    if found is not None:
        figures = found.format.stat(found.root, deep=args.deep, **found.options)
        print_dataset(found.format, figures, args.json)
        return 0
    status = 0
    paths = find_shards(sources, remote)
    each = len(paths) == 1 or args.each
    totals = Totals()
    for _, shard in open_each(paths, remote, reading):
        if shard is None:
            status = 1
            continue
        if each:
            figures = compute_figures(shard)
            write_line(json.dumps(figures)) if args.json else print_figures(figures)
        totals.add(shard)
    if len(paths) > 1:
        write_line(json.dumps(totals.figures())) if args.json else totals.print()
    return status


def print_dataset(dataset: Format, figures: dict[str, Any], as_json: bool) -> None:
    """Print the statistics of a dataset directory; the first line is a heading."""
    if as_json:
        write_line(json.dumps(figures))
        return
    heading, *lines = dataset.stat_lines(figures)
    write_line(paint(heading, "bold"))
    for line in lines:
        write_line(line)


def add_stat(commands: Commands) -> None:
    parser = commands.add_parser(
        "stat",
        help="count members, samples, fields and bytes",
        usage="fastshard stat [OPTION]... SOURCE...",
        description="Count the members, samples, fields and bytes of shards. Of one\n"
        "shard: percentiles of the members' sizes in bytes, and entries\n"
        "that are not files. Of several: a histogram of the sizes.",
        examples=[
            ("one shard", "fastshard stat data/train-0000.tar"),
            ("a dataset in total", "fastshard stat data"),
            ("each shard, as JSON", "fastshard stat --each --json data"),
        ],
    )
    add_sources(parser)
    add_packed(parser)
    add_reading(parser)
    parser.add_argument(
        "--each",
        action="store_true",
        help="show each of several shards before their total",
    )
    parser.add_argument(
        "--deep",
        action="store_true",
        help="of a columnar or streaming dataset: read the headers of all shards, to "
        "show dtypes, shapes and the bytes that compact would free, or the sizes of "
        "columns",
    )
    parser.add_output(
        json="print a JSON object for each shard shown, and one for the total"
    )
    parser.set_defaults(run=cmd_stat)
