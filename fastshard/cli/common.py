"""What the commands share: sources, messages, bars."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TextIO

from fastshard.errors import FastshardError
from fastshard.expand import list_shards
from fastshard.formats.tar import Progress, TarShard, open_tar
from fastshard.index import sidecar

__all__ = [
    "Commands",
    "add_sources",
    "complain",
    "each_shard",
    "progress_of",
    "quietly_warned",
    "shards_in",
    "shown",
]

Commands = Any  # argparse's own type for this is private

BAR_DELAY = 1  # seconds before a progress bar shows
SOURCE_HELP = "a tar, a directory, DIR/**, a glob, or a brace list"


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


def add_sources(parser: Any) -> None:
    parser.add_argument("sources", nargs="+", metavar="SOURCE", help=SOURCE_HELP)


def shards_in(sources: Sequence[str]) -> list[str]:
    """Return the shards of some sources, in order.

    A file that is named is a shard whatever it is called: opening it says more
    than its suffix.
    """
    found: list[str] = []
    for source in sources:
        pattern = any(c in source for c in "*?[{") or "::" in source
        named = os.path.exists(source) or not pattern
        if named and not os.path.isdir(source) and not source.endswith(".json"):
            found.append(source)
        else:
            found += list_shards(source).paths
    return found


@contextmanager
def quietly_warned() -> Iterator[None]:
    """Show warnings as one line on stderr, without the place in the code."""

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        complain(f"warning: {message}")

    with warnings.catch_warnings():
        warnings.simplefilter("always", UserWarning)
        warnings.showwarning = show
        yield


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
    """Open a shard, with a bar where it has to be scanned."""
    if os.path.exists(sidecar(path, "fsi")):
        return open_tar(path)
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
