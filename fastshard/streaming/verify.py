"""Verification of streaming datasets: headers, rows, fields, hashes of files."""

from __future__ import annotations

import copy
import os
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

from fastshard.codecs.hashes import HASHES, open_hash
from fastshard.codecs.verification import compare_hashes, find_file_faults
from fastshard.dataset.verify import Fault
from fastshard.errors import FormatError, ShardNotFoundError
from fastshard.remote.options import Settings
from fastshard.streaming.index import FileInfo

__all__ = ["verify_set"]

CHUNK = 4 << 20  # bytes of a remote file read at a time


def verify_set(shards: Any, *, hashes: bool = False) -> list[Fault]:
    """Return the faults of a dataset's shards."""
    files = copy.copy(shards.files)
    files.keep_raw = False  # nothing is written
    memory = threading.Semaphore(os.cpu_count() or 1)  # shards that are decompressed
    checked = shards.map_shards(
        lambda k: list(_verify_shard(shards, files, k, hashes, memory)), "verifying"
    )
    return [fault for faults in checked for fault in faults]


def _verify_shard(
    shards: Any, files: Any, k: int, hashes: bool, memory: threading.Semaphore
) -> Iterator[Fault]:
    number = shards.numbers[k]
    known = list(_verify_files(shards, files, number, hashes))
    yield from known
    with memory if files.needs_raw(number) else nullcontext():
        try:
            shard = files.open_shard(number, shards.codec(k))
        except FormatError as error:
            fault = Fault(error.path, error.offset, error.member, error.reason)
            if fault not in known:
                yield fault
            return
        except ShardNotFoundError as error:
            if not known:
                yield Fault(error.path or shards.path(k), 0, None, error.reason)
            return
        width = shard.rows.width
        for i in range(shard.rows.count):
            try:
                for member in range(i * width, (i + 1) * width):
                    shard.extent_of(member)
            except FormatError as error:
                yield Fault(error.path, error.offset, error.member, error.reason)


def _verify_files(
    shards: Any, files: Any, number: int, hashes: bool
) -> Iterator[Fault]:
    """Yield the faults of a shard's files, raw and compressed: sizes and hashes."""
    entry = shards.index[number]
    if shards.remote is None:
        for path, offset, reason in find_file_faults(
            files.index.dirname, entry.file_pairs, entry.compression, hashes=hashes
        ):
            yield Fault(path, offset, None, reason)
    elif hashes:
        for pair in entry.file_pairs:
            for info in filter(None, pair):
                yield from _verify_remote(files, info, shards.remote)


def _verify_remote(files: Any, info: FileInfo, settings: Settings) -> Iterator[Fault]:
    """Yield a fault for each hash of a remote file that differs."""
    try:
        file = files.request_file(info, settings)
    except ShardNotFoundError:  # only raw or only compressed: opening reports it
        return
    except FormatError as error:
        yield Fault(error.path, error.offset, error.member, error.reason)
        return
    made = {algo: open_hash(algo) for algo in info.hashes if algo in HASHES}
    for offset in range(0, file.nbytes, CHUNK):
        data = file.read(offset, min(CHUNK, file.nbytes - offset))
        for one in made.values():
            one.update(data)
    found = {algo: one.hexdigest() for algo, one in made.items()}
    for fault in compare_hashes(file.path, info, found):
        yield Fault(fault.path, fault.offset, None, fault.reason)
