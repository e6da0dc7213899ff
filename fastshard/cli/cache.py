"""Command ``cache``: local copies of remote shards."""

from __future__ import annotations

import argparse
import json
import time

from fastshard._util.progress import bar_type
from fastshard._util.terminal import UsageError, escape_line, write_line
from fastshard.cli.common import (
    Commands,
    add_sources,
    find_shards,
    get_settings,
    parse_sources,
    print_error,
)
from fastshard.errors import FastshardError
from fastshard.remote.file import cache_key, default_cache_dir
from fastshard.remote.options import Settings
from fastshard.remote.urls import url_basename

__all__ = ["add_cache"]


def get_cache_dir(args: argparse.Namespace) -> str:
    cache_dir: str | None = args.cache_dir or default_cache_dir()
    if cache_dir is None:
        raise FastshardError("no cache directory is known: give --cache-dir")
    return cache_dir


def cmd_ls(args: argparse.Namespace) -> int:
    """List the cached objects, the most recently used first."""
    from fastshard.remote.cache.directory import list_objects

    for found in list_objects(get_cache_dir(args)):
        if args.json:
            write_line(json.dumps(found._asdict()))
            continue
        used = time.strftime("%Y-%m-%d %H:%M", time.localtime(found.used_ns / 1e9))
        whole = "whole" if found.whole else "part"
        write_line(
            f"{found.disk_bytes:>15,}  {whole:5}  {used}  {found.url or '(damaged)'}"
        )
    return 0


def cmd_clear(args: argparse.Namespace) -> int:
    """Remove the cached bytes of some URLs, or of all."""
    from fastshard.remote.cache.directory import clear

    urls = None
    if args.urls:
        shards = find_shards(parse_sources(args.urls), Settings({}))
        urls = [cache_key(url) for url in shards]
    freed = clear(get_cache_dir(args), urls)
    write_line(f"{freed:,} bytes freed")
    return 0 if freed or urls is None else 1


def cmd_warm(args: argparse.Namespace) -> int:
    """Download whole shards into the cache."""
    if args.cache_dir is None:
        raise UsageError("warm downloads into a cache: give --cache-dir")
    sources = parse_sources(args.sources)
    remote = get_settings(sources, args)
    if remote is None:
        raise UsageError("local shards need no cache: give URLs")
    done = [warm(url, remote) for url in find_shards(sources, remote)]
    return 0 if all(done) else 1


def warm(url: str, remote: Settings) -> bool:
    """Download one shard, and return whether that succeeded."""
    from fastshard.cli.download import download_shard

    name = url_basename(url)
    with bar_type()(
        unit="B", unit_scale=True, desc=escape_line(name), leave=False, disable=None
    ) as bar:

        def show(done: int, nbytes: int) -> None:
            bar.total = nbytes
            bar.update(done - bar.n)

        try:
            received = download_shard(url, remote, show)
        except (FastshardError, OSError) as error:
            print_error(error)
            return False
    write_line(f"{received:>15,}  {name}")
    return True


def add_cache(commands: Commands) -> None:
    parser = commands.add_parser(
        "cache", help="Manage the local copies of remote shards."
    )
    parts = parser.add_subparsers(required=True, metavar="COMMAND")
    listed = parts.add_parser("ls", help=cmd_ls.__doc__)
    listed.add_argument(
        "--json", action="store_true", help="print one JSON object per line"
    )
    listed.set_defaults(run=cmd_ls)
    cleared = parts.add_parser("clear", help=cmd_clear.__doc__)
    cleared.add_argument("urls", nargs="*", metavar="URL")
    cleared.set_defaults(run=cmd_clear)
    for part in (listed, cleared):
        part.add_argument(
            "--cache-dir", metavar="DIR", help="default: the user's cache directory"
        )
    warmed = parts.add_parser("warm", help=cmd_warm.__doc__)
    add_sources(warmed)
    warmed.set_defaults(run=cmd_warm)
