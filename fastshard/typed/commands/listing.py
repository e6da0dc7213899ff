"""Commands ``ls`` and ``stat`` for packed datasets."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from fastshard._util.paths.urls import redact
from fastshard._util.terminal import escape_name
from fastshard.dataset.dataset import Dataset
from fastshard.dataset.tarset import common_root
from fastshard.formats.field_info import FieldInfo, merge_field_infos
from fastshard.typed.schema import hash_schema
from fastshard.typed.shardset import PackedSet

if TYPE_CHECKING:
    from fastshard.remote.options import Settings
    from fastshard.typed.samples import PackedSample

__all__ = [
    "StoredField",
    "describe_sample",
    "list_lines",
    "open_packed",
    "stat",
    "stat_lines",
]

MAX_SCHEMAS = 100  # schema changes listed, at most


def open_packed(
    paths: Sequence[str], remote: Settings | None, **reading: Any
) -> Dataset[Any]:
    """Return the dataset of some shards; see `Format.reading`."""
    options = {"mode": "mmap", "key": "first", "lower": True, **reading}
    root = common_root(paths)
    return Dataset(PackedSet(paths, index="auto", root=root, remote=remote, **options))


class StoredField(NamedTuple):
    """Type of the values that samples store in a field.

    Attributes
    ----------
    kind : str
        ``"array"``, or the type of the values.
    optional : bool
        Some values are None. A field of None alone has the kind ``"None"``.
    dtype : str, optional
        Of arrays; None if they differ.
    shape : tuple of int or None, optional
        Of arrays; None stands for a size that differs.
    """

    kind: str
    optional: bool = False
    dtype: str | None = None
    shape: tuple[int | None, ...] | None = None

    def __str__(self) -> str:
        shown = str(FieldInfo(self.kind, self.dtype, self.shape))
        return f"{shown} or None" if self.optional and self.kind != "None" else shown

    def to_json(self) -> dict[str, Any]:
        return self._asdict()

    def schema(self, name: str) -> dict[str, Any]:
        """Return the field's entry in `fastshard.typed.schema_of` of its type."""
        found: dict[str, Any] = {"name": name, "kind": self.kind.lower()}
        found["optional"] = self.optional
        if self.kind == "array":
            found["dtype"] = self.dtype
        return found

    def merged(self, other: StoredField) -> StoredField:
        """Return the common type; different kinds give ``"object"``."""
        optional = self.optional or other.optional
        if "None" in (self.kind, other.kind):
            known = other if self.kind == "None" else self
            return known._replace(optional=optional)
        (found,) = merge_field_infos(
            [
                {"": FieldInfo(self.kind, self.dtype, self.shape)},
                {"": FieldInfo(other.kind, other.dtype, other.shape)},
            ]
        ).values()
        return StoredField(found.kind, optional, found.dtype, found.shape)

    def agrees(self, other: StoredField) -> bool:
        """Return whether a field of one type can have both."""
        if "None" in (self.kind, other.kind):
            return True
        return (self.kind, self.dtype) == (other.kind, other.dtype)


Fields: TypeAlias = dict[str, StoredField]


def describe_sample(sample: PackedSample) -> Fields:
    """Return the types of a sample's values by field."""
    found = {}
    for name in sample:
        kind, is_array = sample.codec.stored_kind(sample, name)
        if is_array:
            array = sample.array(name)
            dtype = array.dtype.type.__name__
            found[name] = StoredField("array", False, dtype, array.shape)
        else:
            found[name] = StoredField(kind, kind == "None")
    return found


def fingerprint(fields: Fields) -> str:
    """Return `fastshard.typed.fingerprint` of a class with these fields."""
    return hash_schema(
        {"fields": [field.schema(name) for name, field in fields.items()]}
    )


def list_lines(ds: Dataset[Any], *, long: bool, as_json: bool) -> Iterator[str]:
    """Yield a line of ``ls`` for each sample: its key, and its fields."""
    with ds:
        for position, sample in enumerate(ds):
            if as_json:
                fields = describe_sample(sample)
                yield json.dumps(
                    {
                        "key": sample.key,
                        "position": position,
                        "shard": sample.shard.path,
                        "fields": {name: f.to_json() for name, f in fields.items()},
                    }
                )
            elif long:
                fields = describe_sample(sample)
                shown = ", ".join(f"{escape_name(n)} {f}" for n, f in fields.items())
                yield f"{escape_name(sample.key)}  {shown}"
            else:
                yield escape_name(sample.key)


def stat(ds: Dataset[Any], *, deep: bool) -> dict[str, Any]:
    """Return the object of ``stat --json``.

    Fields are those of the first sample of each shard; deep: of all samples.
    """
    with ds:
        starts = ds._set.starts()
        firsts = [start for k, start in enumerate(starts[:-1]) if start < starts[k + 1]]
        samples: Iterable[Any] = ds if deep else ds.get_many(firsts)
        positions = range(len(ds)) if deep else firsts
        schemas, fields = find_schemas(samples, positions)
        return {
            "dataset": redact(ds._set.root),
            "shards": len(ds._set),
            "samples": len(ds),
            "bytes": ds._set.data_bytes(),
            "examined": len(positions),
            "fields": {name: field.to_json() for name, field in fields.items()},
            "schemas": schemas,
        }


def find_schemas(
    samples: Iterable[PackedSample], positions: Sequence[int]
) -> tuple[list[dict[str, Any]], Fields]:
    """Return where the schema changes, and the fields of all samples.

    A field that is None in a sample is not a change.
    """
    schemas: list[dict[str, Any]] = []
    merged: Fields = {}
    current: Fields = {}
    for position, sample in zip(positions, samples, strict=True):
        found = describe_sample(sample)
        merged = _merge(merged, found)
        if (
            schemas
            and list(current) == list(found)
            and all(current[name].agrees(field) for name, field in found.items())
        ):
            current.update(_merge(current, found))
        elif len(schemas) == MAX_SCHEMAS:
            current = found  # removed from `schemas`
        else:
            current = found
            where = {"position": position, "key": sample.key}
            schemas.append({**where, "shard": sample.shard.path, "fields": current})
    for schema in schemas:
        fields = schema["fields"]
        schema["fingerprint"] = fingerprint(fields)
        schema["fields"] = {name: str(field) for name, field in fields.items()}
    return schemas, merged


def _merge(known: Fields, found: Fields) -> Fields:
    both = {
        name: known[name].merged(field) if name in known else field
        for name, field in found.items()
    }
    return known | both


def stat_lines(figures: Mapping[str, Any]) -> Iterator[str]:
    """Yield the output lines of ``stat``."""
    yield figures["dataset"]
    yield f"  shards   {figures['shards']:,}"
    yield f"  samples  {figures['samples']:,}, {figures['examined']:,} examined"
    yield f"  bytes    {figures['bytes']:,}"
    for name, field in figures["fields"].items():
        yield f"  field    {escape_name(name)}: {StoredField(**field)}"
    for schema in figures["schemas"]:
        where = f"sample {schema['position']:,}, {escape_name(schema['key'])}"
        yield f"  schema   {schema['fingerprint']} from {where} of {schema['shard']}"
