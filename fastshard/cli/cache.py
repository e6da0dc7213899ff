"""Command ``cache``: local copies of remote shards."""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Sequence

from fastshard._util.arguments import Parser
from fastshard._util.paths.urls import is_remote, redact, scheme_of, url_basename
from fastshard._util.progress import byte_bar
from fastshard._util.terminal import UsageError, print_error, write_line, write_note
from fastshard.cli.common import (
    Commands,
    add_remote,
    find_shards,
    get_copy_settings,
    get_remote_options,
    get_settings,
    parse_sources,
)
from fastshard.errors import FastshardError, ShardNotFoundError
from fastshard.formats.registry import Format, scheme_format
from fastshard.remote.file import cache_key, default_cache_dir
from fastshard.remote.options import Settings

__all__ = ["add_cache"]

NamedUrl = tuple[Format, str]
Download = Callable[[str, Settings, Callable[[int, int], object]], int]


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

    cache_dir = get_cache_dir(args)
    urls = None
    if args.urls:
        others, named = split_schemes(args.urls)
        urls = list(map(cache_name, find_cached(others)))
        for found, url in named:
            urls += found.resolve(url, {"cache_dir": cache_dir})[0]
    freed = clear(cache_dir, urls)
    if args.json:
        write_line(json.dumps({"freed_bytes": freed}))
    else:
        write_note(f"{freed:,} bytes freed")
    return 0 if freed or urls is None else 1


def find_cached(sources: Sequence[str]) -> list[str]:
    """Return the shards of some sources; local ones may be gone since."""
    found: list[str] = []
    for source in sources:
        try:
            found += find_shards(parse_sources([source]), Settings({}))
        except ShardNotFoundError:
            if is_remote(source):
                raise
            found.append(source)
    return found


def cache_name(shard: str) -> str:
    """Return the name in the cache of a shard's path or URL."""
    return cache_key(shard) if is_remote(shard) else os.path.abspath(shard)


def cmd_warm(args: argparse.Namespace) -> int:
    """Copy whole shards into the cache."""
    from fastshard.cli.download import download_shard

    others, named = split_schemes(args.sources)
    if others and args.cache_dir is None:
        raise UsageError("warm downloads into a cache: give --cache-dir")
    done = []
    for found, url in named:
        shards, settings = found.resolve(url, get_remote_options(args))
        done += [warm(each, settings, args.json, found.download) for each in shards]
    sources = parse_sources(others)
    has_urls = any(source.urls for source in sources)
    remote = get_settings(sources, args) if has_urls else None
    for shard in find_shards(sources, remote):
        used = remote if is_remote(shard) else get_copy_settings(sources, args)
        assert used is not None
        name = shard if is_remote(shard) else os.path.abspath(shard)
        done.append(warm(name, used, args.json, download_shard))
    return 0 if all(done) else 1


def split_schemes(sources: Sequence[str]) -> tuple[list[str], list[NamedUrl]]:
    """Return the sources that any command reads, and those of one format's schemes."""
    others: list[str] = []
    named: list[NamedUrl] = []
    for source in sources:
        found = scheme_format(scheme_of(source)) if "://" in source else None
        if found is None:
            others.append(source)
        else:
            named.append((found, source))
    return others, named


def warm(url: str, remote: Settings, as_json: bool, download: Download) -> bool:
    """Download one shard, and return whether that succeeded."""
    name = url_basename(url)
    with byte_bar(None, name) as bar:

        def show(done: int, nbytes: int) -> None:
            bar.total = nbytes
            bar.update(done - bar.n)

        try:
            nbytes = download(url, remote, show)
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
        help="list, remove or make the copies of shards that are far",
        usage="fastshard cache [--help] COMMAND ...",
        description="List, remove or make the copies of remote shards, and of local\n"
        "ones that are read with --cache-dir.",
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
        "and its URL or path.",
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
        help="remove the copies of some shards, or all",
        usage="fastshard cache clear [OPTION]... [SHARD]...",
        description="Remove the copies of some shards, by URL or path, or all.",
        examples=[
            (
                "one shard",
                "fastshard cache clear --cache-dir kept "
                "hf://datasets/me/pictures/train-0000.tar",
            ),
            (
                "the blobs of a dataset",
                "fastshard cache clear at://did:plc:.../science.alt.dataset.entry/...",
            ),
            ("everything", "fastshard cache clear --cache-dir kept"),
        ],
    )
    parser.add_argument(
        "urls",
        nargs="*",
        metavar="SHARD",
        help="URLs or paths of shards to remove (default: all)",
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
        help="download whole shards, or copy them",
        usage="fastshard cache warm --cache-dir DIR [OPTION]... SHARD...",
        description="Copy whole shards and their indexes into a cache, which then\n"
        "reads without a network. Compares a shard with the sha256 in the\n"
        "JSON index beside it, and blobs of at:// URLs with their CIDs; these are\n"
        "kept in the user's cache by default. Prints the size of each shard in\n"
        "bytes.",
        examples=[
            (
                "two shards",
                "fastshard cache warm --cache-dir kept "
                "'hf://datasets/me/pictures/train-{0000..0001}.tar'",
            ),
            (
                "the blobs of a dataset, into the user's cache",
                "fastshard cache warm at://did:plc:.../science.alt.dataset.entry/...",
            ),
        ],
    )
    parser.add_argument(
        "sources",
        nargs="+",
        metavar="SHARD",
        help="shards, as 'https://host/train-{0000..0099}.tar', a folder of hf:// or "
        "s3://, the at:// URI of a dataset or a blob; or paths, of a network disk",
    )
    add_remote(parser)
    parser.add_output(json="print a JSON object for each shard")
    parser.set_defaults(run=cmd_warm)
