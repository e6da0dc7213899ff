"""Command ``index``: indexes of shards and of the dataset."""

from __future__ import annotations

import argparse

from fastshard._util.terminal import write_line
from fastshard.cli.common import Commands, add_sources, get_remote_options, print_error

__all__ = ["add_index"]


def cmd_index(args: argparse.Namespace) -> int:
    """Build an index beside each shard, and dataset.fsi for the dataset."""
    from fastshard.dataset.build_index import build_index, merge_indexes, parse_part

    source = args.sources[0] if len(args.sources) == 1 else args.sources
    try:
        part = None if args.part is None else parse_part(args.part)
    except ValueError as error:
        print_error(error)
        return 2
    if args.merge and (part is not None or args.format != "fsi"):
        print_error("--merge requires --format fsi, and no --part")
        return 2
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
        print_error(f"{error}; choose another directory for the indexes with --out")
        return 1
    for path in made:
        write_line(path)
    return 0


def parse_positive(text: str) -> int:
    """Parse an int of at least 1."""
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be an int of at least 1, got {text!r}")
    return number


def add_index(commands: Commands) -> None:
    parser = commands.add_parser("index", help=cmd_index.__doc__)
    add_sources(parser)
    formats = ("fsi", "json", "idx", "tar.idx", "wids")
    parser.add_argument("--format", choices=formats, default="fsi", help="default: fsi")
    parser.add_argument(
        "--out", metavar="DIR", help="write the indexes to this directory"
    )
    parser.add_argument(
        "--threads",
        type=parse_positive,
        metavar="N",
        help="number of threads; default: one per processor",
    )
    parser.add_argument("--hash", action="store_true", help="record checksums")
    parser.add_argument(
        "--part", metavar="i/n", help="index every n-th shard from i on, 0 <= i < n"
    )
    parser.add_argument(
        "--merge",
        action="store_true",
        help="build dataset.fsi from the indexes of all parts",
    )
    parser.add_argument(
        "--key",
        choices=("first", "last"),
        default="first",
        help="dot of a name's last part that ends the key; default: first",
    )
    parser.add_argument(
        "--again", action="store_true", help="rebuild fresh indexes too"
    )
    parser.set_defaults(run=cmd_index)
