"""Contenders of a benchmark, run in turns, and the shards they read.

Machines are shared and noisy: the contenders of a group run in turns (`contenders`),
and the report uses the median of each. ``BENCH_SCALE=0.1`` shrinks the data.
"""

from __future__ import annotations

import io
import os
import random
import tarfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

SCALE = float(os.environ.get("BENCH_SCALE", "1"))
TURNS = int(os.environ.get("BENCH_TURNS", "3"))
KINDS = {"ustar": (tarfile.USTAR_FORMAT, 1.0), "pax": (tarfile.PAX_FORMAT, 1.5)}

Decorator = Callable[[Callable[..., None]], Callable[..., None]]

names_of_reads: dict[Callable[..., Any], str] = {}


def contenders(group: str, **reads: Callable[..., Any]) -> Decorator:
    """Run a bench for each contender in turns; `read` is the contender.

    The others are compared with the first.
    """
    names_of_reads.update(
        {read: name.replace("_", " ") for name, read in reads.items()}
    )

    def decorate(bench: Callable[..., None]) -> Callable[..., None]:
        marks = (
            pytest.mark.parametrize("turn", range(TURNS)),  # the outer loop
            pytest.mark.parametrize("read", reads.values(), ids=list(reads)),
            pytest.mark.benchmark(group=group),
        )
        for mark in marks:
            bench = mark(bench)
        return bench

    return decorate


def expect(benchmark: Any, who: str, against: str, times: float) -> None:
    """Store a bar: contender `who` is to be `times` as fast as another of its group.

    A bar below 1 bounds how much slower it may be.
    """
    info = benchmark.extra_info
    if info["who"] == who.replace("_", " "):
        info.setdefault("bars", {})[against.replace("_", " ")] = times


def limit(
    benchmark: Any,
    who: str,
    figure: str,
    at_most: float,
    against: str | None = None,
    plus: float = 0,
) -> None:
    """Store a bar on another figure of a contender, such as its CPU or memory.

    It is to be at most `at_most`, or `at_most` times another contender's, and `plus`.
    """
    info = benchmark.extra_info
    if info["who"] == who.replace("_", " "):
        other = against and against.replace("_", " ")
        info.setdefault("limits", []).append([figure, at_most, other, plus])


@dataclass
class Tar:
    """Shard of a benchmark, with the names and offsets of its members."""

    path: Path
    size: int  # bytes of each member
    names: list[str] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)

    @property
    def members(self) -> int:
        return len(self.names)


def payload(i: int, size: int, pool: bytes) -> bytes:
    """Return `size` bytes that differ between members."""
    head = b"%016d" % i
    return (head + pool)[:size]


def write(path: Path, kind: str, count: int, size: int, npy: bool = False) -> Tar:
    """Write a tar of `count` members of `size` bytes, or of ``.npy`` arrays."""
    form, mtime = KINDS[kind]
    tar = Tar(path, size)
    pool = random.Random(0).randbytes(size)
    with tarfile.open(path, "w", format=form) as file:
        for i in range(count):
            data = array_bytes(i) if npy else payload(i, size, pool)
            member = tarfile.TarInfo(f"{i:07d}.{'npy' if npy else 'bin'}")
            member.size = len(data)
            member.mtime = mtime
            file.addfile(member, io.BytesIO(data))
            tar.names.append(member.name)
            tar.offsets.append(file.offset - -(-len(data) // 512) * 512)
    return tar


def array_bytes(i: int) -> bytes:
    """Return a ``.npy`` file of 512 float32 of value `i`."""
    file = io.BytesIO()
    np.save(file, np.full(512, i, np.float32))
    return file.getvalue()


def evict(path: Path) -> None:
    """Evict a file from the page cache."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)
