"""Command ``cache``: local copies of remote shards."""

from __future__ import annotations

import argparse
import json
import time

from fastshard._util.arguments import Parser
from fastshard._util.progress import byte_bar
from fastshard._util.terminal import UsageError, print_error, write_line, write_note
from fastshard.cli.common import (
    Commands,
    add_remote,
    find_shards,
    get_settings,
    parse_sources,
)
from fastshard.errors import FastshardError
from fastshard.remote.file import cache_key, default_cache_dir
from fastshard.remote.options import Settings
from fastshard.remote.urls import redact, url_basename

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
    if args.json:
        write_line(json.dumps({"freed_bytes": freed}))
    else:
        write_note(f"{freed:,} bytes freed")
    return 0 if freed or urls is None else 1


def cmd_warm(args: argparse.Namespace) -> int:
    """Download whole shards into the cache."""
    if args.cache_dir is None:
        raise UsageError("warm downloads into a cache: give --cache-dir")
    sources = parse_sources(args.sources)
    remote = get_settings(sources, args)
    if remote is None:
        raise UsageError("local shards need no cache: give URLs")
    done = [warm(url, remote, args.json) for url in find_shards(sources, remote)]
    return 0 if all(done) else 1


def warm(url: str, remote: Settings, as_json: bool) -> bool:
    """Download one shard, and return whether that succeeded."""
    from fastshard.cli.download import download_shard

    name = url_basename(url)
    with byte_bar(None, name) as bar:

        def show(done: int, nbytes: int) -> None:
            bar.total = nbytes
            bar.update(done - bar.n)

        try:
            nbytes = download_shard(url, remote, show)
        except (FastshardError, OSError) as error:
            bar.close()
            print_error(error)
            return False
    if as_json:
        write_line(json.dumps({"shard": redact(url), "bytes": nbytes}))
    else:
        write_note(f"{nbytes:>15,}  {name}")
    return True


def add_cache(commands: Commands) -> None:
    parser = commands.add_parser(
        "cache",
        help="list, remove or download the local copies of remote shards",
        usage="fastshard cache [--help] COMMAND ...",
        description="List, remove or download the local copies of remote shards.",
    )
    parts = parser.add_subparsers(metavar="COMMAND")
    add_cache_ls(parts)
    add_cache_clear(parts)
    add_cache_warm(parts)


def add_cache_ls(parts: Commands) -> None:
    parser = parts.add_parser(
        "ls",
        help="list the copies, the last used first",
        usage="fastshard cache ls [OPTION]...",
        description="List the copies, the last used first: bytes on disk, whether the\n"
        "object is whole or a part of it, the local time of its last use,\n"
        "and its URL.",
        examples=[
            ("the user's cache", "fastshard cache ls"),
            ("another cache", "fastshard cache ls --cache-dir kept"),
        ],
    )
    add_cache_dir(parser)
    parser.add_output(json="print a JSON object for each copy")
    parser.set_defaults(run=cmd_ls)


def add_cache_clear(parts: Commands) -> None:
    parser = parts.add_parser(
        "clear",
        help="remove the copies of some URLs, or all",
        usage="fastshard cache clear [OPTION]... [URL]...",
        description="Remove the copies of some URLs, or all.",
        examples=[
            (
                "one shard",
                "fastshard cache clear --cache-dir kept "
                "hf://datasets/me/pictures/train-0000.tar",
            ),
            ("everything", "fastshard cache clear --cache-dir kept"),
        ],
    )
    parser.add_argument(
        "urls", nargs="*", metavar="URL", help="shards to remove (default: all)"
    )
    add_cache_dir(parser)
    parser.add_output(json="print a JSON object with the bytes freed")
    parser.set_defaults(run=cmd_clear)


def add_cache_dir(parser: Parser) -> None:
    parser.add_argument(
        "--cache-dir",
        metavar="DIR",
        help="directory of the copies (default: FASTSHARD_CACHE, or "
        "~/.cache/fastshard)",
    )


def add_cache_warm(parts: Commands) -> None:
    parser = parts.add_parser(
        "warm",
        help="download whole shards",
        usage="fastshard cache warm --cache-dir DIR [OPTION]... URL...",
        description="Download whole shards and their indexes into a cache, which then\n"
        "reads without a network. Compares a shard with the sha256 in the\n"
        "JSON index beside it. Prints the size of each shard in bytes.",
        examples=[
            (
                "two shards",
                "fastshard cache warm --cache-dir kept "
                "'hf://datasets/me/pictures/train-{0000..0001}.tar'",
            ),
        ],
    )
    parser.add_argument(
        "sources",
        nargs="+",
        metavar="URL",
        help="shards, as 'https://host/train-{0000..0099}.tar', or a folder of "
        "hf:// or s3://",
    )
    add_remote(parser)
    parser.add_output(json="print a JSON object for each shard")
    parser.set_defaults(run=cmd_warm)
