"""Rows of a store to and from entries and labels, each value checked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from fastshard._core.typed.msgpack import unpack_map
from fastshard._util.texts import shorten
from fastshard.catalog.entry import DatasetEntry
from fastshard.errors import FormatError, IndexRowError
from fastshard.typed.kinds.decoders import load_msgspec

__all__ = [
    "Row",
    "check_label",
    "check_text",
    "check_version",
    "is_storable",
    "is_text",
    "no_entry",
    "no_label",
    "pack_entry",
    "pack_value",
]

MAX_BYTES = 64 << 20  # of a value
MAX_DEPTH = 200  # of metadata
INTEGERS = range(-(1 << 63), 1 << 64)  # of msgpack


class Row:
    """Place of one row, and the checks of its values."""

    __slots__ = ("key", "location", "table")

    def __init__(self, location: str, table: str, key: object) -> None:
        self.location = location
        self.table = table
        self.key = key

    def refuse(self, reason: str, field: str | None = None) -> NoReturn:
        """Raise the error of a row or field."""
        key = self.key if isinstance(self.key, str) else repr(self.key)
        raise IndexRowError(reason, self.location, self.table, shorten(key), field)

    def text(self, value: object, field: str) -> str:
        """Return a value that is a str."""
        if type(value) is not str:
            self.refuse(f"expected text, got {_name_of(value)}", field)
        if not is_text(value):  # from bytes that are not UTF-8
            self.refuse("the text is not UTF-8", field)
        return value

    def optional_text(self, value: object, field: str) -> str | None:
        """Return a value that may be missing."""
        return None if value is None else self.text(value, field)

    def entry(
        self,
        cid: object,
        name: object,
        schema_ref: object,
        data_urls: object,
        metadata: object,
        legacy_uuid: object,
    ) -> DatasetEntry:
        """Return the entry of a row's values."""
        return DatasetEntry(
            self.text(name, "name"),
            self.text(schema_ref, "schema_ref"),
            self._urls(data_urls),
            None if metadata is None else self._map(metadata, "metadata"),
            self.text(cid, "cid"),
            self.optional_text(legacy_uuid, "legacy_uuid"),
        )

    def _urls(self, value: object) -> list[str]:
        data = self._bytes(value, "data_urls")
        urls = self._unpack(b"\x81\xa1u" + data, "data_urls")["u"]  # as a map's value
        if type(urls) is not list:
            self.refuse(f"expected a msgpack list, got {_name_of(urls)}", "data_urls")
        if not all(type(url) is str for url in urls):
            self.refuse("a URL is not a str", "data_urls")
        return urls

    def _map(self, value: object, field: str) -> dict[str, Any]:
        return self._unpack(self._bytes(value, field), field)

    def _bytes(self, value: object, field: str) -> bytes:
        if type(value) is not bytes:
            self.refuse(f"expected bytes of msgpack, got {_name_of(value)}", field)
        if len(value) > MAX_BYTES:
            reason = f"expected at most {MAX_BYTES:,} bytes, got {len(value):,}"
            self.refuse(reason, field)
        return value

    def _unpack(self, data: bytes, field: str) -> dict[str, Any]:
        try:
            return unpack_map(data)
        except FormatError as error:
            self.refuse(error.reason, field)
        except (ValueError, TypeError, RecursionError) as error:  # of msgspec
            self.refuse(f"not msgpack: {error}", field)


def pack_entry(entry: DatasetEntry) -> tuple[str, str, str, bytes, bytes | None, Any]:
    """Return an entry's values as stored."""
    urls = [check_text(url, "a URL of data_urls", nul=True) for url in entry.data_urls]
    metadata = entry.metadata
    if metadata is not None and not isinstance(metadata, dict):
        raise TypeError(f"expected metadata as a dict, got {_name_of(metadata)}")
    uuid = entry.legacy_uuid
    return (
        check_text(entry.cid, "cid"),
        check_text(entry.name, "name"),
        check_text(entry.schema_ref, "schema_ref"),
        pack_value(urls, "data_urls"),
        None if metadata is None else pack_value(metadata, "metadata"),
        None if uuid is None else check_text(uuid, "legacy_uuid"),
    )


def pack_value(value: object, field: str) -> bytes:
    """Return a value as msgpack."""
    encode: Callable[[object], bytes] = load_msgspec().msgpack.encode
    data = encode(_plain(value, field, MAX_DEPTH))
    if len(data) > MAX_BYTES:
        raise ValueError(
            f"expected at most {MAX_BYTES:,} bytes of msgpack in {field}, got "
            f"{len(data):,}"
        )
    return data


def check_text(value: object, field: str, *, nul: bool = False) -> str:
    """Return a text valid in every store."""
    if not isinstance(value, str):
        raise TypeError(f"expected {field} as a str, got {_name_of(value)}")
    if not nul and "\0" in value:
        raise ValueError(f"{field} has a NUL character: {shorten(value)!r}")
    if not is_text(value):
        raise ValueError(f"{field} has a lone surrogate: {shorten(value)!r}")
    return str(value)


def check_version(version: object) -> str:
    """Return a version valid in every store."""
    text = check_text(version, "version")
    if "@" in text:
        raise ValueError(f"version has an '@': {shorten(text)!r}")
    return text


def check_label(
    name: object, cid: object, version: object, description: object
) -> tuple[str, str, str, str | None]:
    """Return a label's values as stored; raise as `check_text` does."""
    return (
        check_text(name, "name"),
        check_text(cid, "cid"),
        "" if version is None else check_version(version),
        None if description is None else check_text(description, "description"),
    )


def no_entry(by: str, value: str, location: str) -> KeyError:
    """Return the error of a missing entry."""
    return KeyError(f"No entry with {by} {shorten(value)!r} in {location}")


def no_label(name: str, version: str | None, location: str) -> KeyError:
    """Return the error of a missing label."""
    which = f" of version {shorten(version)!r}" if version else ""
    return KeyError(f"No label {shorten(name)!r}{which} in {location}")


def is_text(value: str) -> bool:
    """Return whether a str is Unicode: without lone surrogates."""
    if not isinstance(value, str):
        raise TypeError(f"expected a str, got {_name_of(value)}")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            return False
    return True


def is_storable(value: str) -> bool:
    """Return whether a text is valid in every store; raise as `is_text` does."""
    return is_text(value) and "\0" not in value


def _plain(value: object, field: str, depth: int) -> object:
    """Return a copy of plain types: msgspec encodes more than msgpack has."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return check_text(value, field, nul=True)
    if isinstance(value, int):
        if value not in INTEGERS:
            raise ValueError(f"{field} does not fit 64 bits: {shorten(hex(value))}")
        return int(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, bytes | bytearray):
        return bytes(value)
    if depth == 0:
        raise ValueError(f"{shorten(field)} is nested deeper than {MAX_DEPTH}")
    if isinstance(value, list | tuple):
        return [
            _plain(each, f"{field}[{i}]", depth - 1) for i, each in enumerate(value)
        ]
    if isinstance(value, dict):
        plain = {}
        for key, each in value.items():
            if not isinstance(key, str):
                raise TypeError(
                    f"expected keys of {shorten(field)} as str, got {_name_of(key)}"
                )
            name = check_text(key, f"a key of {field}", nul=True)
            plain[name] = _plain(each, f"{field}[{shorten(name)!r}]", depth - 1)
        return plain
    raise TypeError(
        f"{shorten(field)} is of type {_name_of(value)}, which msgpack lacks"
    )


def _name_of(value: object) -> str:
    return "None" if value is None else type(value).__name__
