"""Indexes with hostile values and right checksums, read under a limit of memory.

Run in a process of its own: ``python -m support.index.hostile KIND FOLDER STEP``
prints a line for each value with which something was wrong.
"""

from __future__ import annotations

import resource
import shutil
import struct
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np

import fastshard
from fastshard.index.binary import HEADER as FSI_HEADER
from fastshard.index.dataset_file import HEADER as DATASET_HEADER
from support.index.binary import with_right_checksums

ROOM = 1 << 30  # bytes of address space, in which honest indexes are read
ABSURD = (0, 1, 2**31, 2**32 - 1, 2**40, 2**63 - 1, 2**64 - 1)
NEAR = (-64, -8, -1, 1, 2, 8, 64)
HEADERS = {"shard": FSI_HEADER, "tokens": FSI_HEADER, "dataset": DATASET_HEADER}


def hostile_values(value: int, bits: int) -> list[int]:
    """Return numbers to put in the place of another one."""
    numbers = {*ABSURD, *(value + step for step in NEAR)} - {value}
    return sorted(number for number in numbers if 0 <= number < 1 << bits)


def iterate_hostile(raw: bytes, header: struct.Struct) -> Iterator[tuple[str, bytes]]:
    """Yield a name and the bytes of each index with one hostile number in its header.

    Checksums are right, as an attacker would compute them.
    """
    for form, width in (("<I", 4), ("<Q", 8)):
        for at in range(8, header.size - width + 1, 4):
            (value,) = struct.unpack_from(form, raw, at)
            for number in hostile_values(value, 8 * width):
                changed = bytearray(raw)
                struct.pack_into(form, changed, at, number)
                name = f"u{8 * width} at byte {at}: {value:,} -> {number:,}"
                yield name, with_right_checksums(bytes(changed), header)


def limit_memory(room: int) -> None:
    """Let this process allocate so many bytes more, and no others."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + room
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def read_all(folder: Path, **options: str) -> list[object]:
    """Return all that a dataset says of its samples, one by one and in bulk."""
    with fastshard.open(folder, **options) as ds:
        count = len(ds)
        found = [(one.key, {name: bytes(one[name]) for name in one}) for one in ds]
        last = ds[-1]
        again = ds[last.key]["npy"]
        return [count, found, last.key, bytes(again), ds.fields]


def read_tokens(folder: Path, **options: str) -> list[object]:
    """Return the windows of tokens of a dataset."""
    with fastshard.open(folder, **options) as ds:
        windows = ds.tokens("npy", 10)
        return [len(windows), *(window.tolist() for window in windows)]


class Target:
    """A dataset, the index under test, and the truth of a scan without indexes."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind = kind
        self.folder = folder
        self.path = folder / ("dataset.fsi" if kind == "dataset" else "t-0.fsi")
        self.kept = {path: path.read_bytes() for path in folder.glob("*.fsi")}
        self.valid = self.kept[self.path]
        self.truth = read_all(folder, index="none")
        self.tokens = read_tokens(folder, index="none")

    def restore(self) -> None:
        for path, data in self.kept.items():
            path.write_bytes(data)

    def find_faults(self, raw: bytes) -> list[str]:
        """Read, verify and index anew by an index; return the faults."""
        self.restore()
        self.path.write_bytes(raw)
        faults = []
        for name, step in (
            ("samples", self.check_samples),
            ("tokens", self.check_tokens),
            ("rewritten", self.check_rewritten),
            ("verify", self.check_verify),
            ("rebuilt", self.check_rebuilt),
        ):
            try:
                if not step(raw):
                    faults.append(f"{name}: wrong")
            except fastshard.FormatError as error:
                if name == "rebuilt":
                    faults.append(f"{name}: {error!r}")
            except BaseException as error:
                faults.append(f"{name}: {error!r}")
        return faults

    def check_samples(self, _: bytes) -> bool:
        return read_all(self.folder) == self.truth

    def check_tokens(self, _: bytes) -> bool:
        return read_tokens(self.folder) == self.tokens

    def check_rewritten(self, raw: bytes) -> bool:
        """Return whether an index that was written meanwhile has no fault."""
        if self.kind == "dataset" or self.path.read_bytes() == raw:
            return True
        return not verify(self.folder) and self.check_tokens(raw)

    def check_verify(self, raw: bytes) -> bool:
        verify(self.folder)
        return True

    def check_rebuilt(self, raw: bytes) -> bool:
        fastshard.build_index(self.folder)
        right = self.check_samples(raw) and self.check_tokens(raw)
        return right and not verify(self.folder)


def verify(folder: Path) -> list[object]:
    with fastshard.open(folder) as ds:
        return ds.verify()


def main(kind: str, folder: str, step: str) -> None:
    warnings.simplefilter("ignore", fastshard.StaleIndexWarning)
    target = Target(kind, Path(folder))
    np.arange(10).sum()
    target.find_faults(target.valid)  # imports all that is needed
    limit_memory(ROOM)
    found = [*iterate_hostile(target.valid, HEADERS[kind])][:: int(step)]
    assert found
    assert not target.find_faults(target.valid)
    for name, raw in found:
        for fault in target.find_faults(raw):
            print(f"{name}: {fault}")
    assert shutil.disk_usage(folder)


if __name__ == "__main__":
    main(*sys.argv[1:])
