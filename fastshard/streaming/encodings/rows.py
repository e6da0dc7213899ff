"""Encodings of values in rows of JSON, CSV and TSV."""

from __future__ import annotations

from typing import Any

from fastshard.streaming.encodings.base import check_type

__all__ = [
    "ROW_TYPES",
    "is_json_encoded",
    "is_json_encoding",
    "is_xsv_encoding",
    "xsv_decode",
    "xsv_encode",
]

ROW_TYPES: dict[str, type] = {"str": str, "int": int, "float": float}


def is_json_encoding(encoding: str) -> bool:
    """Return whether JSON shards support an encoding."""
    return encoding in ROW_TYPES


def is_json_encoded(encoding: str, value: object) -> bool:
    """Return True for a value of an encoding."""
    check_type(value, ROW_TYPES[encoding])
    return True


def is_xsv_encoding(encoding: str) -> bool:
    """Return whether CSV, TSV and XSV shards support an encoding."""
    return encoding in ROW_TYPES


def xsv_encode(encoding: str, value: Any) -> str:
    """Return the text of a value."""
    check_type(value, ROW_TYPES[encoding])
    return value if encoding == "str" else str(value)


def xsv_decode(encoding: str, value: str) -> Any:
    """Return the value of a text."""
    return ROW_TYPES[encoding](value)
