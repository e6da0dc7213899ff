"""Index of a streaming dataset, ``index.json``: its shards, their files and columns."""

from __future__ import annotations

import json
import os
from array import array
from collections.abc import Mapping, Sequence
from copy import copy
from itertools import pairwise
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple

from fastshard._core.streaming.index import (
    KEY_NAMES,
    LARGEST_INDEX,
    ShardTable,
    parse_index,
)
from fastshard._util.json import parse_json
from fastshard._util.paths.urls import join_url
from fastshard.errors import FormatError
from fastshard.streaming.joined import JoinedTable

if TYPE_CHECKING:
    from fastshard.remote.options import Settings

__all__ = [
    "INDEX_NAME",
    "FileInfo",
    "ShardConfig",
    "ShardEntry",
    "StreamIndex",
    "join_indexes",
    "parse_remote",
    "parse_shard",
    "parse_size_limit",
    "read_index",
]

INDEX_NAME = "index.json"
XSV_SEPARATORS = {"csv": ",", "tsv": "\t"}
FORMATS = ("mds", "json", "xsv", "csv", "tsv")
RAW_DATA, ZIP_DATA, RAW_META, ZIP_META = range(4)
KEYS = {  # of a shard's object, beside version and format
    "mds": ("column_names", "column_encodings", "column_sizes"),
    "json": ("columns", "newline"),
    "xsv": ("column_names", "column_encodings", "newline", "separator"),
    "csv": ("column_names", "column_encodings", "newline"),
    "tsv": ("column_names", "column_encodings", "newline"),
}
COMMON_KEYS = ("compression", "hashes", "size_limit")
FILE_KEYS = ("raw_data", "zip_data", "raw_meta", "zip_meta")
HEAD = '{"version": 2, "shards": [{'  # of an index of one shard
UNITS = ("kb", "mb", "gb", "tb", "pb", "eb", "zb", "yb")
MAX_COLUMN_SIZE = 1 << 32  # bytes
SHOWN = 80  # characters of a wrong value in an error
MAX_CONFIGS = 256  # kept for shards opened later

_configs: dict[tuple[tuple[str, bytes], ...], ShardConfig] = {}


class FileInfo(NamedTuple):
    """A file of a shard, as ``index.json`` describes it.

    Attributes
    ----------
    basename : str
        Its path below the directory of the index.
    bytes : int
        Its size.
    hashes : dict of str to str
        Hexadecimal digests by the name of their algorithm.

    Examples
    --------
    >>> from fastshard.streaming import FileInfo
    >>> FileInfo("shard.00000.mds", 1024, {}).bytes
    1024
    """

    basename: str
    bytes: int
    hashes: dict[str, str]

    def to_json(self) -> dict[str, Any]:
        """Return the object that ``index.json`` has for the file.

        Examples
        --------
        >>> from fastshard.streaming import FileInfo
        >>> FileInfo("shard.00000.mds", 1024, {}).to_json()
        {'basename': 'shard.00000.mds', 'bytes': 1024, 'hashes': {}}
        """
        return {
            "basename": self.basename,
            "bytes": self.bytes,
            "hashes": dict(self.hashes),
        }


class ShardConfig(NamedTuple):
    """Configuration shared by equal shards of an index.

    Attributes
    ----------
    format : {"mds", "json", "xsv", "csv", "tsv"}
    compression : str or None
        ``"zstd"``, ``"zstd:7"``, ...
    hashes : tuple of str
        Names of algorithms.
    size_limit : int or None
        Bytes of a shard.
    names, encodings : tuple of str
        The columns.
    sizes : tuple of int or None
        Bytes of the values of each column; None if they vary. Of mds.
    newline, separator : str or None
        Of text rows.
    """

    format: str
    compression: str | None
    hashes: tuple[str, ...]
    size_limit: int | None
    names: tuple[str, ...]
    encodings: tuple[str, ...]
    sizes: tuple[int | None, ...]
    newline: str | None
    separator: str | None

    @property
    def is_split(self) -> bool:
        """True if a shard is two files, data and meta, as of all formats but MDS."""
        return self.format != "mds"


class ShardEntry:
    """A shard of an index.

    Attributes
    ----------
    config : ShardConfig
    samples : int
    where : int
        Byte of its object in the index.
    """

    __slots__ = ("_index", "config", "number", "samples", "where")

    def __init__(self, index: StreamIndex, number: int) -> None:
        table = index.table
        self._index = index
        self.number = number
        self.samples = table.samples(number)
        self.config = index.configs[table.schema(number)]
        self.where = table.where(number)

    @property
    def format(self) -> str:
        """Format of the shard's rows."""
        return self.config.format

    @property
    def compression(self) -> str | None:
        """Compression as the writer was given it, ``"zstd:7"``."""
        return self.config.compression

    @property
    def hashes(self) -> list[str]:
        """Names of the hash algorithms."""
        return list(self.config.hashes)

    @property
    def size_limit(self) -> int | None:
        """The writer's limit of a shard's size, in bytes."""
        return self.config.size_limit

    @property
    def columns(self) -> dict[str, str]:
        """Encodings by column."""
        return dict(zip(self.config.names, self.config.encodings, strict=True))

    @property
    def raw_data(self) -> FileInfo:
        """The file of rows."""
        found = self._index.file(self.number, RAW_DATA)
        assert found is not None
        return found

    @property
    def zip_data(self) -> FileInfo | None:
        """The compressed file of rows."""
        return self._index.file(self.number, ZIP_DATA)

    @property
    def raw_meta(self) -> FileInfo | None:
        """The file of offsets, of formats that have one."""
        return self._index.file(self.number, RAW_META)

    @property
    def zip_meta(self) -> FileInfo | None:
        """The compressed file of offsets."""
        return self._index.file(self.number, ZIP_META)

    @property
    def file_pairs(self) -> list[tuple[FileInfo, FileInfo | None]]:
        """Raw and compressed files, the meta pair first."""
        pairs = [(self.raw_data, self.zip_data)]
        if self.raw_meta is not None:
            pairs.insert(0, (self.raw_meta, self.zip_meta))
        return pairs

    def to_json(self) -> dict[str, Any]:
        """Return the object of the shard, for `reader_from_json`."""
        config = self.config
        shard: dict[str, Any] = {
            "version": 2,
            "format": config.format,
            "compression": config.compression,
            "hashes": list(config.hashes),
            "size_limit": config.size_limit,
            "samples": self.samples,
            "raw_data": self.raw_data.to_json(),
            "zip_data": _object_of(self.zip_data),
        }
        if config.is_split:
            shard["raw_meta"] = _object_of(self.raw_meta)
            shard["zip_meta"] = _object_of(self.zip_meta)
            shard["newline"] = config.newline
        if config.format == "json":
            shard["columns"] = self.columns
            return shard
        shard["column_names"] = list(config.names)
        shard["column_encodings"] = list(config.encodings)
        if config.format == "mds":
            shard["column_sizes"] = list(config.sizes)
        if config.format == "xsv":
            shard["separator"] = config.separator
        return shard

    def __repr__(self) -> str:
        return (
            f"ShardEntry({self.raw_data.basename!r}; {self.format}, "
            f"{self.samples:,} samples)"
        )


class StreamIndex:
    """Shards of an ``index.json``: a sequence of `ShardEntry`, made on access.

    Attributes
    ----------
    configs : list of ShardConfig
    paths : list of str
        The files of the index.
    """

    def __init__(
        self, table: ShardTable | JoinedTable, path: str, dirname: str
    ) -> None:
        self.table = table
        self.path = path
        self.dirname = dirname
        self.paths = [path]
        self.configs: list[ShardConfig]
        if isinstance(table, JoinedTable):  # of checked indexes
            self.configs = table.configs
            return
        self.configs = [
            _parse_schema(values, path, where) for where, values in table.schemas()
        ]
        self._check_meta()
        if table.has_odd_names:
            self.check_spellings()

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, k: int) -> ShardEntry:
        """Return an entry by its number."""
        if not -len(self.table) <= k < len(self.table):
            raise IndexError(f"shard {k} is out of range for {len(self):,} shards")
        return ShardEntry(self, k if k >= 0 else k + len(self.table))

    def starts(self) -> array[int]:
        """Return the position of each shard's first sample, then the total."""
        return self.table.starts()

    def stored_name(self, k: int) -> str:
        """Return the name of shard `k` as its own index has it."""
        table = self.table
        return table.stored_name(k) if isinstance(table, JoinedTable) else self.name(k)

    def name(self, k: int) -> str:
        """Return the basename of shard `k`'s raw file of rows."""
        found = self.table.file(k, RAW_DATA)
        assert found is not None
        return found[0]

    def data_bytes(self, k: int) -> int:
        """Return the bytes of shard `k`'s raw file of rows."""
        found = self.table.file(k, RAW_DATA)
        assert found is not None
        return found[1]

    def file(self, k: int, which: int) -> FileInfo | None:
        """Return a file of shard `k`: RAW_DATA, ZIP_DATA, RAW_META or ZIP_META."""
        found = self.table.file(k, which)
        if found is None:
            return None
        name, nbytes, text = found
        hashes = {} if text == b"{}" else self._parse(text, self.table.where(k))
        return FileInfo(name, nbytes, hashes)

    def _parse(self, text: bytes, where: int) -> Any:
        return _parse_value(text, self.path, where)

    def _check_meta(self) -> None:
        """Raise FormatError if a shard of text rows has no file of offsets."""
        split = [config.is_split for config in self.configs]
        if not any(split):
            return
        for k in range(len(self.table)):
            if split[self.table.schema(k)] and self.table.file(k, RAW_META) is None:
                where = self.table.where(k)
                raise FormatError("shard has no key 'raw_meta'", self.path, where)

    def check_spellings(self) -> None:
        """Raise FormatError if two spellings name one file."""
        seen = set()
        for k in range(len(self.table)):
            for which in range(4):
                found = self.table.file(k, which)
                if found is None:
                    continue
                name = os.path.normpath(found[0])
                if name in seen:
                    where = self.table.where(k)
                    reason = "two shards name one file"
                    raise FormatError(reason, self.path, where, found[0])
                seen.add(name)


def read_index(
    source: str | os.PathLike[str] | bytes, dirname: str | os.PathLike[str]
) -> StreamIndex:
    """Read an ``index.json``."""
    folder = os.fspath(dirname)
    if isinstance(source, bytes):
        path, text = os.path.join(folder, INDEX_NAME), source
    else:
        path = os.fspath(source)
        text = _read_text(path)
    table = parse_index(text, path, has_backslashes=os.sep == "\\")
    return StreamIndex(table, path, folder)


def join_indexes(
    indexes: Sequence[StreamIndex], folders: Sequence[str], dirname: str
) -> StreamIndex:
    """Return the index of the shards of several, one after another."""
    numbers: dict[ShardConfig, int] = {}
    schemas = [
        [numbers.setdefault(config, len(numbers)) for config in index.configs]
        for index in indexes
    ]
    tables: list[Any] = [index.table for index in indexes]
    table = JoinedTable(tables, folders, schemas, list(numbers))
    joined = StreamIndex(table, dirname, dirname)
    joined.paths = [path for index in indexes for path in index.paths]
    ends = sorted(folder and f"{folder}/" for folder in folders)
    if any(b.startswith(a) for a, b in pairwise(ends)):  # equal, or one in another
        joined.check_spellings()
    return joined


def parse_remote(folder: str, settings: Settings) -> StreamIndex:
    """Read the ``index.json`` of a remote folder."""
    from fastshard.remote.file import open_remote

    file = open_remote(join_url(folder, INDEX_NAME), settings)
    if file.nbytes > LARGEST_INDEX:
        raise _too_large(file.nbytes, file.path)
    text = file.read(0, file.nbytes)
    return StreamIndex(parse_index(text, file.path), file.path, folder)


def _too_large(nbytes: int, path: str) -> FormatError:
    return FormatError(
        f"an index of {nbytes:,} bytes; at most {LARGEST_INDEX:,} are read",
        path,
        LARGEST_INDEX,
    )


def _read_text(path: str) -> bytes:
    """Read an index of bounded size."""
    with open(path, "rb") as file:
        nbytes = os.fstat(file.fileno()).st_size
        # Not more than there is: as much memory is allocated.
        text = b"" if nbytes > LARGEST_INDEX else file.read(nbytes or LARGEST_INDEX + 1)
    if max(nbytes, len(text)) > LARGEST_INDEX:
        raise _too_large(max(nbytes, len(text)), path)
    return text


def parse_size_limit(size_limit: int | str | None) -> int | str | None:
    """Return a limit of a shard's size in bytes."""
    if not size_limit:
        return size_limit
    try:
        if isinstance(size_limit, str):
            limit = _parse_units(size_limit)
        else:
            limit = int(size_limit)
    except OverflowError:
        raise ValueError(f"size_limit must be finite, got {size_limit!r}") from None
    if limit < 0:
        raise ValueError(f"size_limit must not be negative, got {size_limit!r}")
    return limit


def _parse_units(text: str) -> int:
    plain = text.lower().strip()
    unit = plain[-2:]
    try:
        if unit in UNITS:
            return int(float(plain[:-2]) * 1024 ** (UNITS.index(unit) + 1))
        digits = plain.removesuffix("b")
        if digits.isdecimal():
            return int(digits)
    except (ValueError, OverflowError):
        pass
    raise ValueError(
        f"a size must be a number of bytes, with or without one of the units b, "
        f"{', '.join(UNITS)}, got {text!r}"
    )


def _object_of(file: FileInfo | None) -> dict[str, Any] | None:
    return None if file is None else file.to_json()


def _parse_value(text: bytes, path: str, where: int) -> Any:
    decoded = text.decode("utf-8", "surrogateescape")  # names of files
    return parse_json(decoded, path, where, surrogates=True)


def _parse_schema(values: Mapping[str, bytes], path: str, where: int) -> ShardConfig:
    """Return a config from the texts of its values, shared by equal ones."""
    key = tuple(values.items())
    found = _configs.get(key)
    if found is None:
        found = _make_config(values, path, where)
        if len(_configs) >= MAX_CONFIGS:
            _configs.clear()
        _configs[key] = found
    return found


def _make_config(values: Mapping[str, bytes], path: str, where: int) -> ShardConfig:
    """Return a config from the texts of its values; check their types."""

    def fail(reason: str) -> FormatError:
        return FormatError(reason, path, where)

    def check(key: str, good: bool, expected: str) -> None:
        if not good:
            shown = values[key][:SHOWN].decode("utf-8", "replace")
            raise fail(f"expected {key!r} to be {expected}, got {shown}")

    found = {key: _parse_value(text, path, where) for key, text in values.items()}
    if "format" not in found:
        raise fail("shard has no key 'format'")
    name = found["format"]
    check("format", name in FORMATS, f"one of {', '.join(FORMATS)}")
    for key in (*COMMON_KEYS, *KEYS[name]):
        if key not in found:
            raise fail(f"shard has no key {key!r}")
    compression, limit = found["compression"], found["size_limit"]
    check("compression", isinstance(compression, str | None), "a string or null")
    hashes = found["hashes"] or []
    check("hashes", _is_texts(hashes), "a list of strings or null")
    check("size_limit", _is_limit(limit), "a size or null")
    if name == "json":
        columns = found["columns"]
        good = isinstance(columns, dict) and _is_texts(list(columns.values()))
        check("columns", good, "an object of strings")
        names, encodings = list(columns), list(columns.values())
    else:
        names, encodings = found["column_names"], found["column_encodings"]
        good = _is_texts(names) and len(set(names)) == len(names)
        check("column_names", good, "a list of unlike strings")
        good = _is_texts(encodings) and len(encodings) == len(names)
        check("column_encodings", good, f"a list of {len(names)} strings")
        good = name == "mds" or all(map(_is_utf8, names))
        check("column_names", good, "text")
    sizes: list[int | None] = []
    newline = separator = None
    if name == "mds":
        sizes = found["column_sizes"]
        good = isinstance(sizes, list) and len(sizes) == len(names)
        good = good and all(map(_is_column_size, sizes))
        check("column_sizes", good, f"a list of {len(names)} sizes or nulls")
        sizes = [size or None for size in sizes]  # 0 is variable, as upstream reads it
    else:
        newline = found["newline"]
        # Each row of JSON ends by itself: its newline may be empty.
        good = isinstance(newline, str) if name == "json" else _is_mark(newline)
        check("newline", good, "a string")
        separator = found.get("separator", XSV_SEPARATORS.get(name))
        if name != "json" and "separator" in found:
            check("separator", _is_mark(separator), "a string")
        if name in XSV_SEPARATORS:
            separator = XSV_SEPARATORS[name]
    return ShardConfig(
        name,
        compression,
        tuple(hashes),
        parse_size_limit(limit) or None,  # type: ignore[arg-type]
        tuple(names),
        tuple(encodings),
        tuple(sizes),
        newline,
        separator if name != "json" else None,
    )


def parse_shard(shard: object, path: str) -> dict[str, Any]:
    """Check the object of a shard in an index; return the values of its format.

    Keys that the format does not have are left out, and compressed files that are not
    given are None.
    """
    if not isinstance(shard, Mapping):
        raise FormatError(
            f"expected a shard to be an object, got {shard!r:.80}", path, 0
        )
    known = {key: shard[key] for key in KEY_NAMES if key in shard}
    try:
        text = f"{HEAD}{json.dumps(known)[1:-1]}}}]}}".encode()
        StreamIndex(parse_index(text, path), path, os.path.dirname(path))
    except FormatError as error:
        reason = f"{error.reason}{_find_key(known, error.offset - len(HEAD))}"
        raise FormatError(reason, path, 0, error.member) from None
    except (TypeError, ValueError, RecursionError) as error:
        key = next(key for key in known if not _is_json(known[key]))
        raise FormatError(f"{key!r} of a shard is not JSON: {error}", path, 0) from None
    name = shard["format"]
    keys = ("format", *COMMON_KEYS, "samples", *KEYS[name])
    values = {key: copy(shard[key]) for key in keys}  # of lists of scalars at most
    values["hashes"] = values["hashes"] or []
    for key in FILE_KEYS if name != "mds" else FILE_KEYS[:2]:
        values[key] = _file_of(shard.get(key))
    return values


def _find_key(shard: Mapping[str, Any], at: int) -> str:
    """Return the key whose value contains a byte of an object's text."""
    for key, value in shard.items():
        size = len(json.dumps({key: value})) - 2
        if 0 < at <= size:
            return f", in {key!r}"
        at -= size + 2
    return ""


def _is_json(value: object) -> bool:
    try:
        json.dumps(value)
    except (TypeError, ValueError, RecursionError):
        return False
    return True


def _file_of(file: Mapping[str, Any] | None) -> FileInfo | None:
    if file is None:
        return None
    return FileInfo(file["basename"], file["bytes"], dict(file["hashes"] or {}))


def _is_mark(value: Any) -> bool:
    """Return whether a value may separate values or rows."""
    return isinstance(value, str) and value != "" and _is_utf8(value)


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def _is_column_size(value: Any) -> bool:
    if value is None:
        return True
    return type(value) is int and 0 <= value < MAX_COLUMN_SIZE


def _is_limit(value: Any) -> bool:
    if isinstance(value, str):
        try:
            parse_size_limit(value)
        except ValueError:
            return False
        return True
    return value is None or (isinstance(value, int | float) and 0 <= value < inf)
