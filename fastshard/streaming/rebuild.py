"""Rebuild an index from the shards in a directory."""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from fastshard._util.json import parse_json
from fastshard.codecs.compression import (
    COMPRESSIONS,
    INPUT_BYTES,
    Codec,
    parse_compression,
)
from fastshard.codecs.hashes import HASHES, hash_file, open_hash
from fastshard.errors import FormatError, ShardNotFoundError
from fastshard.streaming.index import read_index
from fastshard.streaming.write.base import dump_config, save_index

__all__ = ["rebuild_index"]

NAME = re.compile(
    r"(shard\.(\d{5,})\.(mds|json|csv|tsv|xsv))(\.meta)?(?:\.(br|bz2|gz|snappy|zstd))?"
)
CHUNK_BYTES = 1 << 20
MAX_CONFIG = 64 << 20  # bytes
MAX_META = 1 << 30  # bytes: 250 million samples
MAX_DATA = 1 << 40  # bytes, decompressed


class ShardFile(NamedTuple):
    """A file of a shard as found: raw, compressed, or both."""

    folder: str
    raw_name: str
    has_raw: bool
    zip_algo: str | None

    @property
    def zip_name(self) -> str:
        return f"{self.raw_name}.{self.zip_algo}"

    @property
    def path(self) -> str:
        """The file that is read: the raw one, if it is there."""
        name = self.raw_name if self.has_raw else self.zip_name
        return os.path.join(self.folder, name)

    def pieces(self, limit: int) -> Iterator[bytes]:
        """Yield the raw bytes, of which there may be `limit`."""
        if self.has_raw or self.zip_algo is None:
            return _chunks(self.path)
        codec = parse_compression(self.zip_algo)
        chunks = _chunks(self.path, INPUT_BYTES)
        return codec.iter_pieces(chunks, limit, self.path, exact=False)


class ShardHead(NamedTuple):
    """Header of a shard: counts, offsets and config, read from its own file."""

    samples: int
    first: int  # offset of the first sample
    last: int  # offset behind the last sample, modulo 2 ** 32
    wraps: int  # times that offsets go back
    config: dict[str, Any]


def rebuild_index(dirname: str | os.PathLike[str]) -> str:
    """Write the ``index.json`` of a directory anew, from its shards.

    Each MDS file and each meta file holds columns, compression and hashes for the
    index; sizes and hashes are those of the files as they are now. For files as a
    writer left them it is the writer's index, byte for byte. The index lists the
    existing shards in the order of their numbers; subdirectories are left out.

    Parameters
    ----------
    dirname : str or path-like
        Directory with files ``shard.00000.mds``, ``shard.00000.json`` and so on, raw or
        compressed.

    Returns
    -------
    str
        Path of the index, which replaces one that is there.

    Raises
    ------
    ShardNotFoundError
        The directory has no shard, or of a shard only data or only meta.
    FormatError
        A shard is damaged, or files of one number do not belong together.
    MissingLibraryError
        The library of a compression or of a hash is not installed.
    OSError
        A file cannot be read, or the index cannot be written.

    Examples
    --------
    >>> import os
    >>> from fastshard.streaming import MDSWriter, rebuild_index
    >>> with MDSWriter(columns={"id": "str"}, out="rows") as writer:
    ...     writer.write({"id": "a"})
    >>> from pathlib import Path
    >>> before = Path("rows/index.json").read_text()
    >>> os.remove("rows/index.json")
    >>> rebuild_index("rows")
    'rows/index.json'
    >>> Path("rows/index.json").read_text() == before
    True
    """
    folder = os.path.expanduser(os.fspath(dirname))
    shards = [
        _describe_shard(files["data"], files.get("meta"), kind)
        for files, kind in _list_shards(folder)
    ]
    text = dump_config({"version": 2, "shards": shards})
    read_index(text, folder)  # raises for columns that readers refuse
    save_index(folder, text)
    return os.path.join(folder, "index.json")


def _list_shards(folder: str) -> list[tuple[dict[str, ShardFile], str]]:
    """Return the files and the format of each shard."""
    found: dict[int, dict[str, ShardFile]] = {}
    kinds: dict[int, str] = {}
    for name in sorted(os.listdir(folder)):
        match = NAME.fullmatch(name)
        if match is None:
            continue
        stem, digits, kind, meta, algo = match.groups()
        if kind == "mds" and meta:
            continue
        number, path = int(digits), os.path.join(folder, name)
        if kinds.setdefault(number, kind) != kind or f"{number:05}" != digits:
            raise FormatError(f"two shards have the number {number}", path, 0)
        role = "meta" if meta else "data"
        old = found.setdefault(number, {}).get(role)
        if old is not None and algo is not None and old.zip_algo is not None:
            raise FormatError("a shard has two compressed files", path, 0)
        has_raw = algo is None or (old is not None and old.has_raw)
        zip_algo = algo or (old.zip_algo if old is not None else None)
        raw_name = stem + (meta or "")
        found[number][role] = ShardFile(folder, raw_name, has_raw, zip_algo)
    if not found:
        raise ShardNotFoundError(f"no shards in {folder}", folder)
    for number, files in found.items():
        wanted = ["data"] if kinds[number] == "mds" else ["data", "meta"]
        for role in wanted:
            if role not in files:
                raise ShardNotFoundError(
                    f"shard {number} of {folder} has no {role} file", folder
                )
    return [(found[number], kinds[number]) for number in sorted(found)]


def _describe_shard(data: ShardFile, meta: ShardFile | None, kind: str) -> Any:
    """Return the object of a shard in the index."""
    head = _read_mds_head(data) if meta is None else _read_meta(meta)
    config = head.config
    path = (data if meta is None else meta).path
    algos, compression = _check_config(config, kind, path)
    files = {"data": data} if meta is None else {"data": data, "meta": meta}
    packed = {file.zip_algo for file in files.values()}
    shard: dict[str, Any] = {"samples": head.samples, **config}
    if len(packed) > 1:
        raise FormatError("data and meta differ in their compression", path, 0)
    algo = packed.pop()
    if algo is None:
        shard["compression"] = None
    elif compression is None or compression.algo != algo:
        raise FormatError(f"the shard's configuration has no {algo}", path, 0)
    for role, file in files.items():
        if file.has_raw:
            raw = _describe_file(file.folder, file.raw_name, algos)
        else:
            raw = _summarize(file.pieces(MAX_DATA), file.raw_name, algos)
        shard[f"raw_{role}"] = raw
        shard[f"zip_{role}"] = None
        if file.zip_algo is not None:
            packed_file = _describe_file(file.folder, file.zip_name, algos)
            shard[f"zip_{role}"] = packed_file
    nbytes = shard["raw_data"]["bytes"]
    if (head.wraps << 32) + head.last != nbytes:
        raise FormatError(
            f"offsets end at {(head.wraps << 32) + head.last:,}, the data at "
            f"{nbytes:,}",
            path,
            4 + 4 * head.samples,
        )
    return shard


def _check_config(
    config: Mapping[str, Any], kind: str, path: str
) -> tuple[list[str], Codec | None]:
    """Return the hashes and the compression of a shard's configuration."""
    if config.get("version") != 2 or config.get("format") != kind:
        raise FormatError(f"not the configuration of a shard of {kind}", path, 0)
    algos, text = config.get("hashes"), config.get("compression")
    if not isinstance(algos, list) or not all(algo in HASHES for algo in algos):
        raise FormatError("unknown hashes in the configuration", path, 0)
    if text is None:
        return algos, None
    if text not in COMPRESSIONS:
        raise FormatError("unknown compression in the configuration", path, 0)
    return algos, parse_compression(text)


def _read_mds_head(file: ShardFile) -> ShardHead:
    """Read the table of offsets and the configuration before an MDS shard's rows."""
    pieces = file.pieces(MAX_DATA)
    head = bytearray()
    samples = int.from_bytes(_take(pieces, head, 4, file.path)[:4], "little")
    table = 4 + 4 * (samples + 1)
    first = int.from_bytes(_take(pieces, head, table, file.path)[4:8], "little")
    if not table <= first <= table + MAX_CONFIG:
        raise FormatError(f"the first sample is at {first:,}", file.path, 4)
    data = bytes(_take(pieces, head, first, file.path)[:first])
    return _parse_head(data, samples, data[table:], file.path)


def _read_meta(file: ShardFile) -> ShardHead:
    """Read a meta file."""
    data = b"".join(file.pieces(MAX_META))
    if len(data) < 8 or len(data) > MAX_META:
        raise FormatError(f"a meta file of {len(data):,} bytes", file.path, 0)
    (samples,) = struct.unpack_from("<I", data)
    table = 4 + 4 * (samples + 1)
    if table > len(data):
        raise FormatError(f"no offsets of {samples:,} samples", file.path, 0)
    return _parse_head(data, samples, data[table:], file.path)


def _take(pieces: Iterator[bytes], head: bytearray, size: int, path: str) -> bytearray:
    """Read pieces until the head has a size."""
    while len(head) < size:
        piece = next(pieces, b"")
        if not piece:
            raise FormatError("the file ends in its header", path, len(head))
        head += piece
    return head


def _parse_head(data: bytes, samples: int, text: bytes, path: str) -> ShardHead:
    offsets = np.frombuffer(data, "<u4", samples + 1, 4)
    where = 4 + 4 * (samples + 1)
    try:
        config = parse_json(text, path, where, surrogates=True)
    except FormatError as error:
        reason = f"the configuration is {error.reason}"
        raise FormatError(reason, path, error.offset) from None
    if not isinstance(config, dict):
        raise FormatError("no configuration", path, where)
    wraps = int(np.count_nonzero(offsets[1:] < offsets[:-1]))
    return ShardHead(samples, int(offsets[0]), int(offsets[-1]), wraps, config)


def _describe_file(folder: str, name: str, algos: list[str]) -> dict[str, Any]:
    """Describe a file on disk for the index."""
    path = os.path.join(folder, name)
    hashes = hash_file(path, algos) if algos else {}
    return {"basename": name, "bytes": os.path.getsize(path), "hashes": hashes}


def _summarize(pieces: Iterator[bytes], name: str, algos: list[str]) -> dict[str, Any]:
    """Describe a file that is not on disk for the index."""
    hashes = {algo: open_hash(algo) for algo in algos}
    nbytes = 0
    for piece in pieces:
        nbytes += len(piece)
        for made in hashes.values():
            made.update(piece)
    digests = {algo: made.hexdigest() for algo, made in hashes.items()}
    return {"basename": name, "bytes": nbytes, "hashes": digests}


def _chunks(path: str, size: int = CHUNK_BYTES) -> Iterator[bytes]:
    """Yield a file's bytes."""
    with open(path, "rb", buffering=0) as file:
        while chunk := file.read(size):
            yield chunk
