"""Queries over manifests."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from fastshard.typed.manifest.rows import KEY, OFFSET, ManifestRows
from fastshard.typed.manifest.shard_manifest import ShardManifest, manifest_path
from fastshard.where.bounds import is_ruled_out
from fastshard.where.predicate import FieldProxy, Predicate, as_predicate

if TYPE_CHECKING:
    import pandas

__all__ = ["QueryExecutor", "SampleLocation", "check_where", "select_rows"]


class SampleLocation(NamedTuple):
    """Location of a sample: shard, key, byte.

    Attributes
    ----------
    shard : str
        Name of the shard, without ``.tar``.
    key : str
    offset : int
        Byte of the shard at which the payload begins.
    """

    shard: str
    key: str
    offset: int


class QueryExecutor:
    """Queries over manifests without their shards.

    Shards that the aggregates of a manifest rule out are passed over. Offsets are those
    that the manifests state; `Dataset.query` compares manifests with their shards.

    Examples
    --------
    >>> from fastshard import typed
    >>> samples = [ImageSample(np.zeros(4, "f4"), name) for name in ("cat", "dog")]
    >>> ds = typed.write_samples(samples, "new/a.tar", manifest=True)
    >>> executor = typed.QueryExecutor.from_directory("new")
    >>> executor.query(typed.query_fields(ImageSample).label == "dog")
    [SampleLocation(shard='a', key='000000000001', offset=...)]
    """

    def __init__(self, manifests: Iterable[ShardManifest]) -> None:
        self._manifests = list(manifests)

    @classmethod
    def from_directory(cls, directory: str | os.PathLike[str]) -> QueryExecutor:
        """Return an executor of all manifests in a directory, sorted by name.

        Raises
        ------
        FileNotFoundError
            There is no such directory.
        FormatError
            A manifest is broken.

        Examples
        --------
        >>> from fastshard import typed
        >>> ds = typed.write_samples(
        ...     [ImageSample(np.zeros(4, "f4"), "cat")], "new/a.tar", manifest=True
        ... )
        >>> executor = typed.QueryExecutor.from_directory("new")
        """
        ending = ".manifest.json"
        names = [name for name in os.listdir(directory) if name.endswith(ending)]
        folder = os.fspath(directory)
        return cls(open_manifest(os.path.join(folder, name)) for name in sorted(names))

    @classmethod
    def from_shard_urls(cls, shard_urls: Iterable[str]) -> QueryExecutor:
        """Return an executor of the manifests beside shards, of those that have one.

        Parameters
        ----------
        shard_urls : iterable of str
            Paths of shards.

        Raises
        ------
        FormatError
            A manifest is broken.

        Examples
        --------
        >>> from fastshard import typed
        >>> ds = typed.write_samples(
        ...     [ImageSample(np.zeros(4, "f4"), "cat")], "new.tar", manifest=True
        ... )
        >>> executor = typed.QueryExecutor.from_shard_urls(["new.tar"])
        """
        paths = [manifest_path(os.fspath(url), "json") for url in shard_urls]
        return cls(open_manifest(path) for path in paths if os.path.exists(path))

    def query(
        self, where: Predicate | FieldProxy | Callable[[pandas.DataFrame], Any]
    ) -> list[SampleLocation]:
        """Return the locations of the samples that meet a condition.

        Parameters
        ----------
        where : Predicate or callable
            A condition on fields; or a function of a DataFrame of pandas, with a row
            for each sample, that returns which rows are wanted.

        Raises
        ------
        KeyError
            The manifests do not have a field.
        TypeError
            A field's values are not comparable, or `where` is not a condition.
        ValueError
            The function returns something else than a bool for each row.
        FormatError
            A manifest is broken.
        MissingLibraryError
            pyarrow is not installed, or pandas for a function.

        Examples
        --------
        >>> from fastshard import typed
        >>> samples = [ImageSample(np.zeros(4, "f4"), name) for name in ("cat", "dog")]
        >>> ds = typed.write_samples(samples, "new/a.tar", manifest=True)
        >>> executor = typed.QueryExecutor.from_directory("new")
        >>> [found.key for found in executor.query(lambda df: df["label"] == "dog")]
        ['000000000001']
        """
        where = check_where(where)
        found: list[SampleLocation] = []
        for manifest in self._manifests:
            if isinstance(where, Predicate) and is_ruled_out(
                where, manifest.aggregates, manifest.num_samples
            ):
                continue
            rows = manifest.rows
            if not len(rows):
                continue
            keys, offsets = rows.column(KEY), rows.column(OFFSET)
            frame = None if isinstance(where, Predicate) else manifest.samples
            for i in select_rows(where, rows, frame):
                place = SampleLocation(manifest.shard_id, keys[i], int(offsets[i]))
                found.append(place)
        return found

    def __repr__(self) -> str:
        return f"QueryExecutor({len(self._manifests):,} manifests)"


def check_where(where: Any) -> Any:
    """Return a condition or a function."""
    if isinstance(where, FieldProxy):
        return as_predicate(where)
    if not callable(where):
        raise TypeError(
            "expected a condition on fields, or a function of a DataFrame, "
            f"got {type(where).__name__}"
        )
    return where


def select_rows(
    where: Any, rows: ManifestRows, frame: pandas.DataFrame | None = None
) -> Sequence[int]:
    """Return the numbers of the rows that meet a condition."""
    if isinstance(where, Predicate):
        return [i for i, wanted in enumerate(where.select(rows)) if wanted]
    import numpy as np

    frame = rows.frame() if frame is None else frame
    mask = np.asarray(where(frame))
    if mask.shape != (len(rows),) or mask.dtype.kind not in "bO":
        raise ValueError(
            f"the function must return {len(rows):,} bools, one for each row, got "
            f"{mask.dtype} of shape {mask.shape}"
        )
    return [int(i) for i in np.flatnonzero(mask.astype(bool))]


def open_manifest(json_path: str) -> ShardManifest:
    """Return a manifest whose table is read at first use."""
    manifest = ShardManifest.from_json_only(json_path)
    path = f"{json_path.removesuffix('.json')}.parquet"
    if os.path.exists(path):
        manifest.set_table(path)
    return manifest
