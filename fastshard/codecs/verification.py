"""Sizes and hashes of raw and compressed files, compared with the index."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from fastshard.codecs.compression import parse_compression
from fastshard.codecs.hashes import HASHES, Hash, hash_file, open_hash
from fastshard.codecs.raw_files import StoredFile, locate, read_chunks
from fastshard.errors import FormatError

__all__ = ["FileFault", "compare_hashes", "find_file_faults"]


class FileFault(NamedTuple):
    """A file that differs from the index."""

    path: str
    offset: int  # bytes from the start of the file
    reason: str


def find_file_faults(
    dirname: str,
    file_pairs: Sequence[tuple[StoredFile, StoredFile | None]],
    compression: str | None,
    *,
    hashes: bool,
) -> Iterator[FileFault]:
    """Yield the faults of a shard's files."""
    for raw, packed in file_pairs:
        path = locate(dirname, raw.basename)
        is_there = os.path.exists(path)
        if is_there:
            yield from _compare_file(path, raw, hashes)
        zip_path = None if packed is None else locate(dirname, packed.basename)
        if packed is None or zip_path is None or not os.path.exists(zip_path):
            if not is_there:
                yield FileFault(path, 0, _describe_missing(packed))
            continue
        found = list(_compare_file(zip_path, packed, hashes))
        yield from found
        if hashes and not found:
            yield from _decompress(zip_path, raw, compression)


def _describe_missing(packed: StoredFile | None) -> str:
    also = "" if packed is None else f", nor does {packed.basename}"
    return f"the file does not exist{also}"


def _compare_file(path: str, file: StoredFile, hashes: bool) -> Iterator[FileFault]:
    nbytes = os.stat(path).st_size
    if nbytes != file.bytes:
        reason = f"the file has {nbytes:,} bytes; the index states {file.bytes:,}"
        yield FileFault(path, min(nbytes, file.bytes), reason)
        return
    if hashes:
        known = [algo for algo in file.hashes if algo in HASHES]
        yield from compare_hashes(path, file, hash_file(path, known))


def compare_hashes(
    path: str, file: StoredFile, found: dict[str, str], prefix: str = ""
) -> Iterator[FileFault]:
    """Yield a fault for each hash of the index that is not found, or differs."""
    for algo, expected in file.hashes.items():
        if algo not in found:
            yield FileFault(path, 0, f"{prefix}the hash {algo!r} is not supported")
        elif found[algo] != expected:
            reason = f"{prefix}{algo} is {found[algo]}; the index states {expected}"
            yield FileFault(path, 0, reason)


def _decompress(
    zip_path: str, raw: StoredFile, compression: str | None
) -> Iterator[FileFault]:
    """Decompress a file without keeping the result; yield the faults of that."""
    try:
        codec = parse_compression(compression or "")
    except ValueError as error:
        yield FileFault(zip_path, 0, str(error))
        return
    made: dict[str, Hash] = {
        algo: open_hash(algo) for algo in raw.hashes if algo in HASHES
    }
    try:
        for piece in codec.iter_pieces(read_chunks(zip_path), raw.bytes, zip_path):
            for one in made.values():
                one.update(piece)
    except FormatError as error:
        yield FileFault(zip_path, error.offset, error.reason)
        return
    found = {algo: one.hexdigest() for algo, one in made.items()}
    yield from compare_hashes(zip_path, raw, found, "decompressed, ")
