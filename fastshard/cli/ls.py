"""Commands ``ls`` and ``cat``: names and bytes of members and fields."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from typing import Any

from fastshard._util.arguments import FLAGS, add_reading
from fastshard._util.paths.urls import redact
from fastshard._util.terminal import (
    UsageError,
    escape_name,
    paint,
    print_error,
    write_line,
    write_lines,
    write_output,
)
from fastshard.cli.common import (
    SOURCE_HELP,
    Commands,
    add_packed,
    add_remote,
    add_sources,
    find_as,
    find_dataset,
    find_shards,
    get_reading_of,
    get_remote_options,
    get_settings,
    open_each,
    parse_sources,
)
from fastshard.formats.tar import TarShard

__all__ = ["add_cat", "add_ls"]


def format_members(
    path: str, shard: TarShard, args: argparse.Namespace, prefix: str
) -> Iterator[str]:
    """Yield the output line of each member; a prefix is escaped already."""
    extents = zip(
        shard.names, shard.offsets.tolist(), shard.sizes.tolist(), strict=True
    )
    for name, offset, size in extents:
        if args.json:
            member = {"shard": path, "name": name, "offset": offset, "size": size}
            yield json.dumps(member)
        elif args.long:
            yield f"{prefix}{offset:>15} {size:>13}  {escape_name(name)}"
        else:
            yield prefix + escape_name(name)


def refuse_samples(reading: Mapping[str, Any], reason: str) -> None:
    """Raise UsageError for options of samples if members are read."""
    for name in reading:
        if name != "mode":
            raise UsageError(f"{FLAGS[name]} is an option of samples; {reason}")


def cmd_ls(args: argparse.Namespace) -> int:
    """List the members of shards."""
    sources = parse_sources(args.sources)
    remote = get_settings(sources, args)
    reading = get_reading_of(sources, args)
    found = find_as(args.tar_format, sources, remote, reading)
    if found is not None:
        lines = found.format.list_lines(
            found.root, long=args.long, as_json=args.json, **found.options
        )
        for line in lines:
            write_line(line)
        return 0
    refuse_samples(reading, "ls lists members, with --packed samples")
    status = 0
    paths = find_shards(sources, remote)
    has_prefix = len(paths) > 1 if args.with_filename is None else args.with_filename
    for path, shard in open_each(paths, remote, reading):
        if shard is None:
            status = 1
            continue
        shown = redact(path)
        prefix = paint(shown, "shard") + ":" if has_prefix else ""
        write_lines(format_members(shown, shard, args, prefix))
    return status


def add_ls(commands: Commands) -> None:
    parser = commands.add_parser(
        "ls",
        help="list the files (members) stored in shards",
        usage="fastshard ls [OPTION]... SOURCE...",
        description="List the names of the files (members) stored in shards, a line\n"
        "each; of several shards, behind the shard's path and a colon.\n"
        "Of a dataset without members, as a columnar one: its samples.",
        examples=[
            ("names in a shard", "fastshard ls data/train-0000.tar"),
            ("offsets and sizes too", "fastshard ls --long data/train-0000.tar"),
            ("all shards of a directory", "fastshard ls data"),
            ("JSON, for another program", "fastshard ls --json data"),
        ],
    )
    add_sources(parser)
    add_packed(parser)
    add_reading(parser)
    parser.add_argument(
        "-l",
        "--long",
        action="store_true",
        help="show each member's offset in its shard and size, in bytes; of a "
        "dataset without members each sample's fields",
    )
    names = parser.add_mutually_exclusive_group()
    names.add_argument(
        "-H",
        "--with-filename",
        action="store_true",
        default=None,
        help="show the shard's path on each line (default: if there are several)",
    )
    names.add_argument(
        "-I",
        "--no-filename",
        dest="with_filename",
        action="store_false",
        default=None,
        help="never show the shard's path",
    )
    parser.add_output(json="print a JSON object for each member, on its own line")
    parser.set_defaults(run=cmd_ls)


def write_fields(args: argparse.Namespace, reading: Mapping[str, Any]) -> int:
    """Write the stored bytes of fields of the sample at a position."""
    from fastshard.dataset.open import open as open_dataset

    position, *fields = args.names
    if not is_integer(position) or not fields:
        raise UsageError(
            f"{redact(args.source)} has samples, not members: give a position, such "
            f"as 0, and the names of fields, got {' '.join(args.names)}"
        )
    options = {**get_remote_options(args), **reading}
    with open_dataset(args.source, **options) as dataset:
        try:
            sample = dataset[int(position)]
        except IndexError as error:
            print_error(f"{redact(args.source)}: {error}")
            return 1
        for view in [sample.view(field) for field in fields]:
            write_output(view)
    return 0


def is_integer(text: str) -> bool:
    return text.isascii() and text.removeprefix("-").isdigit() and len(text) < 19


def cmd_cat(args: argparse.Namespace) -> int:
    """Write the bytes of members, or of fields of a sample, to stdout."""
    sources = parse_sources([args.source])
    remote = get_settings(sources, args)
    reading = get_reading_of(sources, args)
    if find_dataset(sources, remote, reading) is not None:
        return write_fields(args, reading)
    is_position = len(args.names) > 1 and is_integer(args.names[0])
    if not is_position:
        refuse_samples(reading, "a NAME is that of a member")
    paths = find_shards(sources, remote)
    status = unread = 0
    views: dict[str, list[memoryview]] = {name: [] for name in args.names}
    for _, shard in open_each(paths, remote, reading):
        if shard is None:
            status = 1
            unread += 1
            continue
        for name, found in views.items():
            if name in shard:
                found.append(shard[name])
    shown = redact(args.source)
    if is_position and status == 0 and not any(views.values()):
        return write_fields(args, reading)
    for name in args.names:
        found = views[name]
        if len(found) == 1:
            write_output(found[0])
            continue
        status = 1
        if found:
            print_error(f"{len(found):,} shards of {shown} have a member {name!r}")
        else:
            where = shown if unread == 0 else f"what could be read of {shown}"
            print_error(f"no member {name!r} in {where}")
    return status


def add_cat(commands: Commands) -> None:
    parser = commands.add_parser(
        "cat",
        help="write the bytes of members or fields to stdout",
        usage="fastshard cat [OPTION]... SOURCE NAME...\n"
        "       fastshard cat [OPTION]... SOURCE POSITION FIELD...",
        description="Write the bytes of members to stdout, one after another.\n"
        "A name must be in one shard of the source only. Or write the stored\n"
        "bytes of fields of the sample at a position.",
        examples=[
            ("show a label", "fastshard cat data/train-0000.tar 000000.cls"),
            ("save a picture", "fastshard cat data 000001.png > picture.png"),
            ("fields of the last sample", "fastshard cat data -1 cls png > fields"),
        ],
    )
    parser.add_argument("source", metavar="SOURCE", help=SOURCE_HELP)
    parser.add_argument(
        "names",
        nargs="+",
        metavar="NAME",
        help="member to write, as ls shows it; or the position of a sample, from 0, "
        "negative from the end, and its fields",
    )
    add_reading(parser)
    add_remote(parser)
    parser.add_output()
    parser.set_defaults(run=cmd_cat)
