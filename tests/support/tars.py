"""Tar shards written by `tarfile`, and their contents by fastshard and `tarfile`."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import fastshard

MakeTar = Callable[..., Path]
HARD, SYMBOLIC = tarfile.LNKTYPE, tarfile.SYMTYPE


def write_tar(
    path: Path,
    members: Mapping[str, bytes],
    *,
    form: int = tarfile.USTAR_FORMAT,
    mtime: float = 1,
    **options: object,
) -> Path:
    """Write a tar with the standard library; a float mtime makes pax headers."""
    with tarfile.open(path, "w", format=form, **options) as tar:
        for name, data in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            member.mtime = mtime
            tar.addfile(member, io.BytesIO(data))
    return path


def listed(path: Path, **options: object) -> list[tuple[str, int, int]]:
    """Return (name, offset, size) of a shard's members, by fastshard."""
    with fastshard.open_shard(path, **options) as shard:
        columns = shard.names, shard.offsets.tolist(), shard.sizes.tolist()
        return list(zip(*columns, strict=True))


def listed_by_tarfile(path: Path) -> list[tuple[str, int, int]]:
    """Return (name, offset, size) of a shard's members and links, by `tarfile`."""
    with tarfile.open(path, "r:") as tar:
        pairs = [(member.name, follow(tar, member)) for member in tar.getmembers()]
    return [(name, m.offset_data, m.size) for name, m in pairs if m is not None]


def write_numbers(folder: Path, count: int, *, first: int = 0, per: int = 10) -> Path:
    """Write samples of ``txt`` (position), ``npy``, ``cls``; return the folder."""
    import numpy as np

    folder.mkdir(parents=True, exist_ok=True)
    with fastshard.ShardWriter(folder / "n-{:03d}.tar", max_count=per) as writer:
        for i in range(first, first + count):
            array = np.full((2, 3), i, np.float32)
            key = f"{i - first:06d}"
            writer.write({"__key__": key, "txt": str(i), "npy": array, "cls": i})
    return folder


def write_links(
    path: Path,
    entries: Sequence[tuple[str, bytes | str] | tuple[str, str, bytes]],
    form: int = tarfile.PAX_FORMAT,
    mtime: float = 1,
) -> Path:
    """Write members ``(name, data)`` and links ``(name, target[, kind])``.

    Links are hard ones by default.
    """
    with tarfile.open(path, "w", format=form) as tar:
        for name, data, *kind in entries:
            member = tarfile.TarInfo(name)
            member.mtime = mtime
            if isinstance(data, str):
                member.type = kind[0] if kind else HARD
                member.linkname = data
                tar.addfile(member)
            else:
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
    return path


def read_links(path: Path) -> tuple[list[tuple[str, bytes]], list[str]]:
    """Return names and data of members and links by `tarfile`; names of the others.

    A link to its own name is left out.
    """
    found: list[tuple[str, bytes]] = []
    unread: list[str] = []
    last: dict[str, int | None] = {}  # offset of the data, by normalised name
    with tarfile.open(path, "r:") as tar:
        for member in tar.getmembers():
            if not (member.isreg() or member.islnk() or member.issym()):
                continue
            name = os.path.normpath(member.name)
            target = follow(tar, member)
            if target is None:
                unread.append(member.name)
            elif member.isreg() or (
                last.get(name) != target.offset_data
                and os.path.normpath(target.name) != name
            ):
                file = tar.extractfile(target)
                assert file is not None
                found.append((member.name, file.read()))
            last[name] = None if target is None else target.offset_data
    return found, unread


def follow(tar: tarfile.TarFile, member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Return the member that a link leads to; None: to none, or to itself."""
    for _ in range(100):
        if not (member.islnk() or member.issym()):
            return member if member.isreg() else None
        try:
            member = tar._find_link_target(member)
        except KeyError:
            return None
    return None
