"""Manifests beside shards: compared with the shard, then read or ignored."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from fastshard._core.table.grouping import copy_keys, has_keys
from fastshard._util.json import parse_value
from fastshard._util.paths.urls import Url
from fastshard.errors import FormatError, StaleIndexError, StaleIndexWarning
from fastshard.remote.file import RemoteFile, is_not_found, read_remote
from fastshard.typed.manifest.rows import KEY, ManifestRows, load_rows
from fastshard.typed.manifest.shard_manifest import (
    MAX_HEADER,
    NO_DIGEST,
    ShardManifest,
    digest,
    manifest_path,
)
from fastshard.typed.manifest.writer import ManifestWriter
from fastshard.typed.schema import fingerprint, schema_of

if TYPE_CHECKING:
    from fastshard._core.table.extents import ExtentTable
    from fastshard.typed.manifest.builder import ManifestBuilder
    from fastshard.typed.manifest.peeked import PeekedSamples
    from fastshard.typed.manifest.proofs import Candidate
    from fastshard.typed.samples import PackedSequence

__all__ = ["ManifestSidecar", "digest_keys", "save_manifest"]

SUFFIX = b".msgpack"  # of the names of payloads
MAX_TABLE = 4 << 30  # bytes of Parquet


def save_manifest(builder: ManifestBuilder, path: str) -> None:
    """Write the manifest of a shard that is complete.

    The header has the schema of the samples and its fingerprint; and the size of the
    shard and a digest of its keys, by which readers tell, without the table, that it is
    the manifest of this shard.
    """
    manifest = builder.build()
    manifest.extras = {
        "shard_bytes": os.stat(path).st_size,
        "key_digest": digest_keys(manifest.rows.column(KEY)),
        "fingerprint": fingerprint(builder.sample_type),
        "schema": parse_value(schema_of(builder.sample_type), "schema"),
        "header_digest": NO_DIGEST,  # filled in at the write
    }
    base = path.removesuffix(".tar")
    manifest.shard_id = os.path.basename(base)
    ManifestWriter(base).write(manifest)


def digest_keys(keys: Iterable[str]) -> str:
    """Return a digest of the keys of all samples, in order."""
    return digest("\n".join(keys).encode())


class ManifestSidecar:
    """Manifest beside a shard; a false one is ignored with a warning.

    A manifest is true if it has as many rows as the shard has samples, and their keys.
    """

    def __init__(
        self,
        samples: PackedSequence | PeekedSamples,
        candidate: Candidate | None = None,
    ) -> None:
        self.samples = samples
        self._candidate = candidate
        shard: Any = samples.shard
        self.tar: Any = shard.tar
        self._positions: list[int] | None = None  # by row, if the order differs
        self._rows: ManifestRows | None = None
        self.header: ShardManifest | None = None

    def load(self) -> ShardManifest | None:
        """Return the header of a true manifest, or None after a warning."""
        try:
            data = self._read("json", MAX_HEADER)
            if data is None:
                return None
            header = ShardManifest._from_json(data, self._path("json"))
            self._check(header)
        except FormatError as error:
            warn(error)
            return None
        self.header = header
        if self._candidate is not None:
            self._candidate.keep(header)
        return header

    def rows(self) -> ManifestRows | None:
        """Return the rows of a true manifest, or None after a warning."""
        try:
            return self._load_rows()
        except FormatError as error:
            warn(error)
            return None

    def can_read(self, rows: ManifestRows, names: Iterable[str]) -> bool:
        """Read columns; return False after a warning if one is broken."""
        try:
            for name in names:
                rows.column(name)
        except FormatError as error:
            warn(error)
            return False
        return True

    def refuse(self, error: Exception) -> None:
        """Warn of a table on which a condition fails, though not on the samples."""
        reason = f"a condition fails on it: {type(error).__name__}: {error}"
        warn(FormatError(reason, self._path("parquet"), 0))

    def positions(self, rows: Iterable[int]) -> list[int]:
        """Return the positions in the shard of rows of its manifest."""
        if self._positions is None:
            return list(rows)
        return [self._positions[row] for row in rows]

    def offset(self, position: int) -> int:
        """Return the byte offset of a sample's payload in the shard."""
        return int(self.tar.offsets[self.samples.payload_member(position)])

    def _path(self, kind: str) -> str:
        return manifest_path(os.fspath(self.tar.path), kind)

    def _read(self, kind: str, limit: int) -> bytes | None:
        """Return the bytes of one of the files, or None."""
        file: RemoteFile | None = getattr(self.tar, "_remote", None)
        if file is not None:
            url = file.location
            beside = manifest_path(url.base, kind) + url.query
            try:
                return read_remote(Url(beside), file.settings)
            except OSError as error:
                if is_not_found(error):
                    return None
                raise
        path = self._path(kind)
        try:
            with open(path, "rb") as stream:
                data = stream.read(limit + 1)
        except FileNotFoundError:
            return None
        if len(data) > limit:
            raise FormatError(f"a manifest of more than {limit:,} bytes", path, 0)
        return data

    def _check(self, header: ShardManifest) -> None:
        """Raise StaleIndexError for the manifest of another shard."""
        path, count = self._path("json"), len(self.samples)
        if header.num_samples != count:
            reason = f"it has {header.num_samples:,} samples, the shard {count:,}"
            raise StaleIndexError(reason, path, 0)
        known = header.extras.get("header_digest")
        if known is not None and known != header.digest:
            raise FormatError("its digest is another", path, 0)
        size = header.extras.get("shard_bytes")
        if size is not None and size != self.tar.nbytes:
            reason = f"its shard had {size!r} bytes, this has {self.tar.nbytes:,}"
            raise StaleIndexError(reason, path, 0)
        known = header.extras.get("key_digest")
        if known is None:
            self._load_rows()  # checks the keys
        elif known != self._digest():
            raise StaleIndexError("it has other keys than the shard", path, 0)

    def _load_rows(self) -> ManifestRows:
        if self._rows is None:
            path = self._path("parquet")
            data = self._read("parquet", MAX_TABLE)
            if data is None:
                raise StaleIndexError("the manifest has no table of samples", path, 0)
            rows = load_rows(path, data)
            if len(rows) != len(self.samples):
                count = len(self.samples)
                reason = f"it has {len(rows):,} rows, the shard {count:,} samples"
                raise StaleIndexError(reason, path, 0)
            if len(rows):
                self._check_keys(rows, path)
            self._rows = rows
        return self._rows

    def _check_keys(self, rows: ManifestRows, path: str) -> None:
        """Raise StaleIndexError unless the rows have the keys of the samples."""
        if KEY not in rows.names:
            raise FormatError(f"the manifest has no column {KEY!r}", path, 0)
        text = rows.text(KEY)
        if text is not None and self._has_keys(*text):
            return
        keys = rows.column(KEY)
        if not all(isinstance(key, str) for key in keys):
            raise FormatError(f"column {KEY!r} is not one of text", path, 0)
        if digest_keys(keys) == self._digest():
            return
        places = {key: i for i, key in enumerate(self.keys())}
        positions = [places.get(key, -1) for key in keys]
        if -1 in positions or len(set(positions)) != len(positions):
            raise StaleIndexError("it has other keys than the shard", path, 0)
        self._positions = positions

    def _has_keys(self, text: bytes, ends: bytes) -> bool:
        """Return whether the keys, in order, are those of a column of text."""
        table = self._plain_table()
        ends_of = memoryview(ends).cast("i")
        return table is not None and has_keys(table, SUFFIX, text, ends_of)

    def _plain_table(self) -> ExtentTable | None:
        """Return the shard's members if each is the payload of a sample, else None."""
        table: ExtentTable = self.tar.parts()[1]
        return table if len(table) == len(self.samples) else None

    def _digest(self) -> str:
        table = self._plain_table()
        lines = None if table is None else copy_keys(table, SUFFIX)
        return digest_keys(self.keys()) if lines is None else digest(lines)

    def keys(self) -> list[str]:
        """Return the keys of all samples."""
        return [self.samples.key_at(i) for i in range(len(self.samples))]


def warn(error: FormatError) -> None:
    what = "stale" if isinstance(error, StaleIndexError) else "broken"
    message = f"{what} manifest, the samples are read instead: {error}"
    warnings.warn(message, StaleIndexWarning, stacklevel=6)
