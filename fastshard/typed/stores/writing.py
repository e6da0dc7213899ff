"""Writing to stores: samples, datasets, copies of shards."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from hashlib import sha256
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from fastshard._core.io.source import LocalFile
from fastshard._core.parse.tar import scan_tar
from fastshard._core.table.grouping import Grouping
from fastshard._core.typed.shard import copy_payload
from fastshard._util.files import AtomicFile, name_full_disk, replace_file
from fastshard._util.options import check_names
from fastshard._util.paths.urls import parse_path_or_url, redact
from fastshard._util.processes.temporaries import temporary_folder
from fastshard.dataset.dataset import Dataset as FieldDataset
from fastshard.dataset.order.plan import Plan
from fastshard.errors import FormatError
from fastshard.index.contents import Contents
from fastshard.index.sidecar import save_index, sidecar_path
from fastshard.typed.dataset import Dataset
from fastshard.typed.reading.origin import ShardOrigin
from fastshard.typed.reading.stages import Decoding
from fastshard.typed.sources.url import URLSource
from fastshard.typed.stores.protocol import (
    AbstractDataStore,
    ShardTarget,
    ShardWriteResult,
    TargetStore,
)
from fastshard.typed.write.samples import (
    Packing,
    check_kind,
    encoder_for,
    fail,
    number_key,
    write_samples,
)
from fastshard.typed.write.shards import PackedWriter

if TYPE_CHECKING:
    from fastshard.typed.kinds.values import ArrayFormat
    from fastshard.typed.manifest.builder import ManifestBuilder
    from fastshard.typed.sources.protocol import DataSource

__all__ = [
    "SIDECARS",
    "copy_shards",
    "safe_prefix",
    "shard_name",
    "write_dataset",
    "write_to_store",
]

CHUNK = 8 << 20  # bytes that are copied at a time
MAX_PART = 100  # letters of a folder's name
MAX_PARTS = 16
MAX_COUNT = 10_000  # samples in a shard, by default
DATASET_COUNT, DATASET_SIZE = 100_000, 3_000_000_000  # of the shards of a dataset
UNSAFE = re.compile(r"[^\w.=+@,-]")  # and not of a URL's or a pattern's syntax
SIDECARS = (".fsi", ".manifest.parquet", ".manifest.json")  # in order


def safe_prefix(prefix: str) -> str:
    """Return a relative folder for shards; replace other letters by ``_``.

    Letters that a URL or a pattern of paths gives a meaning are replaced, and long
    parts cut; names of shards are unique without them.
    """
    if not isinstance(prefix, str):
        raise TypeError(f"prefix must be a str, got {type(prefix).__name__}")
    parts = prefix[: MAX_PART * MAX_PARTS].split("/")
    if (parts[0] == "" and len(parts) > 1) or ".." in parts:
        raise ValueError(
            f"prefix must be a relative path without .., got {prefix[:MAX_PART]!r}"
        )
    kept = [part[:MAX_PART] for part in parts if part not in ("", ".")]
    return "/".join(UNSAFE.sub("_", part) for part in kept[:MAX_PARTS])


def shard_name(unique: str) -> str:
    """Return the name pattern of new shards."""
    return f"data--{unique}--%06d.tar"


class Publishing:
    """Takes finished shards to a target, and keeps their URLs and checksums."""

    def __init__(self, target: ShardTarget) -> None:
        self.target = target
        self.urls: list[str] = []
        self.checksums: dict[str, str] = {}

    def __call__(self, path: str, digest: str) -> None:
        url = self.target.publish(path, digest)
        self.urls.append(url)
        self.checksums[url] = digest

    def result(self) -> ShardWriteResult:
        found = self.target.result()
        return ShardWriteResult(self.urls, self.checksums) if found is None else found

    def limit(self, maxsize: float | str | None) -> float | str | None:
        """Return the size of a shard, at most."""
        return self.target.max_bytes if maxsize is None else maxsize


def write_to_store(
    store: AbstractDataStore,
    samples: Iterable[Any],
    *,
    prefix: str,
    maxcount: float | None = MAX_COUNT,
    maxsize: float | str | None = None,
    manifest: bool = False,
    key: Callable[[Any], str] | None = None,
    array_format: ArrayFormat = "npy",
    **options: Any,
) -> ShardWriteResult:
    """Write samples to new shards of a store, once.

    A store that is not of this package gets a dataset of temporary shards.
    """
    if not hasattr(type(store), "_shard_target"):
        with temporary_folder("fastshard") as folder:
            ds = write_samples(
                samples,
                os.path.join(folder, "data-%06d.tar"),
                maxcount=maxcount,
                maxsize=maxsize,
                manifest=manifest,
                key=key,
                array_format=array_format,
            )
            return with_checksums(store.write_shards(ds, prefix=prefix, **options))
    packing = Packing.of(samples, manifest=manifest, array_format=array_format)
    with cast(TargetStore, store)._shard_target(prefix) as target:
        publish = Publishing(target)
        most = publish.limit(maxsize)
        with PackedWriter(target.path, maxcount, most, packing.make, publish) as writer:
            packing.write(writer, key)
    return publish.result()


def with_checksums(urls: Iterable[str]) -> ShardWriteResult:
    """Convert a store's return value to a result; it may lack checksums."""
    if isinstance(urls, ShardWriteResult):
        return urls
    checksums = getattr(urls, "checksums", None)
    return ShardWriteResult(list(urls), checksums or {})


class DatasetOptions(NamedTuple):
    """Options of the `write_shards` of stores.

    Attributes
    ----------
    maxcount, maxsize, manifest
        As for `fastshard.typed.write_samples`.
    schema_version : str
        Of manifests.
    source_job_id, parent_shards, pipeline_version
        Provenance, in manifests.
    cache_local : bool
        Has no effect: shards are always complete before they are uploaded.
    """

    maxcount: float | None = None
    maxsize: float | str | None = None
    manifest: bool = False
    schema_version: str = "1.0.0"
    source_job_id: str | None = None
    parent_shards: list[str] | None = None
    pipeline_version: str | None = None
    cache_local: bool = False

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> DatasetOptions:
        """Return options by their names."""
        check_names("write_shards", options, cls._fields)
        return cls(**options)

    @property
    def changes_shards(self) -> bool:
        """True if the options ask for new shards, not copies of the dataset's."""
        return self.manifest or not (self.maxcount is self.maxsize is None)

    @property
    def limits(self) -> tuple[float | None, float | str | None]:
        """The most samples, and the most bytes, of a shard."""
        if self.maxcount is self.maxsize is None:
            return DATASET_COUNT, DATASET_SIZE
        return self.maxcount, self.maxsize

    def manifest_builder(self, sample: Any) -> Callable[[str], ManifestBuilder] | None:
        """Return the builder of a shard's manifest, or None."""
        if not self.manifest:
            return None
        return Packing.of(
            [sample],
            manifest=True,
            schema_version=self.schema_version,
            source_job_id=self.source_job_id,
            parent_shards=self.parent_shards,
            pipeline_version=self.pipeline_version,
        ).make


def write_dataset(
    store: TargetStore, ds: Any, *, prefix: str, **options: Any
) -> ShardWriteResult:
    """Write the samples of a dataset to new shards of a store, under their keys.

    Shards that are selected whole, in order and unmapped, are copied as they are, if
    no option asks for others. A sample whose key is in the unfinished shard begins
    the next one.
    """
    chosen = DatasetOptions.of(options)
    source = None if chosen.changes_shards else whole_source(ds)
    if source is not None:
        return copy_shards(store, source, prefix=prefix)
    samples = keyed_samples(ds, decoded=chosen.manifest)
    first = next(samples, None)
    if first is None:
        raise ValueError("the dataset has no samples")
    make = chosen.manifest_builder(first.sample)
    with store._shard_target(prefix) as target:
        publish = Publishing(target)
        limits = chosen.limits
        if chosen.maxsize is None:
            limits = limits[0], target.max_bytes or limits[1]
        with PackedWriter(target.path, *limits, make, publish) as writer:
            for key, payload, sample in chain([first], samples):
                if writer.has(key):
                    writer.end_shard()
                writer.write(key, payload, sample)
    return publish.result()


def whole_source(ds: Any) -> DataSource | None:
    """Return the source of a dataset if it is all of its shards, unmapped."""
    if not isinstance(ds, Dataset):
        return None
    origin = ds._origin
    if not isinstance(origin, ShardOrigin) or isinstance(origin.source, FieldDataset):
        return None
    if ds._later or ds._plan != Plan():
        return None
    return cast("DataSource", origin.source)


class KeyedSample(NamedTuple):
    """A sample to be written; `sample` only where it was decoded."""

    key: str
    payload: bytes
    sample: Any


def keyed_samples(ds: Any, *, decoded: bool) -> Iterator[KeyedSample]:
    """Yield the samples of a dataset with their keys and payloads."""
    pairs: Iterable[tuple[str, Any]]
    if not isinstance(ds, Dataset):
        found = ds.ordered(batch_size=None) if hasattr(ds, "ordered") else ds
        pairs = ((number_key(number), sample) for number, sample in enumerate(found))
    elif decoded or ds._later or not isinstance(ds._first, Decoding):
        pairs = zip(ds.keys(), ds, strict=True)
    else:
        for stored in ds.untyped:
            yield KeyedSample(stored.key, copy_payload(stored), None)
        return
    encode, kind = None, object
    for number, (key, sample) in enumerate(pairs):
        if encode is None:
            encode, kind = encoder_for(sample, "npy"), type(sample)
        check_kind(sample, number, kind)
        try:
            payload = encode(sample)
        except (TypeError, ValueError, OverflowError) as error:
            fail(error, number, key)
        yield KeyedSample(key, payload, sample)


def copy_shards(
    store: TargetStore,
    source: DataSource,
    *,
    prefix: str,
    checksums: Mapping[str, str] | None = None,
) -> ShardWriteResult:
    """Copy the shards of a source to a store, byte by byte."""
    names = source.list_shards()
    if not names:
        raise ValueError("the dataset has no shards")
    known = checksums or {}
    with store._shard_target(prefix) as target:
        publish = Publishing(target)
        folder, pattern = os.path.split(target.path)
        for number, name in enumerate(names):
            path = os.path.join(folder, pattern % number)
            digest = copy_file(source, name, path, known.get(name))
            local = parse_path_or_url(name) if isinstance(source, URLSource) else None
            if isinstance(local, str):
                copy_manifest(local, path)
            publish(path, digest)
    return publish.result()


def copy_file(source: DataSource, name: str, path: str, expected: str | None) -> str:
    """Copy a shard to a new local file with an index; return its SHA-256."""
    hashed = sha256()
    new = AtomicFile(path, overwrite=False)
    try:
        with source.open_shard(name) as file:
            while chunk := file.read(CHUNK):
                hashed.update(chunk)
                new.file.write(chunk)
        digest = hashed.hexdigest()
        if expected is not None and expected.lower() != digest:
            raise FormatError("its SHA-256 is not the known one", redact(name), 0)
        new.file.flush()
        contents = scan_file(new.temporary, redact(name))
        new.commit()
    except OSError as error:
        name_full_disk(error, path)
        raise
    finally:
        new.discard()
    with LocalFile(path) as local:
        grouping = Grouping(contents.table, False, True)
        save_index(contents, local, sidecar_path(path, "fsi"), "fsi", grouping=grouping)
    return digest


def copy_manifest(path: str, copied: str) -> None:
    """Copy the manifest beside a local shard, if there is one; the header last.

    Readers compare it with the shard.
    """
    for suffix in SIDECARS[1:]:
        beside = path.removesuffix(".tar") + suffix
        if os.path.isfile(beside):
            with (
                open(beside, "rb") as file,
                replace_file(copied.removesuffix(".tar") + suffix) as new,
            ):
                shutil.copyfileobj(file, new)


def scan_file(path: str, name: str) -> Contents:
    """Return the members of a tar."""
    with LocalFile(path) as file:
        try:
            return Contents.of_scan(scan_tar(file))
        except FormatError as error:
            raise FormatError(error.reason, name, error.offset) from None
