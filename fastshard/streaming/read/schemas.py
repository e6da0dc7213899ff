"""Compiled schemas: one for all shards that have the same columns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from fastshard._core.streaming.plan import RowPlan, RowSchema
from fastshard._core.streaming.text_rows import JsonSchema, XsvSchema

__all__ = ["json_schema", "mds_plan", "xsv_schema"]

MAX_SCHEMAS = 256  # kept for shards opened later

S = TypeVar("S", bound=RowSchema)
_kept: dict[tuple[object, ...], RowSchema] = {}


def _share(kind: type[S], make: Callable[[], S], *key: object) -> S:
    """Return the schema of a key, made at its first use."""
    found = _kept.get((kind, *key))
    if isinstance(found, kind):
        return found
    made = make()
    if len(_kept) >= MAX_SCHEMAS:
        _kept.clear()
    _kept[(kind, *key)] = made
    return made


def mds_plan(
    names: tuple[str, ...],
    encodings: tuple[str, ...],
    sizes: tuple[int | None, ...],
    unsafe: bool,
) -> RowPlan:
    """Return the plan of MDS rows; `unsafe` allows encodings that can run code."""

    def resolve(encoding: str) -> Callable[[bytes], Any]:
        from fastshard.streaming.encodings import mds_decoder

        return mds_decoder(encoding, unsafe)

    def make() -> RowPlan:
        return RowPlan(names, encodings, sizes, resolve)

    return _share(RowPlan, make, names, encodings, sizes, unsafe)


def json_schema(columns: tuple[tuple[str, str], ...], newline: str) -> JsonSchema:
    """Return the schema of JSON rows, of names with their encodings."""

    def make() -> JsonSchema:
        return JsonSchema([c[0] for c in columns], [c[1] for c in columns], newline)

    return _share(JsonSchema, make, columns, newline)


def xsv_schema(
    names: tuple[str, ...],
    encodings: tuple[str, ...],
    newline: str,
    separator: str,
    lenient: bool,
) -> XsvSchema:
    """Return the schema of XSV rows."""

    def make() -> XsvSchema:
        return XsvSchema(names, encodings, newline, separator, lenient=lenient)

    return _share(XsvSchema, make, names, encodings, newline, separator, lenient)
