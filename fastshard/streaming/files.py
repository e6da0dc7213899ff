"""Files of streaming shards: local, compressed or remote; checked and opened."""

from __future__ import annotations

import os
from collections.abc import Iterator
from hashlib import blake2b
from importlib import import_module
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from fastshard._core.io.paging import PageRing
from fastshard._core.io.source import (
    LocalFile,
    MemorySource,
    PreadSource,
    RemoteSource,
    source_of,
)
from fastshard._core.streaming.plan import MdsRows, RowTable
from fastshard._core.streaming.shard import RowShard, make_row_shard
from fastshard._util.paths.urls import HTTP, join_url, redact, scheme_of
from fastshard.dataset.shardset import ReadOptions
from fastshard.errors import (
    ClosedError,
    FormatError,
    RemoteNotFoundError,
    RemoteShardNotFoundError,
    ShardNotFoundError,
)
from fastshard.formats.tar import Mode, map_cached_file
from fastshard.index.freshness import Opening, version_of
from fastshard.streaming.index import FileInfo, ShardConfig, StreamIndex
from fastshard.streaming.samples import RowCodec

if TYPE_CHECKING:
    from fastshard.remote.file import RemoteFile
    from fastshard.remote.options import Settings

__all__ = ["StreamFiles"]

CONFIG_BYTES = 8 << 10  # behind the offset table, read with it
MAX_CONFIG = 1 << 20  # bytes; longer configs are not compared with the index
HEADER_BYTES = 64 << 10  # of a text shard, for the names of its columns


class StreamFiles:
    """Opens the files of an index's shards."""

    def __init__(
        self,
        index: StreamIndex,
        *,
        mode: Mode,
        reading: ReadOptions,
        ring: PageRing | None,
        remote: Settings | None,
        unsafe: bool,
        validate_hash: str | None,
        check_size: bool,
        cache_dir: str | None,
    ) -> None:
        self.index = index
        self.mode: Mode = mode
        self.reading = reading
        self.ring = ring
        self.remote = remote
        self.unsafe = unsafe
        self.validate_hash = validate_hash
        self.check_size = check_size
        self.cache_dir = cache_dir
        self.keep_raw = True  # write decompressed files
        self.is_closed = False  # decompression in progress ends
        self._schemas: dict[ShardConfig, Any] = {}

    def path(self, name: str) -> str:
        """Return the path or URL of a file."""
        folder = self.index.dirname
        if self.remote is None:
            return os.path.join(folder, name)
        if scheme_of(folder) in HTTP:
            name = quote(name, errors="surrogateescape")
        if scheme_of(name):
            raise FormatError(
                f"the name {name!r} leaves the directory", self.index.path, 0
            )
        return join_url(folder, name)

    def shown(self, path: str) -> str:
        """Return a path for messages: URLs without their secrets."""
        return path if self.remote is None else redact(path)

    def check_open(self) -> None:
        """Raise ClosedError if the set is closed."""
        if self.is_closed:
            raise ClosedError("the dataset is closed: open it again")

    def open_shard(
        self, number: int, codec: RowCodec, opening: Opening | None = None
    ) -> RowShard:
        """Open a shard by its number in the index; `opening` checks its file."""
        entry = self.index[number]
        raw = entry.raw_data
        meta = entry.raw_meta
        meta_bytes = b""
        if meta is not None and codec.config.is_split:
            meta_bytes = self._read_meta(
                meta, entry.zip_meta, entry.compression, entry.samples
            )
        source, path, mode = self._open_source(
            raw, entry.zip_data, entry.compression, opening
        )
        rows = self._make_rows(codec.config, source, path, entry.samples, meta_bytes)
        return make_row_shard(source, path, mode, rows, codec)

    def _open_source(
        self,
        raw: FileInfo,
        zipped: FileInfo | None,
        compression: str | None,
        opening: Opening | None,
    ) -> tuple[Any, str, str]:
        """Return the source of a raw file, its path for errors, and the mode."""
        if self.remote is not None:
            return self._open_remote(raw, zipped, compression, self.remote, opening)
        if zipped is not None and compression and opening is not None:
            self._check_compressed(zipped, opening)
            opening = None  # the raw file may be removed and decompressed again
        found = self._find_raw(raw, zipped, compression)
        if isinstance(found, str):
            return self._open_local(found, found, raw, opening)
        path = self.path(raw.basename)
        _check_nbytes(len(found), raw, path)
        return self._hold(found, path), path, self.mode

    def _hold(self, data: bytes, path: str) -> MemorySource:
        return MemorySource(data, path, writable=self.mode == "private")

    def _check_compressed(self, zipped: FileInfo, opening: Opening) -> None:
        """Check a compressed file if it exists."""
        path = self.path(zipped.basename)
        try:
            status = os.stat(path)
        except (OSError, ValueError):  # absent, or an invalid name; the raw file may do
            return
        opening.check(path, version_of(status))

    def _open_local(
        self, path: str, shown: str, raw: FileInfo, opening: Opening | None = None
    ) -> tuple[Any, str, str]:
        """Return the source of a file, its path for errors, and the mode."""
        mode = self.mode
        file = LocalFile(path)
        try:
            if opening is not None:
                opening.check(shown, version_of(file))
            _check_nbytes(file.nbytes, raw, shown)
            source = source_of(
                file,
                mode,
                prefetch=self.reading.prefetch,
                check_size=self.check_size,
                ring=self.ring,
            )
            if isinstance(source, PreadSource):
                mode = "pread"  # perhaps the file system maps no files
                file.watch(lambda file: False)  # shards are written once
            else:
                file.close()  # a mapping needs no descriptor
        except BaseException:
            file.close()
            raise
        return source, shown, mode

    def _find_raw(
        self,
        raw: FileInfo,
        zipped: FileInfo | None,
        compression: str | None,
    ) -> str | bytes:
        """Return the path of a raw file, decompressed if need be, or its bytes."""
        from fastshard.codecs.raw_files import open_raw

        try:
            return open_raw(
                self.index.dirname,
                raw,
                zipped,
                compression,
                cache_dir=self.cache_dir,
                max_memory=self.reading.max_memory,
                validate_hash=self.validate_hash,
                keep=self.keep_raw,
                check_wanted=self.check_open,
            )
        except FileNotFoundError:
            path = self.path(raw.basename)
            also = "" if zipped is None else f", nor does {zipped.basename}"
            raise ShardNotFoundError(f"{path} does not exist{also}", path) from None

    def needs_raw(self, number: int) -> bool:
        """Return whether a local shard has a raw file to be decompressed."""
        if self.remote is not None:
            return False
        pairs = self.index[number].file_pairs
        return any(
            packed is not None and not os.path.exists(self.path(raw.basename))
            for raw, packed in pairs
        )

    def _read_meta(
        self,
        raw: FileInfo,
        zipped: FileInfo | None,
        compression: str | None,
        samples: int,
    ) -> bytes:
        """Return the bytes of a file of offsets; of a long config it has the start."""
        path = self.path(raw.basename)
        if self.remote is not None:
            data = self._read_remote_raw(raw, zipped, compression, self.remote)
            _check_nbytes(len(data), raw, redact(path))
            return data
        found = self._find_raw(raw, zipped, compression)
        if isinstance(found, str):
            with LocalFile(found) as file:
                _check_nbytes(file.nbytes, raw, found)
                nbytes = min(file.nbytes, 4 * (samples + 2) + MAX_CONFIG + 1)
                return file.read_many([(0, nbytes)])[0]
        _check_nbytes(len(found), raw, path)
        return found

    # Remote files.

    def request_file(self, info: FileInfo, settings: Settings) -> RemoteFile:
        """Open a remote file, and compare its size with the index."""
        url = self.path(info.basename)
        from fastshard.remote.file import open_remote

        try:
            file = open_remote(url, settings)
        except RemoteNotFoundError as error:
            raise RemoteShardNotFoundError.of(error) from error
        _check_nbytes(file.nbytes, info, file.path)
        return file

    def _request_either(
        self,
        raw: FileInfo,
        zipped: FileInfo | None,
        compression: str | None,
        settings: Settings,
    ) -> tuple[RemoteFile, bool]:
        """Open the compressed file, or else the raw one; return whether it is raw."""
        if zipped is None or not compression:
            return self.request_file(raw, settings), True
        try:
            return self.request_file(zipped, settings), False
        except RemoteShardNotFoundError as error:
            try:
                return self.request_file(raw, settings), True
            except RemoteShardNotFoundError:
                raise error from None

    def _open_remote(
        self,
        raw: FileInfo,
        zipped: FileInfo | None,
        compression: str | None,
        settings: Settings,
        opening: Opening | None,
    ) -> tuple[Any, str, str]:
        file, is_raw = self._request_either(raw, zipped, compression, settings)
        if opening is not None:
            opening.check(file.path, version_of(file))
        if not is_raw:
            assert zipped is not None
            assert compression is not None
            return self._open_compressed(file, raw, zipped, compression, settings)
        if self.validate_hash is not None:
            data = file.read(0, file.nbytes)
            self._check_data(data, raw, file.path)
            return self._hold(data, file.path), file.path, "remote"
        mapped = map_cached_file(file, self.ring)
        if mapped is not None:
            return mapped, file.path, "mmap"
        return RemoteSource(file), file.path, "remote"

    def _open_compressed(
        self,
        file: RemoteFile,
        raw: FileInfo,
        zipped: FileInfo,
        compression: str,
        settings: Settings,
    ) -> tuple[Any, str, str]:
        """Fetch a compressed file whole; keep the raw one in the cache, if any."""
        from fastshard.codecs.raw_files import store_raw

        path = redact(self.path(raw.basename))
        if settings.cache_dir is None:
            data = self._decompress(file, raw, zipped, compression)
            return self._hold(data, path), path, "remote"
        version = f"{file.path}\n{file.tag}\n{file.nbytes}\n{raw.bytes}"
        name = blake2b(version.encode(), digest_size=16).hexdigest()
        folder = os.path.join(settings.cache_dir, "decompressed", name[:2])
        os.makedirs(folder, exist_ok=True)
        kept = os.path.join(folder, name)

        def pieces() -> Iterator[bytes]:
            data = self._decompress(file, raw, zipped, compression)
            self.check_open()
            yield data

        store_raw(kept, pieces, raw, check_wanted=self.check_open)
        return self._open_local(kept, path, raw)

    def _decompress(
        self, file: RemoteFile, raw: FileInfo, zipped: FileInfo, compression: str
    ) -> bytes:
        from fastshard.codecs.compression import parse_compression

        data = file.read(0, file.nbytes)
        self._check_data(data, zipped, file.path)
        codec = parse_compression(compression, file.path)
        plain = codec.decompress(data, raw.bytes, file.path)
        self._check_data(plain, raw, file.path)
        return plain

    def _read_remote_raw(
        self,
        raw: FileInfo,
        zipped: FileInfo | None,
        compression: str | None,
        settings: Settings,
    ) -> bytes:
        file, is_raw = self._request_either(raw, zipped, compression, settings)
        if not is_raw:
            assert zipped is not None
            assert compression is not None
            return self._decompress(file, raw, zipped, compression)
        data = file.read(0, file.nbytes)
        self._check_data(data, raw, file.path)
        return data

    def _check_data(self, data: bytes, info: FileInfo, path: str) -> None:
        """Compare bytes with the hash of ``validate_hash=``."""
        from fastshard.codecs.raw_files import check_data_hash

        check_data_hash(data, path, info, self.validate_hash)

    # Rows.

    def _make_rows(
        self, config: ShardConfig, source: Any, path: str, samples: int, meta: bytes
    ) -> RowTable:
        """Return the table of rows of a shard."""
        schema = self._schema(config)
        if config.format == "mds":
            return MdsRows(
                path, schema, _read_head(source, samples), source.nbytes, samples
            )
        text = import_module("fastshard._core.streaming.text_rows")
        meta_path, nbytes = path + ".meta", source.nbytes
        rows: RowTable
        if config.format == "json":
            rows = text.JsonRows(path, schema, meta_path, meta, nbytes, samples)
            return rows
        head = source.read(0, min(nbytes, HEADER_BYTES))
        rows = text.XsvRows(path, schema, meta_path, meta, nbytes, samples, head)
        return rows

    def _schema(self, config: ShardConfig) -> Any:
        """Return the columns of a kind of shards, shared by all of them."""
        found = self._schemas.get(config)
        if found is None:
            found = self._schemas.setdefault(config, self._make_schema(config))
        return found

    def _make_schema(self, config: ShardConfig) -> Any:
        from fastshard.streaming.read.schemas import json_schema, mds_plan, xsv_schema

        names, encodings = config.names, config.encodings
        if config.format == "mds":
            return mds_plan(names, encodings, config.sizes, self.unsafe)
        assert config.newline is not None
        if config.format == "json":
            columns = tuple(zip(names, encodings, strict=True))
            return json_schema(columns, config.newline)
        assert config.separator is not None
        return xsv_schema(names, encodings, config.newline, config.separator, False)


def _check_nbytes(nbytes: int, info: FileInfo, path: str) -> None:
    """Raise FormatError unless a file has the size in the index."""
    if nbytes != info.bytes:
        raise FormatError(
            f"the file has {nbytes:,} bytes; the index states {info.bytes:,}",
            path,
            min(nbytes, info.bytes),
        )


def _read_head(source: Any, samples: int) -> bytes:
    """Return the offset table of an MDS file, with the config if it is short."""
    nbytes: int = source.nbytes
    table = 4 * (samples + 2)
    head: bytes = source.read(0, min(nbytes, table + CONFIG_BYTES))
    if len(head) >= table > 4:
        end = int.from_bytes(head[4:8], "little")
        if len(head) < end <= min(nbytes, table + MAX_CONFIG):
            head += source.read(len(head), end - len(head))
    return head
