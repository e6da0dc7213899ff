"""Commands ``ls`` and ``cat``: names and bytes of members."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator

from fastshard._util.terminal import escape_name, write_line
from fastshard.cli.common import (
    SOURCE_HELP,
    Commands,
    add_remote,
    add_sources,
    find_dataset,
    find_shards,
    get_settings,
    open_each,
    parse_sources,
    print_error,
)
from fastshard.formats.tar import TarShard
from fastshard.remote.urls import redact

__all__ = ["add_cat", "add_ls"]


def format_members(
    path: str, shard: TarShard, args: argparse.Namespace
) -> Iterator[str]:
    extents = zip(
        shard.names, shard.offsets.tolist(), shard.sizes.tolist(), strict=True
    )
    for name, offset, size in extents:
        if args.json:
            member = {"shard": path, "name": name, "offset": offset, "size": size}
            yield json.dumps(member)
        elif args.long:
            yield f"{offset:>15} {size:>13}  {escape_name(name)}"
        else:
            yield escape_name(name)


def cmd_ls(args: argparse.Namespace) -> int:
    """List the members of shards."""
    sources = parse_sources(args.sources)
    found = find_dataset(sources)
    if found is not None:
        dataset, root = found
        for line in dataset.list_lines(root, long=args.long, as_json=args.json):
            write_line(line)
        return 0
    status = 0
    remote = get_settings(sources, args)
    for path, shard in open_each(find_shards(sources, remote), remote):
        if shard is None:
            status = 1
            continue
        for line in format_members(path, shard, args):
            write_line(line)
    return status


def add_ls(commands: Commands) -> None:
    parser = commands.add_parser("ls", help=cmd_ls.__doc__)
    add_sources(parser)
    parser.add_argument(
        "-l", "--long", action="store_true", help="show offset and size in bytes"
    )
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object per line"
    )
    parser.set_defaults(run=cmd_ls)


def cmd_cat(args: argparse.Namespace) -> int:
    """Write the bytes of members to stdout."""
    sources = parse_sources([args.source])
    remote = get_settings(sources, args)
    paths = find_shards(sources, remote)
    status = 0
    views: dict[str, list[memoryview]] = {name: [] for name in args.names}
    for _, shard in open_each(paths, remote):
        if shard is None:
            status = 1
            continue
        for name, found in views.items():
            if name in shard:
                found.append(shard[name])
    shown = redact(args.source)
    for name in args.names:
        found = views[name]
        if len(found) == 1:
            sys.stdout.buffer.write(found[0])
            continue
        status = 1
        if found:
            print_error(f"{len(found):,} shards of {shown} have a member {name!r}")
        else:
            print_error(f"no member {name!r} in {shown}")
    return status


def add_cat(commands: Commands) -> None:
    parser = commands.add_parser("cat", help=cmd_cat.__doc__)
    parser.add_argument("source", metavar="SOURCE", help=SOURCE_HELP)
    parser.add_argument("names", nargs="+", metavar="NAME", help="member to write")
    add_remote(parser)
    parser.set_defaults(run=cmd_cat)
