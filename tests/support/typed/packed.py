"""Packed shards made without fastshard's own encoder: msgspec, numpy and tarfile."""

from __future__ import annotations

import io
import struct
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import fastshard

__all__ = ["compact", "npy", "pack", "write_payloads", "write_shard"]


def npy(array: np.ndarray[Any, Any]) -> bytes:
    """Return the bytes of `np.save`."""
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def compact(array: np.ndarray[Any, Any]) -> bytes:
    """Return an array in the other form: dtype, shape, the data in C order."""
    kind = array.dtype.str.encode()
    head = struct.pack(
        f"<B{len(kind)}sB{array.ndim}q", len(kind), kind, array.ndim, *array.shape
    )
    return head + array.tobytes()


def pack(row: Mapping[str, Any], encode: Any = npy) -> bytes:
    """Return the payload of a sample; arrays are encoded by `encode`."""
    import msgspec

    values = {
        name: encode(value) if isinstance(value, np.ndarray) else value
        for name, value in row.items()
    }
    return msgspec.msgpack.encode(values)


def write_shard(
    path: Path,
    rows: Iterable[Mapping[str, Any] | bytes],
    *,
    start: int = 0,
    encode: Any = npy,
) -> None:
    """Write rows, or payloads, as a tar of msgpack members with running keys."""
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
        for i, row in enumerate(rows, start):
            data = row if isinstance(row, bytes) else pack(row, encode)
            info = tarfile.TarInfo(f"{i:06d}.msgpack")
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))


def write_payloads(
    path: Path,
    payloads: Iterable[tuple[str, bytes]],
    beside: Mapping[str, Mapping[str, bytes]] | None = None,
) -> Path:
    """Write payloads by key; `beside` has other members of some samples."""
    with fastshard.ShardWriter(str(path), index=None, overwrite=True) as writer:
        for key, payload in payloads:
            others = {} if beside is None else beside.get(key, {})
            writer.write({"__key__": key, "msgpack": payload, **others})
    return path
