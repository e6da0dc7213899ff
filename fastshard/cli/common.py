"""Shared parts of the commands: sources, remote options, messages, progress bars."""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn, TextIO, TypeAlias

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
    "find_dataset",
    "find_shards",
    "get_remote_options",
    "get_settings",
    "open_each",
    "parse_sources",
    "print_error",
    "short_warnings",
    "show_progress",
]

Commands: TypeAlias = Any  # argparse's own type is private, and no generic at run time

BAR_DELAY = 1  # seconds before a progress bar shows
SOURCE_HELP = "tar file, directory, DIR/**, glob, brace list, or URL"


class Parser(argparse.ArgumentParser):
    """Argument parser whose errors take one line, whatever file names they contain."""

    def error(self, message: str) -> NoReturn:
        super().error(escape_line(message))


def parse_size_argument(text: str) -> int:
    """Parse an option's size, as ``"100GB"``, to bytes."""
    try:
        return parse_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def print_error(message: object) -> None:
    """Print an error on stderr."""
    write_line(f"fastshard: {message}", file=sys.stderr)


def add_sources(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("sources", nargs="+", metavar="SOURCE", help=SOURCE_HELP)
    add_remote(parser)


def add_remote(parser: argparse.ArgumentParser) -> None:
    """Add the options for URLs.

    A token is read from a file, because `ps` shows command lines.
    """
    remote = parser.add_argument_group("URLs")
    remote.add_argument(
        "--token-file",
        metavar="FILE",
        help="read the access token from FILE; hf:// also uses HF_TOKEN",
    )
    remote.add_argument(
        "--cache-dir", metavar="DIR", help="cache remote bytes in this directory"
    )
    remote.add_argument(
        "--cache-limit",
        metavar="SIZE",
        type=parse_size_argument,
        help='maximum size of the cache, as "100GB"',
    )
    remote.add_argument(
        "--offline", action="store_true", help="read from the cache only"
    )


def get_remote_options(args: argparse.Namespace) -> RemoteOptions:
    """Return a command's options for URLs."""
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
        raise UsageError("--offline reads from the cache: give --cache-dir")
    if args.offline:
        options["offline"] = True
    return options


def parse_sources(sources: Sequence[str]) -> list[Location]:
    """Parse a command's sources."""
    return list(map(parse_source, sources))


def get_settings(
    sources: Sequence[Location], args: argparse.Namespace
) -> Settings | None:
    """Return the settings for remote sources, or None if all are local."""
    urls = [url for source in sources for url in source.urls]
    return make_settings(get_remote_options(args), urls) if urls else None


def find_shards(
    sources: Sequence[Location], remote: Settings | None = None
) -> list[str]:
    """Return the shards of some sources, in order.

    An explicit file is a shard with any suffix; opening it reports what it is.
    """
    found: list[str] = []
    for source in sources:
        if source.kind == "url":
            found += list_shards(source, remote=remote).paths
            continue
        path = str(source.parts[0])
        pattern = any(c in path for c in "*?[{") or "::" in path
        is_file = source.kind == "path" and (os.path.exists(path) or not pattern)
        if is_file and not path.endswith(".json"):
            found.append(path)
        else:
            found += list_shards(source).paths
    return found


def find_dataset(sources: Sequence[Location]) -> tuple[Format, str] | None:
    """Return the format and path of a dataset directory, or None for tar shards."""
    for source in sources:
        if source.kind != "folder":
            continue
        path = str(source.parts[0])
        found = find_format(LocalFolder(path))
        if found is not None and len(sources) > 1:
            raise UsageError(
                f"{path} is a {found.name} dataset: give it as the only source"
            )
        if found is not None:
            return found, path
    return None


@contextmanager
def short_warnings() -> Iterator[None]:
    """Print warnings as one line on stderr, without a code location."""

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        print_error(f"warning: {message}")

    with warnings.catch_warnings():
        warnings.simplefilter("always", UserWarning)
        warnings.showwarning = show
        yield


@contextmanager
def show_progress(path: str) -> Iterator[Progress]:
    """Show a progress bar on a terminal, after a second."""
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


def open_with_progress(path: str, remote: Settings | None) -> TarShard:
    """Open a shard, with a progress bar if it may be scanned."""
    if is_remote(path):
        with show_progress(path) as progress:
            return open_tar(path, TarOptions(remote=remote), progress=progress)
    if os.path.exists(sidecar_path(path, "fsi")):
        return open_tar(path)
    with show_progress(path) as progress:
        return open_tar(path, progress=progress)


def open_each(
    paths: Sequence[str], remote: Settings | None = None
) -> Iterator[tuple[str, TarShard | None]]:
    """Open shards one by one; print an error and yield None for one that fails."""
    for path in paths:
        try:
            shard = open_with_progress(path, remote)
        except (FastshardError, OSError) as error:
            print_error(error)
            yield path, None
        else:
            with shard:
                yield path, shard
