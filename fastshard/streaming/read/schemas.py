"""Compiled schemas: one for all shards that have the same columns."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from fastshard._core.streaming.plan import RowPlan
from fastshard._core.streaming.text_rows import JsonSchema, XsvSchema

__all__ = ["json_schema", "mds_plan", "xsv_schema"]

MAX_SCHEMAS = 256  # that are kept for shards to come


def mds_plan(
    names: tuple[str, ...],
    encodings: tuple[str, ...],
    sizes: tuple[int | None, ...],
    unsafe: bool,
) -> RowPlan:
    """Return the plan of MDS rows; `unsafe` allows encodings that can run code."""
    return _mds_plan(names, encodings, sizes, unsafe)


@lru_cache(MAX_SCHEMAS)
def _mds_plan(
    names: tuple[str, ...],
    encodings: tuple[str, ...],
    sizes: tuple[int | None, ...],
    unsafe: bool,
) -> RowPlan:
    def resolve(encoding: str) -> Callable[[bytes], Any]:
        from fastshard.streaming.encodings import mds_decoder

        return mds_decoder(encoding, unsafe)

    return RowPlan(names, encodings, sizes, resolve)


def json_schema(columns: tuple[tuple[str, str], ...], newline: str) -> JsonSchema:
    """Return the schema of JSON rows, of names with their encodings."""
    return _json_schema(columns, newline)


@lru_cache(MAX_SCHEMAS)
def _json_schema(columns: tuple[tuple[str, str], ...], newline: str) -> JsonSchema:
    return JsonSchema([c[0] for c in columns], [c[1] for c in columns], newline)


def xsv_schema(
    names: tuple[str, ...],
    encodings: tuple[str, ...],
    newline: str,
    separator: str,
    lenient: bool,
) -> XsvSchema:
    """Return the schema of XSV rows."""
    return _xsv_schema(names, encodings, newline, separator, lenient)


@lru_cache(MAX_SCHEMAS)
def _xsv_schema(
    names: tuple[str, ...],
    encodings: tuple[str, ...],
    newline: str,
    separator: str,
    lenient: bool,
) -> XsvSchema:
    return XsvSchema(names, encodings, newline, separator, lenient=lenient)
