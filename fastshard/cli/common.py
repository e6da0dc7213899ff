"""What the commands share: sources, messages, bars."""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn, TextIO

from fastshard._util.progress import bar_type
from fastshard._util.sizes import parse_size
from fastshard._util.terminal import UsageError, escape_line, write_line
from fastshard.dataset.listing import Location, list_shards, parse_source
from fastshard.errors import FastshardError
from fastshard.formats.folder import LocalFolder
from fastshard.formats.registry import Format, find_format
from fastshard.formats.tar import Progress, TarOptions, TarShard, open_tar
from fastshard.index.sidecar import sidecar_path
from fastshard.remote.options import RemoteOptions, Settings, make_settings
from fastshard.remote.urls import is_remote, url_basename

__all__ = [
    "Commands",
    "Parser",
    "add_remote",
    "add_sources",
    "complain",
    "dataset_in",
    "each_shard",
    "parse_sources",
    "progress_of",
    "quietly_warned",
    "remote_of",
    "settings_in",
    "shards_in",
]

Commands = Any  # argparse's own type for this is private

BAR_DELAY = 1  # seconds before a progress bar shows
SOURCE_HELP = "a tar, a directory, DIR/**, a glob, a brace list, or URLs"


class Parser(argparse.ArgumentParser):
    """A parser whose errors take one line, whatever file names a shell expanded."""

    def error(self, message: str) -> NoReturn:
        super().error(escape_line(message))


def size(text: str) -> int:
    """Parse a size that was given to a command."""
    try:
        return parse_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def complain(message: object) -> None:
    """Say on stderr what went wrong."""
    write_line(f"fastshard: {message}", file=sys.stderr)


def add_sources(parser: Any) -> None:
    parser.add_argument("sources", nargs="+", metavar="SOURCE", help=SOURCE_HELP)
    add_remote(parser)


def add_remote(parser: Any) -> None:
    """Declare how URLs are read. There is no token: a list of processes shows it."""
    remote = parser.add_argument_group("URLs")
    remote.add_argument(
        "--token-file",
        metavar="FILE",
        help="holds a token; for hf://, HF_TOKEN does too",
    )
    remote.add_argument("--cache-dir", metavar="DIR", help="keep what is read there")
    remote.add_argument(
        "--cache-limit", metavar="SIZE", type=size, help='of it, as "100GB"'
    )
    remote.add_argument(
        "--offline", action="store_true", help="read nothing but what is kept there"
    )


def remote_of(args: argparse.Namespace) -> RemoteOptions:
    """Return the options of a command for URLs."""
    options: RemoteOptions = {}
    if args.token_file is not None:
        try:
            with open(args.token_file, encoding="ascii") as file:
                options["token"] = file.read().strip()
        except (OSError, ValueError) as error:
            raise UsageError(f"--token-file: {error}") from None
    if args.cache_dir is not None:
        options["cache_dir"] = args.cache_dir
    if args.cache_limit is not None:
        options["cache_limit"] = args.cache_limit
    if args.offline and args.cache_dir is None:
        raise UsageError("--offline reads what is kept: give --cache-dir")
    if args.offline:
        options["offline"] = True
    return options


def parse_sources(sources: Sequence[str]) -> list[Location]:
    """Parse the sources of a command."""
    return list(map(parse_source, sources))


def settings_in(
    sources: Sequence[Location], args: argparse.Namespace
) -> Settings | None:
    """Return how sources are read, if they are not on this machine."""
    urls = [url for source in sources for url in source.urls]
    return make_settings(remote_of(args), urls) if urls else None


def shards_in(sources: Sequence[Location], remote: Settings | None = None) -> list[str]:
    """Return the shards of some sources, in order.

    A file that is named is a shard whatever it is called: opening it says more
    than its suffix.
    """
    found: list[str] = []
    for source in sources:
        if source.kind == "url":
            found += list_shards(source, remote=remote).paths
            continue
        path = str(source.parts[0])
        pattern = any(c in path for c in "*?[{") or "::" in path
        named = source.kind == "path" and (os.path.exists(path) or not pattern)
        if named and not path.endswith(".json"):
            found.append(path)
        else:
            found += list_shards(source).paths
    return found


def dataset_in(sources: Sequence[Location]) -> tuple[Format, str] | None:
    """Return the dataset that sources name, and its format; None: they are tars."""
    for source in sources:
        if source.kind != "folder":
            continue
        path = str(source.parts[0])
        found = find_format(LocalFolder(path))
        if found is not None and len(sources) > 1:
            raise UsageError(f"{path} is a {found.name} dataset: name it alone")
        if found is not None:
            return found, path
    return None


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
    with bar_type()(
        total=None if is_remote(path) else os.path.getsize(path),
        desc=escape_line(url_basename(path)),
        unit="B",
        unit_scale=True,
        delay=BAR_DELAY,
        leave=False,
        disable=None,  # on a terminal only
    ) as bar:

        def show(done: int) -> None:
            bar.update(done - bar.n)

        yield show


def opened(path: str, remote: Settings | None) -> TarShard:
    """Open a shard, with a bar where it has to be scanned."""
    if is_remote(path):
        with progress_of(path) as progress:
            return open_tar(path, TarOptions(remote=remote), progress=progress)
    if os.path.exists(sidecar_path(path, "fsi")):
        return open_tar(path)
    with progress_of(path) as progress:
        return open_tar(path, progress=progress)


def each_shard(
    paths: Sequence[str], remote: Settings | None = None
) -> Iterator[tuple[str, TarShard | None]]:
    """Open shards one by one; those that fail are complained about, and None."""
    for path in paths:
        try:
            shard = opened(path, remote)
        except (FastshardError, OSError) as error:
            complain(error)
            yield path, None
        else:
            with shard:
                yield path, shard
