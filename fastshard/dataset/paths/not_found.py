"""Errors for sources without shards, with contents and advice.

All searches are bounded, in entries and in time: a directory may have millions of
files, and lie on a network.
"""

from __future__ import annotations

import os
from collections import Counter, deque
from collections.abc import Iterable
from contextlib import suppress
from time import monotonic

from fastshard._util.paths.globs import SUFFIX, has_magic, is_shard_name, natural_key
from fastshard._util.paths.suggestion import suggest_path
from fastshard._util.paths.urls import common_folder, is_url, redact
from fastshard.errors import ShardNotFoundError
from fastshard.formats.folder import LocalFolder
from fastshard.formats.foreign import (
    HEAD,
    compression_of,
    describe_file,
    describe_head,
    describe_mds,
    is_mds_shard,
    is_tar_head,
    suffix_of,
)
from fastshard.formats.registry import Format, formats

__all__ = [
    "Tally",
    "describe_local",
    "folder_error",
    "glob_error",
    "missing_error",
    "unmarked_error",
]

MAX_ENTRIES = 100_000
MAX_FOLDERS = 1000
MAX_SECONDS = 1.0
MAX_NAMES = 3  # in a message
MAX_FOUND = 8  # datasets in a message
MAX_SNIFFED = 4  # files whose first bytes are read

MAKE_SHARDS = "make shards with fastshard.ShardWriter (docs: making shards)"
INDEXES = (".fsi", ".idx", ".tar.idx", ".tar.index")
MDS_INDEX = "index.json"
MOSAICML = "a dataset of MosaicML Streaming"
HUGGING_FACE = "a Hugging Face dataset"
KINDS = {  # by suffix: description of such a directory, and how to read it
    ".parquet": (HUGGING_FACE, "read it with the datasets library"),
    ".arrow": (HUGGING_FACE, "read it with the datasets library"),
    ".mdb": ("an LMDB database", "read it with lmdb"),
    ".lmdb": ("an LMDB database", "read it with lmdb"),
    ".tfrecord": ("a dataset of TFRecord files", "read it with tensorflow"),
    ".tfrecords": ("a dataset of TFRecord files", "read it with tensorflow"),
    ".h5": ("a dataset of HDF5 files", "read it with h5py"),
    ".hdf5": ("a dataset of HDF5 files", "read it with h5py"),
    ".beton": ("an FFCV dataset", "read it with ffcv"),
    ".zip": ("a dataset of zip archives", "unzip them"),
}


class Tally:
    """Counts of files by suffix.

    Attributes
    ----------
    total : int
        Number of files, hidden ones not counted.
    is_cut : bool
        Whether there may be more.
    folders : list of str
        The directories with shards, at most `MAX_NAMES`.
    depth : int
        Number of directories below the first that have files.
    is_flat : bool
        Whether the first has files.
    marked : dict of Format to list of str
        Directories, or URLs of folders, with the mark of a format.
    """

    def __init__(self) -> None:
        self.total = 0
        self.is_cut = False
        self.folders: list[str] = []
        self.depth = 0
        self.is_flat = False
        self.hidden: list[str] = []  # tars
        self.marked: dict[Format, list[str]] = {}
        self._marks = {each.mark: each for each in formats() if each.mark}
        self._suffixes: Counter[str] = Counter()
        self._examples: dict[str, list[str]] = {}

    def add(self, path: str, *, is_hidden: bool = False) -> None:
        """Count a file, unless it or its directory is hidden."""
        name = path.rpartition("/")[2] if os.sep == "/" else os.path.basename(path)
        suffix = suffix_of(name)
        if is_hidden or name.startswith("."):
            if suffix == SUFFIX and len(self.hidden) < MAX_NAMES:
                self.hidden.append(path)
            return
        self.total += 1
        if name in self._marks:
            self._add_marked(self._marks[name], path)
        if is_mds_shard(name):
            suffix = ".mds"
        self._suffixes[suffix] += 1
        examples = self._examples.setdefault(suffix, [])
        if len(examples) < MAX_NAMES:
            examples.append(path)

    def _add_marked(self, found: Format, path: str) -> None:
        """Keep the directory of a file with the name of a mark, if it is one."""
        folder = path.rpartition("/")[0] if is_url(path) else os.path.dirname(path)
        local = LocalFolder(folder or os.curdir)
        if found.is_remote if is_url(path) else found.marks(local):
            self.marked.setdefault(found, []).append(folder)

    def count(self, path: str, *, is_hidden: bool) -> None:
        """Count a file, one of the first `MAX_ENTRIES`."""
        self.is_cut = self.total >= MAX_ENTRIES
        if not self.is_cut:
            self.add(path, is_hidden=is_hidden)

    def counts(self) -> list[tuple[str, int]]:
        """Return suffixes and their numbers of files, the most common first."""
        return self._suffixes.most_common()

    def examples(self, suffix: str) -> list[str]:
        """Return up to `MAX_NAMES` paths of files with a suffix."""
        return sorted(self._examples.get(suffix, ()), key=natural_key)

    def describe(self) -> str:
        """Return the counts as text: ``3,000 jpg and 3,000 txt files``."""
        common = self.counts()
        if self.is_cut:
            most = ", ".join(_name(suffix) for suffix, _ in common[:2])
            return f"more than {self.total:,} files, most of them {most}"
        parts = [f"{count:,} {_name(suffix)}" for suffix, count in common[:MAX_NAMES]]
        rest = sum(count for _, count in common[MAX_NAMES:])
        parts += [f"{rest:,} other"] * bool(rest)
        last = f" and {parts.pop()}" if len(parts) > 1 else ""
        text = ", ".join(parts) + last + (" file" if self.total == 1 else " files")
        where = f" in {self.depth:,} director{'y' if self.depth == 1 else 'ies'} below"
        return text if self.is_flat or not self.depth else text + where

    def advise(self, is_local: bool = True) -> str:
        """Return advice for a directory without shards, by its files."""
        for advice in (self.advise_marked, self._advise_compressed, self._advise_kind):
            text = advice()
            if text:
                return text
        if not self.total:
            if self.hidden:
                return f"names that begin with a dot are skipped: {self.hidden[0]}"
            return "it is empty"
        if is_local:
            text = self._advise_contents()
            if text:
                return text
        if all(suffix in INDEXES for suffix, _ in self.counts()):
            return (
                f"it has {self.describe()}, indexes without their shards: open the "
                "directory of the shards with index=, or copy the shards here"
            )
        return f"it has {self.describe()}: {MAKE_SHARDS}"

    def advise_marked(self) -> str:
        """Return advice on the datasets of formats below the directory, or ""."""
        for found, folders in self.marked.items():
            if not folders or (is_url(folders[0]) and not self._suffixes[".mds"]):
                continue  # the name alone is a common one
            folders = sorted(folders, key=natural_key)
            parents = {os.path.dirname(folder) for folder in folders}
            names = [redact(folder) for folder in folders[:MAX_FOUND]]
            if len(parents) == 1:
                names = list(map(os.path.basename, names))
            shown = ", ".join(names) + ", ..." * (len(folders) > MAX_FOUND)
            advice = f"it holds {found.title or found.name} datasets {shown}: open one"
            if not found.joins:
                return f"{advice} of them"
            if len(parents) == 1:
                pattern = os.path.join(redact(*parents), "*", "")
            elif is_url(folders[0]):
                above = common_folder([f"{folder}/" for folder in folders])
                pattern = f"{redact(above)}/**"
            else:
                pattern = os.path.join(os.path.commonpath(folders), "**")
            return f"{advice}, or all by {pattern!r}"
        return ""

    def _advise_compressed(self) -> str:
        for suffix, count in self.counts():
            example = self.examples(suffix)[0]
            found = compression_of(example)
            if found is not None and suffix != ".mds":
                return f"{count:,} {_name(suffix)}, {found.advise(example)}"
        return ""

    def _advise_kind(self) -> str:
        for suffix, count in self.counts():
            if suffix == ".mds":
                files = f"{count:,} mds {'file' if count == 1 else 'files'}"
                return (
                    f"it is {MOSAICML} ({files}) without an index.json of version 2: "
                    "fastshard.streaming.rebuild_index makes one"
                )
            kind, advice = KINDS.get(suffix, ("", ""))
            if kind:
                files = f"{count:,} {_name(suffix)} {'file' if count == 1 else 'files'}"
                return (
                    f"it is {kind} ({files}), which fastshard does not read: {advice}, "
                    f"and {MAKE_SHARDS}"
                )
        return ""

    def _advise_contents(self) -> str:
        """Advise by the first bytes of a few local files."""
        for path in self.examples(".json"):
            head = _read_head(path, 4096)
            if b'"shardlist"' in head:
                return f"{path} is a wids index: open that file"
            if os.path.basename(path) == "index.json" and b'"shards"' in head:
                return (
                    f"it has an index.json of {MOSAICML}, but not of version 2, or a "
                    "damaged one: fastshard.streaming.rebuild_index makes it anew"
                )
        for suffix, count in self.counts()[:MAX_SNIFFED]:
            path = self.examples(suffix)[0]
            head = _read_head(path)
            if is_tar_head(head):
                files = "file" if count == 1 else "files"
                return (
                    f"it has {count:,} {_name(suffix)} {files}, and {path} is a tar: "
                    f"rename tars to end in {SUFFIX}"
                )
            kind = describe_head(head)
            if kind and "LFS" in kind:
                return f"{path} is {kind}"
        return ""


def _name(suffix: str) -> str:
    return suffix[1:] or "unnamed-type"


def _read_head(path: str, size: int = HEAD) -> bytes:
    """Return the first bytes of a regular file, b"" if it cannot be read."""
    with suppress(OSError):
        if os.path.isfile(path):
            with open(path, "rb") as file:
                return file.read(size)
    return b""


def _tally_folder(folder: str) -> Tally:
    """Count the files in a directory, and if there are none those below it.

    Directories that cannot be read are skipped.
    """
    tally = Tally()
    deadline = monotonic() + MAX_SECONDS
    waiting = deque([folder])
    entries = folders = 0
    while waiting and not tally.is_cut:
        current = waiting.popleft()
        folders += 1
        if folders > MAX_FOLDERS:
            tally.is_cut = bool(tally.total)
            break
        has_files = has_shards = False
        below: list[str] = []
        with suppress(OSError), os.scandir(current or os.curdir) as found:
            for entry in found:
                entries += 1
                is_late = entries % 256 == 0 and monotonic() > deadline
                if entries > MAX_ENTRIES or is_late:
                    tally.is_cut = True
                    break
                if entry.is_dir(follow_symlinks=False):
                    if not entry.name.startswith("."):
                        below.append(entry.path)
                    continue
                tally.add(entry.path)
                has_files = True
                has_shards |= is_shard_name(entry.name)
        if has_shards and len(tally.folders) <= MAX_NAMES:
            tally.folders.append(current)
        if has_files:
            is_top = current == folder
            tally.is_flat |= is_top
            tally.depth += not is_top
        waiting += sorted(below, key=natural_key)
    return tally


def folder_error(folder: str) -> ShardNotFoundError:
    """Return the error for a directory without shards."""
    tally = _tally_folder(folder)
    below = [found for found in tally.folders if found != folder]
    if tally.marked:
        reason = f"{folder} has no shard ({SUFFIX}): {tally.advise_marked()}"
    elif below:
        names = ", ".join(below[:MAX_NAMES]) + (
            ", ..." if len(below) > MAX_NAMES else ""
        )
        pattern = os.path.join(folder, "**")
        reason = (
            f"{folder} has no shard ({SUFFIX}), but directories below it have: "
            f"{names}; open {pattern} or one of them"
        )
    else:
        reason = f"{folder} has no shard ({SUFFIX}): {tally.advise()}"
    return ShardNotFoundError(reason, folder)


def glob_error(pattern: str, folders: Iterable[str] = ()) -> ShardNotFoundError:
    """Return the error for a glob that matches no shard, only some directories."""
    reason = f"{pattern} matches no shard ({SUFFIX})"
    if any(folders):
        below = os.path.join(pattern, f"*{SUFFIX}")
        return ShardNotFoundError(f"{reason}, only directories; open {below}", pattern)
    parts = pattern.split("/") if os.sep == "/" else pattern.split(os.sep)
    fixed = next((i for i, part in enumerate(parts) if has_magic(part)), len(parts))
    folder = os.sep.join(parts[:fixed]) or (os.sep if pattern[:1] == os.sep else "")
    if not os.path.isdir(folder or os.curdir):
        return ShardNotFoundError(f"{reason}: {_describe_missing(folder)}", pattern)
    tally = _tally_folder(folder)
    name = folder or "the current directory"
    if tally.folders:
        shown = ", ".join(tally.examples(SUFFIX))
        return ShardNotFoundError(f"{reason}; {name} has other ones: {shown}", pattern)
    return ShardNotFoundError(f"{reason}; {name}: {tally.advise()}", pattern)


def missing_error(missing: list[str], count: int) -> ShardNotFoundError:
    """Return the error for paths that do not exist, of `count` in total."""
    first = missing[0]
    if len(missing) == 1 and count == 1:
        return ShardNotFoundError(_describe_missing(first), first)
    names = ", ".join(missing[:MAX_NAMES]) + (
        ", ..." if len(missing) > MAX_NAMES else ""
    )
    reason = f"{len(missing):,} of {count:,} shards missing: {names}"
    return ShardNotFoundError(f"{reason}{suggest_path(first)}", first)


def _describe_missing(path: str) -> str:
    """Describe a missing path and its nearest match."""
    return f"{path} does not exist{suggest_path(path)}"


def unmarked_error(root: str, kind: str, mark: str) -> ShardNotFoundError:
    """Return the error for a directory that is not a dataset of a format."""
    if not os.path.isdir(root):
        reason = _describe_missing(root)
        if os.path.lexists(root):
            reason = f"{root} is not a directory"
        return ShardNotFoundError(reason, root)
    tally = _tally_folder(root)
    advice = "read its tars with fastshard.open" if tally.folders else tally.advise()
    for found, folders in tally.marked.items():
        if root in folders:
            advice = f"it is a {found.name} dataset"
    reason = f"no {kind} dataset in {root}, which has no {mark}: {advice}"
    return ShardNotFoundError(reason, root)


def describe_local(path: str) -> str:
    """Explain why a local file is not a shard, with advice."""
    if is_mds_shard(path):
        folder = os.path.dirname(path) or os.curdir
        return describe_mds(path, os.path.exists(os.path.join(folder, MDS_INDEX)))
    return describe_file(path, _read_head(path))
