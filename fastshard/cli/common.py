"""Shared parts of the commands: sources, remote options, messages, progress bars."""

from __future__ import annotations

import argparse
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any, NamedTuple, TextIO, TypeAlias

from fastshard._util.arguments import FLAGS, Parser, get_reading
from fastshard._util.options import EMPTY
from fastshard._util.paths.globs import SUFFIX, has_magic
from fastshard._util.paths.remote_options import RemoteOptions, select_local
from fastshard._util.paths.urls import Url, is_remote, redact, url_basename
from fastshard._util.progress import BAR_DELAY, byte_bar, make_bar
from fastshard._util.sizes import parse_size
from fastshard._util.terminal import (
    UsageError,
    describe_error,
    escape_line,
    is_quiet,
    print_error,
)
from fastshard.dataset.paths.folders import (
    FormatFolders,
    find_folders,
    list_or_find,
)
from fastshard.dataset.paths.listing import Location, list_shards, parse_source
from fastshard.errors import FastshardError
from fastshard.formats.foreign import describe_file
from fastshard.formats.registry import Format, tar_format
from fastshard.formats.tar import (
    Progress,
    TarOptions,
    TarShard,
    copy_settings,
    open_tar,
    warn_unread,
)
from fastshard.index.contents import IndexWarnings
from fastshard.index.sidecar import count_json
from fastshard.remote.options import Settings, make_settings

__all__ = [
    "Commands",
    "FoundDataset",
    "ShardProgress",
    "add_packed",
    "add_remote",
    "add_sources",
    "find_as",
    "find_dataset",
    "find_shards",
    "get_copy_settings",
    "get_reading_of",
    "get_remote_options",
    "get_settings",
    "open_each",
    "parse_sources",
    "short_warnings",
]

Commands: TypeAlias = Any  # argparse's own type is private, and no generic at run time

SOURCE_HELP = (
    "tar file; directory of tar files, or DIR/** with those below it; "
    "'data/*.tar'; 'train-{0000..0099}.tar'; or a URL: https://, hf://, s3://, gs://"
)


def parse_size_argument(text: str) -> int:
    """Parse an option's size, as ``"100GB"``, to bytes."""
    try:
        return parse_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def add_sources(parser: Parser) -> None:
    """Add the sources of a command, and the options for URLs."""
    parser.add_argument("sources", nargs="+", metavar="SOURCE", help=SOURCE_HELP)
    add_remote(parser)


def add_packed(parser: Parser) -> None:
    """Add the option that reads tar shards of msgpack payloads."""
    parser.add_argument(
        "--packed",
        dest="tar_format",
        action="store_const",
        const="packed",
        help="of tar shards: the samples are the maps in members .msgpack; show their "
        "fields, not the members",
    )


def add_remote(parser: Parser) -> None:
    """Add the options for URLs.

    A token is read from a file, because `ps` shows command lines.
    """
    remote = parser.add_argument_group("URLs")
    remote.add_argument(
        "--token-file",
        metavar="FILE",
        help="file with the access token; by default HF_TOKEN, for hf:// only",
    )
    remote.add_argument(
        "--cache-dir",
        metavar="DIR",
        help="keep read bytes in DIR, and read them from there the next time "
        "(default: keep nothing)",
    )
    remote.add_argument(
        "--cache-limit",
        metavar="SIZE",
        type=parse_size_argument,
        help="remove the least recently used bytes of the cache above SIZE, "
        "such as 100GB (default: no limit)",
    )
    remote.add_argument(
        "--offline",
        action="store_true",
        help="read from --cache-dir only; connect to no server",
    )


def get_remote_options(args: argparse.Namespace) -> RemoteOptions:
    """Return a command's options for URLs."""
    options: RemoteOptions = {}
    if args.token_file is not None:
        try:
            with open(args.token_file, encoding="ascii") as file:
                options["token"] = file.read().strip()
        except (OSError, ValueError) as error:
            raise UsageError(f"--token-file {describe_error(error)}") from None
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
    options = get_remote_options(args)
    if urls:
        return make_settings(options, urls)
    for name in options:
        flag = "--token-file" if name == "token" else f"--{name.replace('_', '-')}"
        raise UsageError(
            f"{flag} is an option for URLs, and does nothing for local files here: "
            "leave it out"
        )
    return None


def get_reading_of(
    sources: Sequence[Location], args: argparse.Namespace
) -> dict[str, Any]:
    """Return the options of reading that differ from their defaults."""
    reading = get_reading(args)
    if "mode" in reading and all(source.urls for source in sources):
        raise UsageError(
            "--mode is an option for local files, and does nothing for URLs"
        )
    return reading


def get_copy_settings(
    sources: Sequence[Location], args: argparse.Namespace
) -> Settings | None:
    """Return the settings for local files behind --cache-dir; None without it."""
    options = get_remote_options(args)
    if any(source.urls for source in sources):
        options = select_local(options)
    try:
        return copy_settings(options)
    except ValueError as error:
        raise UsageError(str(error)) from None


def find_shards(
    sources: Sequence[Location], remote: Settings | None = None
) -> list[str]:
    """Return the shards of some sources, in order.

    An explicit file is a shard with any suffix; opening it reports its kind. Indexes
    beside shards, as a shell's ``data/*`` gives them, are left out.
    """
    found: list[str] = []
    indexes: list[str] = []
    for source in sources:
        if source.kind == "url":
            found += list_shards(source, remote=remote).paths
            continue
        path = str(source.parts[0])
        pattern = any(c in path for c in "*?[{") or "::" in path
        is_file = source.kind == "path" and (os.path.exists(path) or not pattern)
        if is_file and path.endswith(".fsi"):
            indexes.append(path)
        elif is_file and not path.endswith(".json"):
            found.append(path)
        else:
            found += list_shards(source).paths
    if indexes and not found:
        raise FastshardError(describe_file(indexes[0]))
    return found


class FoundDataset(NamedTuple):
    """A dataset of a format other than tar shards.

    Attributes
    ----------
    format : Format
    root : str or list of str
        The directory, or its URL; of several datasets, or of a format of tar shards,
        their paths or URLs.
    shown : str
        The root, for messages.
    options : dict
        Arguments of the format's `list_lines` and the like: ``remote``, for a URL, and
        those of its `Format.reading`.
    """

    format: Format
    root: Any
    shown: str
    options: dict[str, Any]

    def reading_by(self, reading: Mapping[str, Any]) -> FoundDataset:
        """Return the dataset with options from `get_reading`."""
        for name in reading:
            if name not in self.format.reading:
                raise UsageError(
                    f"{FLAGS[name]} is not an option of {self.format.name} datasets, "
                    f"as {self.shown} is: leave it out"
                )
        return self._replace(options=self.options | dict(reading))


def find_dataset(
    sources: Sequence[Location],
    remote: Settings | None,
    reading: Mapping[str, Any] = EMPTY,
) -> FoundDataset | None:
    """Return the dataset of a source that has a format, or None for tar shards."""
    found = [_find_dataset(source, remote) for source in sources]
    datasets = [dataset for dataset in found if dataset is not None]
    if not datasets:
        return None
    if len(sources) == 1:
        return datasets[0].reading_by(reading)
    roots = [root for dataset in datasets for root in _roots_of(dataset)]
    for dataset in datasets:
        joins = dataset.format.joins and dataset.format is datasets[0].format
        if not joins or len(datasets) < len(sources):
            raise UsageError(
                f"{dataset.shown} is a {dataset.format.name} dataset: give it as the "
                "only source"
            )
    shown = ", ".join(dataset.shown for dataset in datasets)
    return datasets[0]._replace(root=roots, shown=shown).reading_by(reading)


def _roots_of(dataset: FoundDataset) -> list[str]:
    return [dataset.root] if isinstance(dataset.root, str) else list(dataset.root)


def find_as(
    name: str | None,
    sources: Sequence[Location],
    remote: Settings | None,
    reading: Mapping[str, Any] = EMPTY,
) -> FoundDataset | None:
    """Return the dataset of a format of tar shards, or None; see `find_dataset`."""
    if name is None:
        return find_dataset(sources, remote, reading)
    paths = find_shards(sources, remote)
    options = {} if remote is None else {"remote": remote}
    if remote is not None and not all(map(is_remote, paths)):
        raise FastshardError("expected local or remote shards, got both")
    shown = ", ".join(redact(str(source.parts[0])) for source in sources)
    return FoundDataset(tar_format(name), paths, shown, options).reading_by(reading)


def _find_dataset(source: Location, remote: Settings | None) -> FoundDataset | None:
    """Return the datasets of a source, if it names folders with a format's mark."""
    root = source.parts[0]
    text = root.base if isinstance(root, Url) else root
    is_pattern = has_magic(text) and not text.endswith(SUFFIX)
    is_pattern &= not os.path.exists(text)
    if isinstance(root, Url) and (len(source.parts) > 1 or is_shard(root)):
        found = None
    else:
        found = find_folders(source, {}, settings=remote)
    if found is None and is_pattern:
        listed = list_or_find(source, {}, remote)
        found = listed if isinstance(listed, FormatFolders) else None
    if found is None:
        return None
    roots = found.roots
    if len(roots) > 1 and not found.format.joins:
        raise UsageError(
            f"{redact(roots[0])} is a {found.format.name} dataset: give it as the only "
            "source"
        )
    shown = ", ".join(map(redact, roots))
    options = {} if found.settings is None else {"remote": found.settings}
    return FoundDataset(
        found.format, roots if len(roots) > 1 else roots[0], shown, options
    )


def is_shard(url: Url) -> bool:
    """Return whether a URL names shards or their index, not a folder."""
    path = url.base.partition("://")[2].partition("/")[2]
    return path.endswith((SUFFIX, ".json")) or has_magic(url.base)


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
        if not is_quiet():
            print_error(message, is_warning=True)

    with warnings.catch_warnings():
        warnings.simplefilter("always", UserWarning)
        warnings.showwarning = show
        yield


class ShardProgress:
    """Progress bar over shards: in bytes, or in shards if some are remote."""

    def __init__(self, paths: Sequence[str]) -> None:
        self.counts_shards = len(paths) > 1 and any(map(is_remote, paths))
        self.is_remote = any(map(is_remote, paths))
        self.start = 0  # of the current shard
        self.paths = paths
        total = None if self.is_remote else sum(map(_file_size, paths))
        if self.counts_shards:
            self.bar = make_bar(len(paths), "", unit=" shards")
        else:
            self.bar = byte_bar(total, "")

    def __enter__(self) -> ShardProgress:
        return self

    def __exit__(self, *error: object) -> None:
        self.bar.close()

    def open(self, path: str) -> Progress:
        """Begin a shard; return the function that takes its bytes done."""
        self.start = self.bar.n
        self.bar.set_description(escape_line(url_basename(path)), refresh=False)
        if self.counts_shards:
            return lambda done: None
        return lambda done: self.bar.update(self.start + done - self.bar.n)

    def end(self, path: str) -> None:
        """End a shard."""
        if self.counts_shards:
            self.bar.update()
        elif not self.is_remote:
            self.bar.update(self.start + _file_size(path) - self.bar.n)

    def clear(self) -> None:
        """Remove the bar from the terminal until its next update."""
        if not self.bar.disable and self.bar.format_dict["elapsed"] >= BAR_DELAY:
            self.bar.clear()


def _file_size(path: str) -> int:
    try:
        return os.path.getsize(path)
    except OSError:
        return 0  # opening it reports the error


def open_each(
    paths: Sequence[str],
    remote: Settings | None = None,
    reading: Mapping[str, Any] = EMPTY,
) -> Iterator[tuple[str, TarShard | None]]:
    """Open shards one by one; print an error and yield None for one that fails."""
    local = [path for path in paths if not is_remote(path)]
    warn = IndexWarnings(len(paths), lambda: count_json(local))
    warned = count()  # of entries that are not read
    with ShardProgress(paths) as bar:
        for path in paths:
            try:
                given = TarOptions(remote=remote if is_remote(path) else None)
                shard = open_tar(
                    path,
                    given._replace(**reading),
                    progress=bar.open(path),
                    warn=warn,
                )
            except (FastshardError, OSError) as error:
                bar.clear()
                print_error(error)
                yield path, None
            else:
                bar.clear()
                warn_unread(shard, 1, warned)
                with shard:
                    yield path, shard
            bar.end(path)
