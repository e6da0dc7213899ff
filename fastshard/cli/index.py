"""``index``: making indexes."""

from __future__ import annotations

import argparse

from fastshard._util.terminal import write_line
from fastshard.cli.common import Commands, add_sources, complain, remote_of

__all__ = ["add_index"]


def cmd_index(args: argparse.Namespace) -> int:
    """Make an index beside each shard, and dataset.fsi for all of them."""
    from fastshard.dataset.build_index import build_index, merge_indexes, parse_part

    source = args.sources[0] if len(args.sources) == 1 else args.sources
    try:
        part = None if args.part is None else parse_part(args.part)
    except ValueError as error:
        complain(error)
        return 2
    if args.merge and (part is not None or args.format != "fsi"):
        complain("--merge goes with no --part, and with the format fsi alone")
        return 2
    remote = remote_of(args)
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
        complain(f"{error}; give another directory for indexes with --out")
        return 1
    for path in made:
        write_line(path)
    return 0


def positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError
    return number


def add_index(commands: Commands) -> None:
    parser = commands.add_parser("index", help=cmd_index.__doc__)
    add_sources(parser)
    formats = ("fsi", "json", "idx", "tar.idx", "wids")
    parser.add_argument("--format", choices=formats, default="fsi")
    parser.add_argument("--out", metavar="DIR", help="put indexes there")
    parser.add_argument(
        "--threads", type=positive, metavar="N", help="one a processor without it"
    )
    parser.add_argument("--hash", action="store_true", help="record checksums too")
    parser.add_argument(
        "--part", metavar="i/n", help="every n-th shard from i on, i from 0 to n-1"
    )
    parser.add_argument(
        "--merge", action="store_true", help="make dataset.fsi of what parts made"
    )
    parser.add_argument("--key", choices=("first", "last"), default="first")
    parser.add_argument("--again", action="store_true", help="fresh ones too")
    parser.set_defaults(run=cmd_index)
