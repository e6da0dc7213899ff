"""The 17 hashes of files of shards: those of `hashlib`, and xxhash."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from typing import Any, Protocol

from fastshard.codecs.libraries import import_library

__all__ = ["HASHES", "Hash", "compute_hash", "hash_file", "open_hash"]

XXHASHES = ("xxh128", "xxh32", "xxh3_128", "xxh3_64", "xxh64")
HASHES = (
    "blake2b",
    "blake2s",
    "md5",
    "sha1",
    "sha224",
    "sha256",
    "sha384",
    "sha3_224",
    "sha3_256",
    "sha3_384",
    "sha3_512",
    "sha512",
    *XXHASHES,
)
CHUNK_BYTES = 1 << 20  # of a file, read at a time


class Hash(Protocol):
    """Protocol of a hash, fed with bytes."""

    def update(self, data: Any, /) -> None: ...
    def hexdigest(self) -> str: ...


def open_hash(algo: str) -> Hash:
    """Return an empty hash."""
    if algo not in HASHES:
        raise ValueError(
            f"{algo!r} is not a supported hash algorithm: one of {', '.join(HASHES)}"
        )
    if algo in XXHASHES:
        need = f"xxhash is needed for {algo}"
        xxhash = import_library("xxhash", need, "'fastshard[mds]'")
        made: Hash = getattr(xxhash, algo)()
        return made
    return hashlib.new(algo, usedforsecurity=False)


def compute_hash(algo: str, buffer: bytes | bytearray | memoryview) -> str:
    """Return the hexadecimal digest of bytes, in lower case."""
    made = open_hash(algo)
    made.update(buffer)
    return made.hexdigest()


def hash_file(
    path: str | os.PathLike[str] | int, algos: Iterable[str]
) -> dict[str, str]:
    """Return the hexadecimal digests of a file by algorithm; read it once.

    A descriptor in place of a path is closed.
    """
    made = {algo: open_hash(algo) for algo in algos}
    buffer = bytearray(CHUNK_BYTES)
    with open(path, "rb", buffering=0) as file, memoryview(buffer) as view:
        while count := file.readinto(buffer):
            for one in made.values():
                one.update(view[:count])
    return {algo: one.hexdigest() for algo, one in made.items()}
