"""Kinds with parts: lists, tuples, dicts, unions, nested samples."""

from __future__ import annotations

import collections.abc
import functools
import operator
import types
import typing
from typing import Any, ClassVar, cast

from fastshard.typed.kinds.annotations import is_sample_type
from fastshard.typed.kinds.base import (
    JSON,
    AggregateKind,
    Describe,
    Inner,
    Kind,
    PlanOf,
    SampleMaker,
)
from fastshard.typed.kinds.decoders import (
    Decode,
    NestedSamples,
    SampleField,
    decoder_for,
)
from fastshard.typed.kinds.value_type import ValueType

__all__ = ["KINDS"]

LENGTH = 3  # of test values


class ContainerKind(Kind):
    """Values in which msgspec decodes other kinds."""

    def decoder(self, plan_of: PlanOf) -> Decode | None:
        hook = NestedSamples(plan_of)
        return decoder_for(self.item_type(hook.stand_in), hook)


class ListKind(ContainerKind):
    """Lists, whose items are of one kind or any."""

    name = "list"
    schema_name = "array"
    python: ClassVar[Any] = list
    origins: ClassVar[tuple[Any, ...]] = (list,)
    json_schema: ClassVar = {"type": "array"}
    aggregate: ClassVar[AggregateKind | None] = "set"

    @classmethod
    def of(cls, hint: Any, describe: Describe) -> Kind | None:
        if (typing.get_origin(hint) or hint) not in cls.origins:
            return None
        return cls(items=describe_items(typing.get_args(hint), describe))

    def inner_type(self, stand_in: Inner) -> Any:
        if not self.items:
            return list
        return types.GenericAlias(list, (self.items[0].item_type(stand_in),))

    def value_type(self) -> ValueType:
        return ValueType("array", items=common_type(self.items))

    @classmethod
    def to_property(cls, value: ValueType, inner: Inner) -> dict[str, Any]:
        found = {"type": "array"}
        return found if value.items is None else {**found, "items": inner(value.items)}

    @classmethod
    def from_property(cls, found: JSON, inner: Inner) -> ValueType | None:
        if found["type"] != "array":
            return None
        items = found.get("items")
        if items is None or items == {}:
            return ValueType("array")
        value, is_nullable = inner(items)
        return ValueType("array", items=None if is_nullable else value)

    @classmethod
    def from_local(cls, found: JSON, where: str, inner: Inner) -> ValueType:
        items = found.get("items")
        return ValueType("array", items=None if items is None else inner(items))

    @classmethod
    def annotation(cls, value: ValueType, where: str, inner: Inner) -> Any:
        if value.items is None:
            return list
        return types.GenericAlias(list, (inner(value.items, where),))

    @classmethod
    def stub(cls, value: ValueType, where: str, prefix: str, inner: Inner) -> str:
        items = "Any" if value.items is None else inner(value.items, prefix, where)
        return f"{prefix}list[{items}]"

    def make(self, name: str, maker: SampleMaker) -> Any:
        names = part_names(name, maker)
        if not self.items or self.items[0].name in ("str", "any"):
            return names
        return [self.items[0].make(each, maker) for each in names]


class SequenceKind(ListKind):
    """Lists declared as sequences; manifests do not summarize them."""

    origins = (collections.abc.Sequence, collections.abc.MutableSequence)
    aggregate = None


class TupleKind(ListKind):
    """Tuples, in schemas lists."""

    name = "tuple"
    python = tuple
    aggregate = None

    @classmethod
    def of(cls, hint: Any, describe: Describe) -> Kind | None:
        if (typing.get_origin(hint) or hint) is not tuple:
            return None
        args = typing.get_args(hint)
        if hint is tuple or hint is typing.Tuple:  # noqa: UP006
            return cls(is_variadic=True)
        is_variadic = len(args) == 2 and args[1] is ...
        args = args[:1] if is_variadic else args
        return cls(items=describe_items(args, describe), is_variadic=is_variadic)

    def inner_type(self, stand_in: Inner) -> Any:
        inner = tuple(item.item_type(stand_in) for item in self.items)
        if not self.is_variadic:
            return types.GenericAlias(tuple, inner)
        return types.GenericAlias(tuple, (*inner, ...)) if inner else tuple

    def make(self, name: str, maker: SampleMaker) -> Any:
        if self.is_variadic or not self.items:
            return tuple(super().make(name, maker))
        return tuple(item.make(name, maker) for item in self.items)


class DictKind(ContainerKind):
    """Dicts; their schemas lack the types of values."""

    name = "dict"
    schema_name = "object"
    python = dict
    json_schema: ClassVar = {"type": "object"}
    origins = (dict, collections.abc.Mapping, collections.abc.MutableMapping)

    @classmethod
    def of(cls, hint: Any, describe: Describe) -> Kind | None:
        if (typing.get_origin(hint) or hint) not in cls.origins:
            return None
        return cls(items=describe_items(typing.get_args(hint), describe))

    def inner_type(self, stand_in: Inner) -> Any:
        inner = tuple(item.item_type(stand_in) for item in self.items)
        return types.GenericAlias(dict, inner) if inner else dict

    @classmethod
    def stub(cls, value: ValueType, where: str, prefix: str, inner: Inner) -> str:
        return f"{prefix}dict[{prefix}str, Any]"

    def make(self, name: str, maker: SampleMaker) -> Any:
        names = part_names(name, maker)
        if not self.items:
            return dict.fromkeys(names, maker.i)
        return {each: self.items[1].make(each, maker) for each in names}


class UnionKind(ContainerKind):
    """Values of several kinds."""

    name = "union"

    @classmethod
    def of(cls, hint: Any, describe: Describe) -> Kind | None:
        if typing.get_origin(hint) not in (typing.Union, types.UnionType):
            return None
        kinds: list[Kind] = []
        for each in map(describe, typing.get_args(hint)):
            kinds += each.items if each.name == "union" else [each]
            if each.name == "union" and each.optional:
                kinds.append(describe(None))
        optional = any(kind.optional for kind in kinds)
        others = [k.replaced(optional=False) for k in kinds if k.name != "none"]
        others = list(dict.fromkeys(others))
        if len(others) == 1:
            return others[0].replaced(optional=optional)
        for kind in others:
            if not kind.is_alternative:
                raise TypeError(
                    f"a union of {kind.name}s and other types than None cannot be a "
                    "field"
                )
        return cls(optional=optional, items=tuple(others))

    def inner_type(self, stand_in: Inner) -> Any:
        inner = [item.item_type(stand_in) for item in self.items]
        return functools.reduce(operator.or_, inner)

    def to_schema(self, describe_class: Inner) -> dict[str, Any]:
        """Return the schema; the order of alternatives has no meaning."""
        import json

        found = super().to_schema(describe_class)
        found["items"].sort(key=lambda item: json.dumps(item, sort_keys=True))
        return found

    def make(self, name: str, maker: SampleMaker) -> Any:
        chosen = next(each for each in self.items if each.name != "none")
        return chosen.make(name, maker)


class SampleKind(Kind):
    """Samples within samples."""

    name = "sample"
    is_alternative = False

    @classmethod
    def of(cls, hint: Any, describe: Describe) -> Kind | None:
        origin = typing.get_origin(hint) or hint
        return cls(cls=origin) if is_sample_type(origin) else None

    def inner_type(self, stand_in: Inner) -> Any:
        return stand_in(cast(type, self.cls))

    def decoder(self, plan_of: PlanOf) -> Decode | None:
        return SampleField(cast(type, self.cls), self.optional, plan_of)

    def to_schema(self, describe_class: Inner) -> dict[str, Any]:
        inner: dict[str, Any] = describe_class(self.cls)
        return super().to_schema(describe_class) | inner

    def value_type(self) -> ValueType:
        raise TypeError(
            "Nested dataclass types not yet supported: a schema has no samples within "
            f"samples, as {cast(type, self.cls).__qualname__} is"
        )

    def make(self, name: str, maker: SampleMaker) -> Any:
        return maker.make_sample(cast(type, self.cls))


KINDS: tuple[type[Kind], ...]
KINDS = (ListKind, SequenceKind, TupleKind, DictKind, UnionKind, SampleKind)


def describe_items(args: tuple[Any, ...], describe: Describe) -> tuple[Kind, ...]:
    """Return the kinds of the items of a container."""
    kinds = tuple(map(describe, args))
    for kind in kinds:
        if not kind.is_item:
            raise TypeError(
                f"{kind.name}s inside containers cannot be fields of a sample"
            )
    return kinds


def common_type(kinds: tuple[Kind, ...]) -> ValueType | None:
    """Return the common type of a list's items, or None."""
    if not kinds or any(kind.optional for kind in kinds):
        return None
    try:
        first, *others = [kind.value_type() for kind in kinds]
    except TypeError:
        return None
    return first if all(other == first for other in others) else None


def part_names(name: str, maker: SampleMaker) -> list[str]:
    """Return the names of the parts of a test value."""
    return [f"{name}_{maker.i}_{j}" for j in range(LENGTH)]
