"""Tar shards written by `tarfile`, and their members by fastshard and `tarfile`."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path

import fastshard
from support.links import follow

MakeTar = Callable[..., Path]


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
