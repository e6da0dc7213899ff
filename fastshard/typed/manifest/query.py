"""Queries over datasets: by manifests where valid, else by samples."""

from __future__ import annotations

import dataclasses
import os
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any

from fastshard.typed.dict_sample import DictSample
from fastshard.typed.manifest.builder import stored_value
from fastshard.typed.manifest.executor import (
    SampleLocation,
    check_where,
    select_rows,
)
from fastshard.typed.manifest.fields import resolve_manifest_fields
from fastshard.typed.manifest.peeked import peek_samples
from fastshard.typed.manifest.proofs import Candidate, find_candidate
from fastshard.typed.manifest.rows import ManifestRows
from fastshard.typed.manifest.sidecar import ManifestSidecar
from fastshard.typed.shardset import PackedSet
from fastshard.where.bounds import is_ruled_out
from fastshard.where.predicate import Predicate

__all__ = ["find_positions", "locate", "match_shard"]

PLAIN = (str, bool, int, float, list, tuple)  # of columns for functions


def find_positions(ds: Any, where: Any) -> list[int]:
    """Return the positions of the samples that meet a condition."""
    where = check_where(where)
    packed = ds._packed
    if ds._later or not isinstance(packed._set, PackedSet):
        reader = SampleReader(ds)
        count = len(ds)
        found = select_rows(where, reader.rows(0, count, where))
        reader.check()
        return list(found)
    found = find_in_shards(ds, packed._set, where)
    order = packed._order()
    if order is None:
        return found
    import numpy as np

    wanted = np.zeros(packed._set.starts()[-1], bool)
    wanted[found] = True
    return [int(i) for i in np.flatnonzero(wanted[np.asarray(order)])]


def find_in_shards(ds: Any, shards: PackedSet, where: Any) -> list[int]:
    """Return the positions in all shards of the samples that meet a condition."""
    base = ds._packed._with_plan(type(ds._packed._plan)())
    reader = SampleReader(type(ds)(base, ds.sample_type))
    found: list[int] = []
    starts = shards.starts()
    for k in range(len(shards)):
        start, stop = starts[k], starts[k + 1]
        candidate = find_candidate(shards, k, stop - start)
        if candidate is not None and is_known_to_fail(where, candidate):
            continue
        samples = peek_samples(shards, k, candidate)
        if samples is None:
            samples = shards.samples(k)
        manifest = ManifestSidecar(samples, candidate)
        read = partial(reader.rows, start, stop)
        found += (start + i for i in match_shard(manifest, where, read))
    reader.check()
    return found


def is_known_to_fail(where: Any, candidate: Candidate) -> bool:
    """Return whether a verified manifest rules a condition out."""
    proof = candidate.recall()
    return (
        proof is not None
        and isinstance(where, Predicate)
        and is_ruled_out(where, proof.aggregates, proof.samples)
    )


Read = Callable[[Any], ManifestRows]


def match_shard(manifest: ManifestSidecar, where: Any, read: Read) -> Sequence[int]:
    """Return the positions in a shard of the samples that meet a condition."""
    header = manifest.load()
    if header is not None and isinstance(where, Predicate):
        if is_ruled_out(where, header.aggregates, header.num_samples):
            return ()
        if not set(where.fields()) <= set(header.aggregates):
            header = None  # the table may lack them
    rows = None if header is None else manifest.rows()
    if rows is None or not len(rows):
        return select_rows(where, read(where))
    if isinstance(where, Predicate) and not set(where.fields()) <= set(rows.names):
        return select_rows(where, read(where))
    needed = where.fields() if isinstance(where, Predicate) else rows.names
    if not manifest.can_read(rows, needed):
        return select_rows(where, read(where))
    try:
        selected = select_rows(where, rows)
    except Exception as error:
        found = select_rows(where, read(where))  # raises if the condition is at fault
        manifest.refuse(error)
        return found
    return sorted(manifest.positions(selected))


class SampleReader:
    """Reader of rows from samples."""

    def __init__(self, ds: Any) -> None:
        self.ds = ds
        self.kind: type = ds.sample_type
        self.is_typed = dataclasses.is_dataclass(self.kind)
        self.missing: set[str] = set()
        self.seen: set[str] = set()

    def rows(self, start: int, stop: int, where: Any) -> ManifestRows:
        """Return the rows of a range of samples."""
        samples = islice(iter(self.ds[start:stop]), stop - start)
        if isinstance(where, Predicate):
            names = where.fields()
            self._check_names(names)
        elif self.is_typed:
            names = list(resolve_manifest_fields(self.kind))
        else:
            return self._all_rows(list(samples))
        columns: dict[str, list[Any]] = {name: [] for name in names}
        count = 0
        for sample in samples:
            count += 1
            for name, column in columns.items():
                column.append(self._value(sample, name))
        return ManifestRows.of(columns, count)

    def _check_names(self, names: list[str]) -> None:
        if not self.is_typed:
            return
        known = [field.name for field in dataclasses.fields(self.kind)]
        for name in names:
            if name not in known:
                raise KeyError(f"{self.kind.__name__} has no field {name!r}")

    def _value(self, sample: Any, name: str) -> Any:
        if self.is_typed:
            return stored_value(getattr(sample, name))
        if has_field(sample, name):
            self.seen.add(name)
            return stored_value(
                getattr(sample, name) if not is_mapping(sample) else sample[name]
            )
        self.missing.add(name)
        return None

    def _all_rows(self, samples: list[Any]) -> ManifestRows:
        """Return all columns of untyped samples that manifests can have."""
        fields: dict[str, None] = {}
        for sample in samples:
            for name, value in items_of(sample):
                if isinstance(value, PLAIN):
                    fields[name] = None
        columns = {
            name: [self._value(sample, name) for sample in samples] for name in fields
        }
        return ManifestRows.of(columns, len(samples))

    def check(self) -> None:
        """Raise KeyError for a field that no sample has."""
        for name in sorted(self.missing - self.seen):
            raise KeyError(f"no sample has a field {name!r}")


def is_mapping(sample: object) -> bool:
    return isinstance(sample, (DictSample, Mapping))


def has_field(sample: Any, name: str) -> bool:
    return name in sample if is_mapping(sample) else hasattr(sample, name)


def items_of(sample: Any) -> Iterable[tuple[str, Any]]:
    """Return the fields of a sample made by a function, of any type."""
    return (
        sample.items()
        if is_mapping(sample)
        else getattr(sample, "__dict__", {}).items()
    )


def locate(ds: Any, positions: Sequence[int]) -> list[SampleLocation]:
    """Return the locations of the samples at positions of a dataset."""
    packed = ds._packed
    keys = packed.keys()
    shards = packed._set
    if not isinstance(shards, PackedSet):
        return [SampleLocation("", keys[i], 0) for i in positions]
    order, starts = packed._order(), shards.starts()
    names = shard_names(packed.shards.paths)
    manifests: dict[int, ManifestSidecar] = {}
    found = []
    for i in positions:
        place = i if order is None else order[i]
        k = bisect_right(starts, place) - 1
        shard = manifests.get(k)
        if shard is None:
            shard = manifests[k] = ManifestSidecar(shards.samples(k))
        offset = shard.offset(place - starts[k])
        found.append(SampleLocation(names[k], keys[i], offset))
    return found


def shard_names(paths: Sequence[str]) -> list[str]:
    """Return names of shards: file names, or whole paths where these repeat."""
    names = [os.path.basename(path).removesuffix(".tar") for path in paths]
    counts = Counter(names)
    return [
        name if counts[name] == 1 else path.removesuffix(".tar")
        for name, path in zip(names, paths, strict=True)
    ]
