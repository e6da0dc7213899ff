"""``cache``: what is kept on this machine of remote datasets."""

from __future__ import annotations

import argparse
import json
import time

from fastshard._util.progress import bar_type
from fastshard._util.terminal import UsageError, escape_line, write_line
from fastshard.cli.common import (
    Commands,
    add_sources,
    complain,
    parse_sources,
    settings_in,
    shards_in,
)
from fastshard.errors import FastshardError
from fastshard.remote.file import cache_key, default_cache_dir
from fastshard.remote.options import Settings
from fastshard.remote.urls import url_basename

__all__ = ["add_cache"]


def folder_of(args: argparse.Namespace) -> str:
    folder: str | None = args.cache_dir or default_cache_dir()
    if folder is None:
        raise FastshardError("there is no cache: give --cache-dir")
    return folder


def cmd_ls(args: argparse.Namespace) -> int:
    """List what is kept, what was used last first."""
    from fastshard.remote.cache.directory import list_objects

    for found in list_objects(folder_of(args)):
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
    """Remove what is kept: of some URLs, or all."""
    from fastshard.remote.cache.directory import clear

    urls = None
    if args.urls:
        shards = shards_in(parse_sources(args.urls), Settings({}))
        urls = [cache_key(url) for url in shards]
    freed = clear(folder_of(args), urls)
    write_line(f"{freed:,} bytes freed")
    return 0 if freed or urls is None else 1


def cmd_warm(args: argparse.Namespace) -> int:
    """Keep whole shards, so that they are read from this machine."""
    if args.cache_dir is None:
        raise UsageError(
            "warm keeps shards where others look for them: give --cache-dir"
        )
    sources = parse_sources(args.sources)
    remote = settings_in(sources, args)
    if remote is None:
        raise UsageError("what is here need not be kept: give URLs")
    done = [warm(url, remote) for url in shards_in(sources, remote)]
    return 0 if all(done) else 1


def warm(url: str, remote: Settings) -> bool:
    """Keep one shard; say whether it was done."""
    from fastshard.cli.download import download_shard

    name = url_basename(url)
    with bar_type()(
        unit="B", unit_scale=True, desc=escape_line(name), leave=False, disable=None
    ) as bar:

        def show(done: int, nbytes: int) -> None:
            bar.total = nbytes
            bar.update(done - bar.n)

        try:
            asked = download_shard(url, remote, show)
        except (FastshardError, OSError) as error:
            complain(error)
            return False
    write_line(f"{asked:>15,}  {name}")
    return True


def add_cache(commands: Commands) -> None:
    parser = commands.add_parser("cache", help=__doc__.partition(": ")[2].strip(" .\n"))
    parts = parser.add_subparsers(required=True, metavar="COMMAND")
    listed = parts.add_parser("ls", help=cmd_ls.__doc__)
    listed.add_argument("--json", action="store_true", help="one JSON object a line")
    listed.set_defaults(run=cmd_ls)
    cleared = parts.add_parser("clear", help=cmd_clear.__doc__)
    cleared.add_argument("urls", nargs="*", metavar="URL")
    cleared.set_defaults(run=cmd_clear)
    for part in (listed, cleared):
        part.add_argument("--cache-dir", metavar="DIR", help="the user's without it")
    warmed = parts.add_parser("warm", help=cmd_warm.__doc__)
    add_sources(warmed)
    warmed.set_defaults(run=cmd_warm)
