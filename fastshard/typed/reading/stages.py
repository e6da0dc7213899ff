"""Stages of typed datasets: from stored samples to objects, and to dicts."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

from fastshard._core.typed.plan import TypePlan
from fastshard.dataset.fields.alternatives import missing_from
from fastshard.typed.dict_sample import DictSample
from fastshard.typed.fields import (
    FieldPlan,
    field_plans,
    has_post_init,
    plan_of,
    unpack,
)
from fastshard.typed.lenses.lens import Lens
from fastshard.typed.reading.sample_fields import row_of, value_of

__all__ = ["Decoding", "FieldSelection", "KeyedDecoder", "LensStage", "StructuralView"]


class Decoding(NamedTuple):
    """First stage of a typed dataset: from stored samples to objects.

    Attributes
    ----------
    kind : type
        The class of the objects.
    copy, aligned, strict : bool
        As for `Dataset`.
    fields : tuple of str or None
        The only fields that are decoded, to a namespace instead of an object.
    """

    kind: Any
    copy: bool = False
    aligned: bool = False
    strict: bool = False
    fields: tuple[str, ...] | None = None

    def decoder(self) -> Callable[[Any], Any]:
        """Return the function of a stored sample."""
        # Here, for it imports NumPy.
        from fastshard._core.typed.decoder import MapDecoder, TypedDecoder

        if issubclass(self.kind, DictSample):
            return MapDecoder(self.kind, self.copy)
        return TypedDecoder(self.plan(), self.copy, self.aligned)

    def plan(self) -> TypePlan[Any]:
        """Return the plan that makes the objects."""
        if self.fields is None:
            return plan_of(self.kind, self.strict)
        return plan_part(self.kind, self.fields)

    def unpack(self, payload: Any) -> Any:
        """Return the object of a payload."""
        if issubclass(self.kind, DictSample):
            return self.kind.from_bytes(payload)
        return unpack(self.plan(), payload, self.copy, self.aligned)


def plan_part(kind: Any, names: tuple[str, ...]) -> TypePlan[Any]:
    """Return the plan that decodes some fields of a class, to a namespace."""
    fields = {field.name: field for field in field_plans(kind)}
    wanted = tuple(fields[name] for name in dict.fromkeys(names))
    # A namespace with the class's name, for errors.
    holder: Any = type(kind.__name__, (SimpleNamespace,), {})
    return TypePlan(holder, wanted, False, False)


class FieldSelection:
    """Mapped function: some fields of a sample, as a `DictSample`."""

    def __init__(self, fields: tuple[str, ...]) -> None:
        self.fields = fields

    def __call__(self, sample: Any) -> DictSample:
        if isinstance(sample, SimpleNamespace):
            return DictSample(vars(sample))
        return DictSample({name: value_of(sample, name) for name in self.fields})

    def describe(self) -> str:
        """Return the text of the stage in a dataset's repr."""
        return " ".join(("fields", *self.fields))


def is_same_field(field: FieldPlan, other: FieldPlan | None) -> bool:
    """Return whether two types decode a field in the same way."""
    try:
        return bool(field == other)
    except ValueError:  # defaults that are arrays
        return False


class KeyedDecoder:
    """Mapped function: a stored sample as a dict of values and its key."""

    def __init__(
        self,
        first: Decoding,
        stages: tuple[Callable[[Any], Any], ...],
        fields: tuple[str, ...],
    ) -> None:
        self.first = first
        self.stages = stages
        self.fields = fields
        self._decoder = first.decoder()

    def __call__(self, sample: Any) -> dict[str, Any]:
        item = self._decoder(sample)
        for stage in self.stages:
            item = stage(item)
        row = row_of(item)
        for name in self.fields:
            if name not in row:
                raise missing_from(f"sample {sample.key!r}, which has", (name,), row)
        return {
            "__key__": sample.key,
            **{name: row[name] for name in self.fields or row},
        }

    def describe(self) -> str:
        """Return the text of the stage in a dataset's repr."""
        return " ".join(("decode", *self.fields))

    def __reduce__(self) -> tuple[Any, ...]:
        return KeyedDecoder, (self.first, self.stages, self.fields)


class LensStage:
    """Mapped function: the view of a sample through a lens."""

    def __init__(self, lens: Lens[Any, Any]) -> None:
        self.lens = lens
        self._get = lens.get

    def __call__(self, sample: Any) -> Any:
        return self._get(sample)

    def describe(self) -> str:
        """Return the text of the stage in a dataset's repr."""
        return f"as {getattr(self.lens.view_type, '__name__', '?')}"

    def __reduce__(self) -> tuple[Any, ...]:
        return LensStage, (self.lens,)


class StructuralView:
    """Function from samples of one type to another with a subset of the fields."""

    def __init__(
        self, kind: type, names: tuple[str, ...], by_payload: bool = False
    ) -> None:
        self.kind = kind
        self.names = names
        self.by_payload = by_payload

    def __call__(self, sample: Any) -> Any:
        if self.by_payload:
            return self.kind.from_bytes(sample.packed)  # type: ignore[attr-defined]
        return self.kind(**{name: getattr(sample, name) for name in self.names})

    def describe(self) -> str:
        """Return the text of the stage in a dataset's repr."""
        return f"as {self.kind.__name__}"

    def is_part(self, source: Any) -> bool:
        """Return whether decoding stored samples of `source` gives the same objects."""
        if is_made_of_schema(source):
            return True
        if has_post_init(source):
            return False
        plans = {field.name: field for field in field_plans(source)}
        return all(
            field.decode is None and is_same_field(field, plans.get(field.name))
            for field in field_plans(self.kind)
        )

    @classmethod
    def between(cls, source: Any, view: Any) -> StructuralView | None:
        """Return the function from `source` to `view`; None if fields are missing."""
        if not (dataclasses.is_dataclass(source) and dataclasses.is_dataclass(view)):
            return None
        there = {field.name for field in dataclasses.fields(source)}
        wanted = [field for field in dataclasses.fields(view) if field.init]
        for field in wanted:
            has_default = (
                field.default is not dataclasses.MISSING
                or field.default_factory is not dataclasses.MISSING
            )
            if field.name not in there and not has_default:
                return None
        assert isinstance(view, type)
        by_payload = is_made_of_schema(source) and any(
            field.decode is not None for field in field_plans(view)
        )
        return cls(view, tuple(f.name for f in wanted if f.name in there), by_payload)


def is_made_of_schema(kind: Any) -> bool:
    """Return whether a type has the fields of a schema and nothing else."""
    return "__schema_content__" in vars(kind)
