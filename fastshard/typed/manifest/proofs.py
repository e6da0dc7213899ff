"""Manifests already compared with their shards, while no file changes."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from fastshard.index.freshness import identify_file

if TYPE_CHECKING:
    from fastshard.typed.manifest.shard_manifest import ShardManifest
    from fastshard.typed.shardset import PackedSet

__all__ = ["Candidate", "Proof", "find_candidate"]

MAX_KEPT = 16 << 20  # bytes of JSON in kept headers
SETTLED = 2_000_000_000  # ns in which a file system may not tell two changes apart

Mark = tuple[int, ...]  # of a file: its size, identity and times


class Proof(NamedTuple):
    """Aggregates and count of a manifest that agrees with its shard."""

    marks: tuple[Mark, ...]
    aggregates: dict[str, dict[str, Any]]
    samples: int


class Candidate(NamedTuple):
    """A local shard with a manifest, by the marks of the files.

    The marks are taken before the files are read, so that a later change shows.
    """

    key: tuple[Any, ...]
    marks: tuple[Mark, ...]  # of the shard, and of the files of the manifest
    samples: int

    def recall(self) -> Proof | None:
        """Return the proof of the shard if no file was changed since."""
        proof = PROOFS.known.get(self.key)
        if proof is None or (proof.marks, proof.samples) != (self.marks, self.samples):
            return None
        return proof

    def keep(self, header: ShardManifest) -> None:
        """Keep a header that was compared with the shard, if the files are settled."""
        newest = max(max(mark[-2:]) for mark in self.marks)
        if time.time_ns() - newest >= SETTLED:
            proof = Proof(self.marks, header.aggregates, header.num_samples)
            PROOFS.add(self.key, proof, header.nbytes)


class Proofs:
    """Verified manifests of this process, by shard; cleared if too many."""

    def __init__(self) -> None:
        self.known: dict[tuple[Any, ...], Proof] = {}
        self._nbytes = 0  # of the headers

    def add(self, key: tuple[Any, ...], proof: Proof, nbytes: int) -> None:
        """Keep the facts of a header of `nbytes` of JSON."""
        if self._nbytes + nbytes > MAX_KEPT:
            self.known.clear()
            self._nbytes = 0
        if nbytes <= MAX_KEPT:
            self.known[key] = proof
            self._nbytes += nbytes


PROOFS = Proofs()


def find_candidate(shards: PackedSet, k: int, count: int) -> Candidate | None:
    """Return shard `k` of `count` samples, if changes of its files would show.

    None for remote shards, and for one that was replaced after it was opened.
    """
    if shards.remote is not None or os.name != "posix":
        return None
    path = shards.paths[k]
    base = path.removesuffix(".tar")
    try:
        marks = (
            mark_file(path),
            mark_file(f"{base}.manifest.json"),
            mark_file(f"{base}.manifest.parquet"),
        )
    except OSError:
        return None
    opened = shards.open_samples[k]
    if opened is not None:
        nbytes, identity = opened.shard.tar._identity
        if marks[0] != (nbytes, *identity):
            return None
    options = shards.options
    key = os.path.abspath(path), shards.index, options["key"], options["lower"]
    return Candidate(key, marks, count)


def mark_file(path: str) -> Mark:
    status = os.stat(path)
    return status.st_size, *identify_file(status)
