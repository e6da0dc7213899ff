"""Verification of tar shards, of their indexes and of the dataset's index."""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from fastshard._core.io.source import LocalFile
from fastshard._core.table.grouping import Grouping
from fastshard._util.paths.urls import base_of, is_folder, is_remote, redact
from fastshard.dataset.tarset import TarSet, common_root
from fastshard.errors import FormatError, StaleIndexError, StaleIndexWarning
from fastshard.formats.tar import (
    KeyRule,
    Mode,
    Progress,
    TarOptions,
    TarShard,
    open_tar,
)
from fastshard.index.contents import LINKS, Contents
from fastshard.index.dataset_file import DatasetIndex, DatasetIndexView
from fastshard.index.dataset_lookup import (
    match_dataset_index,
    match_remote_dataset_index,
)
from fastshard.index.jsonfile import parse_info
from fastshard.index.remote_sidecar import read_remote_index, remote_sidecar_path
from fastshard.index.sidecar import SEARCHED, infer_format, read_index, sidecar_path
from fastshard.remote.file import open_remote, read_remote, try_open_remote
from fastshard.remote.options import Settings, make_settings

__all__ = [
    "Fault",
    "find_trailing_data",
    "verify_dataset",
    "verify_dataset_index",
    "verify_index",
    "verify_shard",
]

MAX_FAULTS = 100  # of one kind, in one index
BLOCK = 512  # bytes
CHUNK = 1 << 20  # bytes read at once, a multiple of BLOCK
FLAGS_OFFSET = 12  # bytes: of the flags in an .fsi
ROWS_CHECKSUM_OFFSET = 76  # bytes: in a dataset.fsi


class Fault(NamedTuple):
    """A fault of a shard or an index."""

    path: str  # or URL, redacted
    offset: int  # bytes from the start of the file
    member: str | None
    reason: str


def _fault_of(error: FormatError) -> Fault:
    return Fault(error.path, error.offset, error.member, error.reason)


def verify_shard(
    path: str | os.PathLike[str],
    progress: Progress | None = None,
    *,
    index: str = "auto",
    hashes: bool = False,
    remote: Settings | None = None,
    key: KeyRule = "first",
    lower: bool = True,
    mode: Mode = "mmap",
) -> tuple[TarShard | None, list[Fault]]:
    """Check the headers, bounds, names, indexes and end of a shard.

    Parameters
    ----------
    path : str or path-like
    progress : callable, optional
        Called now and then with the bytes scanned so far.
    index : str
        ``"auto"``: the indexes beside the shard; ``"none"``; the path or URL of one,
        or of a folder of indexes.
    hashes : bool
        Compare members with the checksums that an index records; reads the whole
        shard.
    remote : Settings, optional
        How a URL is read.
    key, lower, mode
        As for `fastshard.open`.

    Returns
    -------
    shard : TarShard or None
        The open shard, its headers scanned, or None if it cannot be opened.
    faults : list of Fault
        Empty for a sound shard. Includes faults that do not prevent reading: names
        that occur twice, fields that a sample has twice, links that lead to no
        member, data after the archive's end, which tar readers ignore, and differences
        between indexes and headers.

    Raises
    ------
    OSError
        The file cannot be read.
    """
    try:
        # Scan: "none" would take the cached index of a remote shard.
        scan = "none" if remote is None else "rebuild"
        options = TarOptions(scan, mode, key, lower, remote=remote)
        shard = open_tar(path, options, progress=progress)
    except FormatError as error:
        return None, [_fault_of(error)]
    faults = [
        *(
            _member_fault(shard, i, "a later member has the same name")
            for i in shard.parts()[1].duplicates()
        ),
        *(
            _member_fault(shard, i, "its sample has this field twice")
            for i in shard.samples.grouping.repeats()
        ),
        *_find_unread(shard),
    ]
    trailing = find_trailing_data(shard)
    if trailing is not None:
        faults.append(Fault(shard.path, *trailing))
    settings = remote
    if settings is None and is_remote(index):
        settings = make_settings({}, [index])
    for found in _find_indexes(os.fspath(path), index, settings):
        faults.extend(verify_index(found, shard, hashes, settings))
    return shard, faults


def _find_unread(shard: TarShard) -> Iterator[Fault]:
    """Yield the links that lead to no member, and a lone block of zeros."""
    for link in shard.unread_links:
        reason = f"a {link.kind} to {link.target!r}, which leads to no member"
        yield Fault(shard.path, link.offset, link.name, reason)
    more = sum((shard.skipped or {}).get(kind, 0) for kind in LINKS)
    more -= len(shard.unread_links)
    if more > 0:
        reason = f"{more:,} more links lead to no member"
        yield Fault(shard.path, shard.unread_links[-1].offset, None, reason)
    if shard.lone_zeros is not None:
        reason = "a lone block of zeros before further members; other readers end here"
        yield Fault(shard.path, shard.lone_zeros, None, reason)


def _member_fault(shard: TarShard, i: int, reason: str) -> Fault:
    return Fault(shard.path, int(shard.offsets[i]), shard.names[i], reason)


def _find_indexes(shard: str, index: str, settings: Settings | None) -> list[str]:
    """Return the paths and URLs of a shard's indexes, for `index` of `verify_shard`."""
    if index == "none":
        return []
    if index != "auto" and not is_folder(index):
        return [index]
    folder = None if index == "auto" else index
    if settings is None:
        paths = [sidecar_path(shard, kind, folder) for kind in SEARCHED]
        return [path for path in paths if os.path.exists(path)]
    url = os.path.basename(shard) if folder and not is_remote(shard) else shard
    paths = [remote_sidecar_path(url, kind, folder) for kind in SEARCHED]
    return [path for path in paths if _exists(path, settings)]


def _exists(path: str, settings: Settings) -> bool:
    if is_remote(path):
        return try_open_remote(path, settings) is not None
    return os.path.exists(path)


def verify_index(
    path: str, shard: TarShard, hashes: bool, settings: Settings | None = None
) -> Iterator[Fault]:
    """Compare an index with a shard.

    Parameters
    ----------
    path : str
        Path or URL of the index.
    shard : TarShard
        Opened by a scan of its headers.
    hashes : bool
        Compare members with the checksums that the index records.
    settings : Settings, optional
        How a URL is read.
    """
    shown = redact(path)
    try:
        with shard.file() as file:
            if isinstance(file, LocalFile) and not is_remote(path):
                contents = read_index(path, file, last_dot=False, lower=True)
            else:
                contents = read_remote_index(
                    path, file, last_dot=False, lower=True, settings=settings
                )
            if settings is None and not isinstance(file, LocalFile):
                settings = file.settings
        if infer_format(base_of(path)) == "fsi":
            damage = list(_verify_checksums(path, settings))
            if damage:  # no reader uses damaged parts
                yield from damage
                return
    except FormatError as error:
        yield _fault_of(error)
        return
    extents = zip(shard.offsets.tolist(), shard.sizes.tolist(), strict=True)
    stored = {
        (offset, size, name)
        for (offset, size), name in zip(extents, shard.names, strict=True)
    }
    table = contents.table
    listed = {(*table.extent(i), table.name_of(i)) for i in range(len(table))}
    for offset, size, name in sorted(listed - stored)[:MAX_FAULTS]:
        reason = f"lists {size:,} bytes at byte {offset:,}, which the headers do not"
        yield Fault(shown, 0, name, reason)
    last = {name: (offset, size) for offset, size, name in sorted(stored)}
    for offset, size, name in sorted(stored - listed)[:MAX_FAULTS]:
        if contents.index == shown and last[name] != (offset, size):
            continue  # a format with one entry for each name lists the last member
        reason = f"does not list the {size:,} bytes at byte {offset:,}"
        yield Fault(shown, 0, name, reason)
    yield from _verify_samples(shown, contents)
    if hashes:
        yield from _verify_hashes(shown, shard, contents)


def _verify_checksums(path: str, settings: Settings | None) -> Iterator[Fault]:
    """Check the checksums of an ``.fsi``."""
    from fastshard.index.binary import parse_binary, read_binary

    shown = redact(path)
    if is_remote(path):
        assert settings is not None
        index = parse_binary(read_remote(path, settings), shown)
    else:
        index = read_binary(path)
    for part, offset in index.find_damage():
        yield Fault(shown, offset, None, f"the checksum of its {part} is wrong")


def _verify_samples(path: str, contents: Contents) -> Iterator[Fault]:
    """Compare the samples that an index lists with the grouping of its names."""
    from fastshard._core.table.grouping import copy_samples

    if contents.grouping is None:
        return
    rule = contents.grouping.last_dot, contents.grouping.lower
    if copy_samples(contents.grouping) != copy_samples(Grouping(contents.table, *rule)):
        yield Fault(path, 0, None, "its samples differ from the grouping of its names")
    for i in Grouping(contents.table, rule[0], True).repeats()[:MAX_FAULTS]:
        if not contents.grouping.may_repeat:
            name = contents.table.name_of(i)
            reason = "the flag says that no sample has a field twice, but one has"
            yield Fault(path, FLAGS_OFFSET, name, reason)


def _verify_hashes(path: str, shard: TarShard, contents: Contents) -> Iterator[Fault]:
    """Compare the members of a shard with the checksums that an index records."""
    table = contents.table
    nbytes = shard.nbytes
    for i in range(len(table)):
        try:
            recorded = parse_info(table.info(i)).get("sha256")
        except ValueError:
            yield Fault(path, 0, table.name_of(i), "its info is not a JSON object")
            continue
        offset, size = table.extent(i)
        if recorded is None or offset > nbytes or size > nbytes - offset:
            continue
        digest = hashlib.sha256(shard.parts()[0].read(offset, size)).hexdigest()
        if digest != recorded:
            reason = "its sha256 is not the index's"
            yield Fault(shard.path, offset, table.name_of(i), reason)


def find_trailing_data(shard: TarShard) -> tuple[int, None, str] | None:
    """Find data after the end of a shard's archive, other than padding.

    Returns
    -------
    (int, None, str) or None
        The offset of the data, and whether it is another archive. Also None for a
        shard that was opened with an index, which does not record the end.
    """
    if shard.end is None:
        return None
    with shard.file() as file:
        for at in range(shard.end, file.nbytes, CHUNK):
            (chunk,) = file.read_many([(at, min(CHUNK, file.nbytes - at))])
            data = len(chunk) - len(chunk.lstrip(b"\0"))
            if data < len(chunk):
                start = at + data - data % BLOCK
                block = chunk[start - at : start - at + BLOCK]
                what = "another archive" if block[257:262] == b"ustar" else "data"
                return start, None, f"{what} follows the end of the archive; not read"
    return None


def verify_dataset(shards: TarSet, *, hashes: bool = False) -> list[Fault]:
    """Check every shard of a dataset as `verify_shard` does, in threads.

    Also checks ``dataset.fsi``: its table of keys, and its record of each shard.
    """

    def verify(k: int) -> list[Fault]:
        path = shards.paths[k]
        try:
            shard, faults = verify_shard(
                path,
                index=shards.index_option(k),
                hashes=hashes,
                remote=shards.remote,
                key=shards.options["key"],
                lower=shards.options["lower"],
                mode=shards.mode,
            )
        except FileNotFoundError:
            return [Fault(redact(path), 0, None, "the shard does not exist")]
        if shard is not None:
            shard.close()
        return faults

    results = shards.map_shards(verify, "verifying")
    faults = [fault for found in results for fault in found]
    if shards.index_view is not None:
        faults.extend(_verify_index_view(shards, shards.index_view))
    return faults


def verify_dataset_index(
    path: str, paths: Sequence[str], remote: Settings | None = None
) -> list[Fault]:
    """Check a ``dataset.fsi`` against the shards that it should list.

    Parameters
    ----------
    path : str
        Path or URL of the index.
    paths : sequence of str
        The shards.
    remote : Settings, optional
        How URLs are read.
    """
    root = common_root(paths)
    try:
        if remote is not None:
            file = open_remote(path, remote)
            index = DatasetIndex(file.path, file=file)  # its path is redacted
            view = match_remote_dataset_index(index, paths, root, whole=True)
        else:
            index = DatasetIndex(path)
            view = match_dataset_index(index, paths, root, whole=True)
    except FormatError as error:
        return [_fault_of(error)]
    shards = TarSet(
        paths,
        index="auto",
        root=root,
        mode="mmap",
        key="last" if index.last_dot else "first",
        lower=True,
        index_view=view,
        remote=remote,
    )
    return _verify_index_view(shards, view)


def _verify_index_view(shards: TarSet, view: DatasetIndexView) -> list[Fault]:
    """Compare the entries of a ``dataset.fsi`` with their shards."""
    faults = []
    if view.file.has_damaged_rows():
        reason = "the checksum of its table of keys is wrong"
        faults.append(Fault(view.path, ROWS_CHECKSUM_OFFSET, None, reason))
    with warnings.catch_warnings():  # stale indexes of shards are faults already
        warnings.simplefilter("ignore", StaleIndexWarning)
        for k in range(len(shards)):
            try:
                shards.shard(k)
            except StaleIndexError as error:
                faults.append(_fault_of(error))
            except (FormatError, OSError):
                continue  # a fault of the shard, reported by verify_shard
        if view.has_keys and not _has_equal_rows(shards, view):
            reason = "its table of keys differs from the samples' keys"
            faults.append(Fault(view.path, 0, None, reason))
    return faults


def _has_equal_rows(shards: TarSet, view: DatasetIndexView) -> bool:
    """Compare a table of keys with the samples' keys; True if shards are damaged."""
    from fastshard.dataset.views import build_key_table

    try:
        recorded = view.file.copy_rows()
        return any(
            build_key_table(shards, view.file.seed, older=older).tobytes() == recorded
            for older in (False, True)
        )
    except (FormatError, OSError):
        return True  # a fault of the shard, reported by verify_shard
