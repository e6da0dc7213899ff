"""The command line: look at shards, check them, try them.

Data goes to stdout, messages to stderr. Exit status: 0, 1 for a fault in the
data, 2 for wrong usage.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import fastshard
from fastshard.errors import FastshardError, MemberNotFoundError
from fastshard.formats.tar import Progress, TarShard, open_tar

if TYPE_CHECKING:
    from fastshard.verify import Fault

Commands = Any  # argparse's own type for this is private

BAR_DELAY = 1  # seconds before a progress bar shows
PERCENTILES = (0, 10, 50, 90, 99, 100)


def complain(message: object) -> None:
    """Say on stderr what went wrong."""
    print(f"fastshard: {message}", file=sys.stderr)


def shown(name: str) -> str:
    """Write a name on one line: what is not printable is escaped, as tar does."""
    if name.isprintable() and "\\" not in name:
        return name
    return "".join(
        c
        if c.isprintable() and c != "\\"
        else "\\\\"
        if c == "\\"
        else f"\\x{ord(c) - 0xDC00:02x}"
        if "\udc80" <= c <= "\udcff"
        else c.encode("unicode_escape").decode("ascii")
        for c in name
    )


@contextmanager
def progress_of(path: str) -> Iterator[Progress]:
    """Show a bar on a terminal for what takes longer than a second."""
    from tqdm import tqdm

    with tqdm(
        total=os.path.getsize(path),
        desc=os.path.basename(path),
        unit="B",
        unit_scale=True,
        delay=BAR_DELAY,
        leave=False,
        disable=None,  # on a terminal only
    ) as bar:

        def show(done: int) -> None:
            bar.update(done - bar.n)

        yield show


def opened(path: str) -> TarShard:
    """Open a shard, with a bar."""
    with progress_of(path) as progress:
        return open_tar(path, progress=progress)


def each_shard(paths: Sequence[str]) -> Iterator[tuple[str, TarShard | None]]:
    """Open shards one by one; those that fail are complained about, and None."""
    for path in paths:
        try:
            shard = opened(path)
        except (FastshardError, OSError) as error:
            complain(error)
            yield path, None
        else:
            with shard:
                yield path, shard


def cmd_ls(args: argparse.Namespace) -> int:
    """List the members of shards."""
    status = 0
    for path, shard in each_shard(args.shards):
        if shard is None:
            status = 1
            continue
        extents = zip(
            shard.names, shard.offsets.tolist(), shard.sizes.tolist(), strict=True
        )
        for name, offset, size in extents:
            if args.json:
                member = {"shard": path, "name": name, "offset": offset, "size": size}
                print(json.dumps(member))
            elif args.long:
                print(f"{offset:>15} {size:>13}  {shown(name)}")
            else:
                print(shown(name))
    return status


def add_ls(commands: Commands) -> None:
    parser = commands.add_parser("ls", help=cmd_ls.__doc__)
    parser.add_argument("shards", nargs="+", metavar="SHARD")
    parser.add_argument(
        "-l", "--long", action="store_true", help="offset and size, in bytes, too"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.set_defaults(run=cmd_ls)


def cmd_cat(args: argparse.Namespace) -> int:
    """Write members to stdout, one after another."""
    status = 0
    with opened(args.shard) as shard:
        for name in args.names:
            try:
                view = shard[name]
            except MemberNotFoundError as error:
                complain(error)
                status = 1
            else:
                sys.stdout.buffer.write(view)
    return status


def add_cat(commands: Commands) -> None:
    parser = commands.add_parser("cat", help=cmd_cat.__doc__)
    parser.add_argument("shard", metavar="SHARD")
    parser.add_argument("names", nargs="+", metavar="NAME")
    parser.set_defaults(run=cmd_cat)


def figures_of(shard: TarShard) -> dict[str, Any]:
    """Count what a shard holds."""
    import numpy as np

    from fastshard.verify import archive_after

    sizes = shard.sizes
    at: list[int] = []
    if len(sizes):
        at = np.percentile(sizes, PERCENTILES, method="lower").tolist()
    after = archive_after(shard)
    return {
        "shard": shard.path,
        "bytes": shard.nbytes,
        "members": len(shard),
        "member_bytes": int(sizes.sum()),
        "size_percentiles": dict(zip(map(str, PERCENTILES), at, strict=False)),
        "samples": len(shard.samples),
        "fields": shard.samples.grouping.field_counts(),
        "skipped": None if shard.skipped is None else dict(shard.skipped),
        "after_end": None if after is None else {"offset": after[0], "what": after[2]},
    }


def print_figures(figures: dict[str, Any]) -> None:
    def counts(of: dict[str, int]) -> str:
        return ", ".join(f"{shown(k)}: {n:,}" for k, n in of.items()) or "none"

    percentiles = figures["size_percentiles"].items()
    print(figures["shard"])
    print(f"  bytes    {figures['bytes']:,}")
    print(f"  members  {figures['members']:,} of {figures['member_bytes']:,} bytes")
    print("  sizes    " + (", ".join(f"p{p} {n:,}" for p, n in percentiles) or "none"))
    print(f"  samples  {figures['samples']:,}")
    print(f"  fields   {counts(figures['fields'])}")
    if figures["skipped"] is not None:
        print(f"  skipped  {counts(figures['skipped'])}")
    if figures["after_end"] is not None:
        print(
            f"  byte {figures['after_end']['offset']:,}: {figures['after_end']['what']}"
        )


def cmd_stat(args: argparse.Namespace) -> int:
    """Count members, bytes, sizes, fields and what is skipped."""
    status = 0
    for _, shard in each_shard(args.shards):
        if shard is None:
            status = 1
        elif args.json:
            print(json.dumps(figures_of(shard)))
        else:
            print_figures(figures_of(shard))
    return status


def add_stat(commands: Commands) -> None:
    parser = commands.add_parser("stat", help=cmd_stat.__doc__)
    parser.add_argument("shards", nargs="+", metavar="SHARD")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.set_defaults(run=cmd_stat)


def print_fault(fault: Fault, as_json: bool) -> None:
    if as_json:
        print(json.dumps(fault._asdict()))
        return
    member = "" if fault.member is None else f"{shown(fault.member)}: "
    print(f"{fault.path}: byte {fault.offset:,}: {member}{fault.reason}")


def cmd_verify(args: argparse.Namespace) -> int:
    """Check headers, bounds and names of shards."""
    from fastshard.verify import verify_shard

    status = 0
    for path in args.shards:
        try:
            with progress_of(path) as progress:
                shard, faults = verify_shard(path, progress)
        except OSError as error:
            complain(error)
            status = 1
            continue
        for fault in faults:
            print_fault(fault, args.json)
            status = 1
        if shard is not None:
            if not faults and not args.json:
                print(f"{path}: ok, {len(shard):,} members")
            shard.close()
    return status


def add_verify(commands: Commands) -> None:
    parser = commands.add_parser("verify", help=cmd_verify.__doc__)
    parser.add_argument("shards", nargs="+", metavar="SHARD")
    parser.add_argument(
        "--json", action="store_true", help="one JSON object a fault, a line each"
    )
    parser.set_defaults(run=cmd_verify)


def cmd_demo(args: argparse.Namespace) -> int:
    """Make two small shards, read them every way, compare with tarfile."""
    from fastshard.demo import run_demo

    return run_demo()


def add_demo(commands: Commands) -> None:
    parser = commands.add_parser("demo", help=cmd_demo.__doc__)
    parser.set_defaults(run=cmd_demo)


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="fastshard", description="Read sharded datasets at memory speed."
    )
    version = f"fastshard {fastshard.__version__}"
    parser.add_argument("--version", action="version", version=version)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for add in (add_ls, add_cat, add_stat, add_verify, add_demo):
        add(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; return its exit status."""
    args = make_parser().parse_args(argv)
    try:
        status: int = args.run(args)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader of our output, `head` say, has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (FastshardError, OSError) as error:
        complain(error)
        return 1
    except KeyboardInterrupt:
        return 130
    return status
