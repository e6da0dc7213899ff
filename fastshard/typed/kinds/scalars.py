"""Kinds with a msgpack type: scalars, and choices among them."""

from __future__ import annotations

import enum
import functools
import typing
from typing import Any, ClassVar, Literal, cast

from fastshard.errors import SchemaError
from fastshard.typed.kinds.base import (
    JSON,
    AggregateKind,
    Describe,
    Inner,
    Kind,
    PlanOf,
    SampleMaker,
)
from fastshard.typed.kinds.decoders import Decode, decoder_for
from fastshard.typed.kinds.value_type import ValueType

__all__ = ["KINDS", "PRIMITIVES"]

NBYTES = 16  # of test values


class IntKind(Kind):
    """Whole numbers."""

    name = schema_name = opcode = "int"
    python = int
    json_schema: ClassVar = {"type": "integer"}
    aggregate = "numeric"

    def make(self, name: str, maker: SampleMaker) -> Any:
        return maker.i


class FloatKind(Kind):
    """Floating-point numbers."""

    name = schema_name = opcode = "float"
    python = float
    json_schema: ClassVar = {"type": "number"}
    aggregate = "numeric"

    def make(self, name: str, maker: SampleMaker) -> Any:
        return float(maker.rng.random())


class BoolKind(Kind):
    """True and False."""

    name = schema_name = opcode = "bool"
    python = bool
    json_schema: ClassVar = {"type": "boolean"}
    aggregate = "categorical"

    def make(self, name: str, maker: SampleMaker) -> Any:
        return maker.i % 2 == 0


class BytesKind(Kind):
    """Bytes, in JSON Schema a string."""

    name = schema_name = opcode = "bytes"
    python = bytes
    json_schema: ClassVar = {
        "type": "string",
        "format": "byte",
        "contentEncoding": "base64",
    }

    @classmethod
    def from_property(cls, found: JSON, inner: Inner) -> ValueType | None:
        """Return the type of a string that one of both keys declares as bytes."""
        is_bytes = found.get("format") == "byte" or (
            found.get("contentEncoding") == "base64"
        )
        return ValueType("bytes") if found["type"] == "string" and is_bytes else None

    def make(self, name: str, maker: SampleMaker) -> Any:
        return maker.rng.bytes(NBYTES)


class TextKind(Kind):
    """Text."""

    name = schema_name = opcode = "str"
    python = str
    json_schema: ClassVar = {"type": "string"}
    aggregate = "categorical"


class NoneKind(Kind):
    """None alone."""

    name = opcode = "none"

    @classmethod
    def of(cls, hint: Any, describe: Describe) -> Kind | None:
        return cls(optional=True) if hint is None or hint is type(None) else None

    def make(self, name: str, maker: SampleMaker) -> Any:
        return None


class AnyKind(Kind):
    """Values of any msgpack type."""

    name = "any"
    python = Any

    @classmethod
    def of(cls, hint: Any, describe: Describe) -> Kind | None:
        return cls() if hint is Any or isinstance(hint, typing.TypeVar) else None

    def decoder(self, plan_of: PlanOf) -> Decode | None:
        return decoder_for(Any)


class ChoiceKind(Kind):
    """One of several values: of a literal, or the members of an enumeration."""

    def choices(self) -> list[Any]:
        """Return the stored values."""
        return list(self.values)

    def to_schema(self, describe_class: Inner) -> dict[str, Any]:
        values = sorted(map(repr, self.choices()))
        return {**super().to_schema(describe_class), "values": values}

    def value_type(self) -> ValueType:
        """Return the common type of the values."""
        types = {type(value).__name__ for value in self.choices()}
        if len(types) == 1 and types <= {*PRIMITIVES}:
            return ValueType(types.pop())
        raise TypeError(f"the values of this {self.name} are not of one type")

    def make(self, name: str, maker: SampleMaker) -> Any:
        values = self.values or tuple(cast(Any, self.cls))
        return values[maker.i % len(values)]


class LiteralKind(ChoiceKind):
    """The values of ``Literal``."""

    name = "literal"

    @classmethod
    def of(cls, hint: Any, describe: Describe) -> Kind | None:
        if typing.get_origin(hint) is not Literal:
            return None
        args = typing.get_args(hint)
        values = tuple(value for value in args if value is not None)
        return cls(optional=None in args, values=values)

    @property
    def aggregate(self) -> AggregateKind | None:  # type: ignore[override]
        types = {type(value) for value in self.values}
        known: dict[type, AggregateKind | None]
        known = {each.python: each.aggregate for each in KINDS}
        return known.get(types.pop()) if len(types) == 1 else None

    def inner_type(self, stand_in: Inner) -> Any:
        return Literal[self.values]

    def decoder(self, plan_of: PlanOf) -> Decode | None:
        known = {(type(value), value): value for value in self.values}
        return functools.partial(decode_literal, decoder_for(Any), known, self.optional)


class EnumKind(ChoiceKind):
    """The members of an enumeration, stored by value."""

    name = "enum"
    aggregate = "categorical"

    @classmethod
    def of(cls, hint: Any, describe: Describe) -> Kind | None:
        is_enum = isinstance(hint, type) and issubclass(hint, enum.Enum)
        return cls(cls=hint) if is_enum else None

    def choices(self) -> list[Any]:
        members = cast("type[enum.Enum]", self.cls).__members__
        return [member.value for member in members.values()]

    def inner_type(self, stand_in: Inner) -> Any:
        return self.cls

    def decoder(self, plan_of: PlanOf) -> Decode | None:
        return functools.partial(
            decode_enum, decoder_for(Any), cast(Any, self.cls), self.optional
        )


KINDS: tuple[type[Kind], ...] = (
    *(IntKind, FloatKind, BoolKind, BytesKind, TextKind, NoneKind, AnyKind),
    *(LiteralKind, EnumKind),
)
PRIMITIVES = tuple(each.name for each in KINDS if each.schema_name is not None)


def decode_literal(
    decode: Decode, known: dict[Any, Any], optional: bool, view: memoryview
) -> Any:
    """Decode a value that is one of several."""
    value = decode(view)
    if value is None and optional:
        return None
    try:
        return known[type(value), value]
    except (KeyError, TypeError):  # TypeError: a container
        choices = ", ".join(repr(each) for each in known.values())
        raise SchemaError(f"{value!r} is not one of {choices}", "", 0) from None


def decode_enum(
    decode: Decode, cls: type[enum.Enum], optional: bool, view: memoryview
) -> Any:
    """Decode the value of a member of an enumeration."""
    value = decode(view)
    if value is None and optional:
        return None
    try:
        return cls(value)
    except (ValueError, TypeError) as error:
        raise SchemaError(str(error), "", 0) from None
