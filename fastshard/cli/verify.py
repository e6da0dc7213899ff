"""Command ``verify``: faults of shards and their indexes."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fastshard._util.arguments import add_reading
from fastshard._util.paths.urls import is_remote, join_url, redact
from fastshard._util.terminal import paint, print_error, write_fault, write_note
from fastshard.cli.common import (
    Commands,
    ShardProgress,
    add_packed,
    add_sources,
    find_as,
    find_shards,
    get_reading_of,
    get_settings,
    parse_sources,
)
from fastshard.errors import FastshardError
from fastshard.remote.file import try_open_remote
from fastshard.remote.options import Settings

if TYPE_CHECKING:
    from fastshard.dataset.verify import Fault

__all__ = ["add_verify"]


def write_faults(where: str, faults: Sequence[Fault], as_json: bool) -> int:
    for fault in faults:
        write_fault(fault, as_json)
    if not faults and not as_json:
        write_ok(where)
    return 1 if faults else 0


def write_ok(where: str, what: str = "") -> None:
    write_note(f"{where}: ", paint("ok", "good"), what)


def verify_one_shard(
    path: str,
    args: argparse.Namespace,
    remote: Settings | None,
    bar: ShardProgress,
    reading: Mapping[str, Any],
) -> int:
    from fastshard.dataset.verify import verify_shard

    try:
        shard, faults = verify_shard(
            path, bar.open(path), hashes=args.hash, remote=remote, **reading
        )
    except OSError as error:
        bar.clear()
        print_error(error)
        return 1
    bar.clear()
    for fault in faults:
        write_fault(fault, args.json)
    if shard is not None:
        if not faults and not args.json:
            write_ok(redact(path), f", {len(shard):,} members")
        shard.close()
    return 1 if faults else 0


def check_dataset_index(
    paths: Sequence[str], as_json: bool, remote: Settings | None
) -> int:
    """Write the faults of the shards' ``dataset.fsi``, if it exists."""
    from fastshard.dataset.tarset import common_root
    from fastshard.dataset.verify import verify_dataset_index
    from fastshard.index.dataset_file import NAME

    root = common_root(paths)
    if remote is not None:
        where = join_url(root, NAME) if root else ""
        exists = bool(root) and try_open_remote(where, remote) is not None
    else:
        where = os.path.join(root, NAME)
        exists = os.path.exists(where)
    if not exists:
        return 0
    return write_faults(where, verify_dataset_index(where, paths, remote), as_json)


def cmd_verify(args: argparse.Namespace) -> int:
    """Check headers, bounds, names and indexes of shards."""
    sources = parse_sources(args.sources)
    remote = get_settings(sources, args)
    reading = get_reading_of(sources, args)
    found = find_as(args.tar_format, sources, remote, reading)
    if found is not None:
        check = found.format.verify
        faults = check(found.root, hashes=args.hash, **found.options)
        return write_faults(found.shown, faults, args.json)
    paths = find_shards(sources, remote)
    if remote is not None and not all(map(is_remote, paths)):
        raise FastshardError(
            "expected local or remote shards, got both: verify them separately"
        )
    status = 0
    with ShardProgress(paths) as bar:
        for path in paths:
            status |= verify_one_shard(path, args, remote, bar, reading)
            bar.end(path)
    if paths:
        status |= check_dataset_index(paths, args.json, remote)
    return status


def add_verify(commands: Commands) -> None:
    parser = commands.add_parser(
        "verify",
        help="look for damage in shards and their indexes",
        usage="fastshard verify [OPTION]... SOURCE...",
        description="Check the headers, bounds, names and end of each shard, and\n"
        "compare it with its indexes. Prints a line for each fault, or\n"
        "that a shard is ok.",
        examples=[
            ("all shards of a directory", "fastshard verify data"),
            ("faults only", "fastshard verify --quiet data"),
            (
                "checksums too, if index --hash wrote them",
                "fastshard verify --hash data",
            ),
        ],
    )
    add_sources(parser)
    add_packed(parser)
    add_reading(parser)
    parser.add_argument(
        "--hash",
        action="store_true",
        help="read all bytes and compare them with the checksums that the index "
        "records",
    )
    parser.add_output(json="print a JSON object for each fault; nothing for what is ok")
    parser.set_defaults(run=cmd_verify)
