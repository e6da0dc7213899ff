"""Command ``index``: indexes of shards and of the dataset."""

from __future__ import annotations

import argparse
import json
import os

from fastshard._util.arguments import add_key, parse_positive
from fastshard._util.terminal import (
    UsageError,
    describe_error,
    print_error,
    write_line,
    write_note,
)
from fastshard.cli.common import (
    Commands,
    add_sources,
    get_remote_options,
    get_settings,
    parse_sources,
)

__all__ = ["add_index"]


def cmd_index(args: argparse.Namespace) -> int:
    """Build an index beside each shard, and dataset.fsi for the dataset."""
    from fastshard.dataset.build_index import build_index, merge_indexes, parse_part

    source = args.sources[0] if len(args.sources) == 1 else args.sources
    try:
        part = None if args.part is None else parse_part(args.part)
    except ValueError as error:
        raise UsageError(f"--part: {error}") from None
    if args.merge and (part is not None or args.format != "fsi"):
        raise UsageError("--merge requires --format fsi, and no --part")
    locations = parse_sources(args.sources)
    if all(location.is_local for location in locations):
        get_settings(locations, args)  # refuses options for URLs
    remote = get_remote_options(args)
    try:
        if args.merge:
            made = [merge_indexes(source, out=args.out, key=args.key, **remote)]
        else:
            made = build_index(
                source,
                format=args.format,
                out=args.out,
                threads=args.threads,
                hashes=args.hash,
                part=part,
                key=args.key,
                again=args.again,
                **remote,
            )
    except PermissionError as error:
        reason = describe_error(error)
        print_error(f"{reason}; choose another directory for the indexes with --out")
        return 1
    for path in made:
        if os.path.isabs(path) and not os.path.isabs(made[0]):
            path = os.path.relpath(path)  # dataset.fsi, shown like the others
        if args.json:
            write_line(json.dumps({"index": path}))
        else:
            write_note(path)
    return 0


def add_index(commands: Commands) -> None:
    parser = commands.add_parser(
        "index",
        help="write indexes, so that shards open at once",
        usage="fastshard index [OPTION]... SOURCE...",
        description="Write an index beside each shard, and dataset.fsi for them all:\n"
        "with these a dataset opens without reading its shards. Shards with\n"
        "a fresh index are skipped, so that a stopped run can be resumed.\n"
        "Prints the paths of the indexes.",
        examples=[
            ("all shards of a directory", "fastshard index data"),
            ("into another directory", "fastshard index data --out indexes"),
            (
                "half of the work, on each of two machines",
                "fastshard index data --part 0/2",
            ),
            ("the other half", "fastshard index data --part 1/2"),
            ("join them when both are done", "fastshard index data --merge"),
        ],
    )
    add_sources(parser)
    parser.add_argument(
        "--format",
        choices=("fsi", "json", "idx", "tar.idx", "wids"),
        default="fsi",
        help="kind of index; fsi (default): fastshard's own, which also makes "
        "dataset.fsi; json: of webshart and hfutils; idx: of NVIDIA DALI; tar.idx: of "
        "Megatron Energon; wids: one shardindex.json for all shards",
    )
    parser.add_argument(
        "--out",
        metavar="DIR",
        help="write the indexes to DIR, needed for URLs (default: beside the shards)",
    )
    parser.add_argument(
        "--threads",
        type=parse_positive,
        metavar="N",
        help="shards to read at a time (default: one for each processor)",
    )
    parser.add_argument(
        "--hash",
        action="store_true",
        help="record the sha256 of each member, for verify --hash; reads all bytes",
    )
    parser.add_argument(
        "--part",
        metavar="i/n",
        help="index every n-th shard from the i-th on, counted from 0, to share the "
        "work among n machines; then --merge",
    )
    parser.add_argument(
        "--merge",
        action="store_true",
        help="read no shards; make dataset.fsi from the indexes of all parts",
    )
    add_key(parser)
    parser.add_argument(
        "--again",
        action="store_true",
        help="index shards whose index is fresh, too",
    )
    parser.add_output(json="print a JSON object for each index")
    parser.set_defaults(run=cmd_index)
