"""Decoders of fields that are neither scalars nor arrays: containers, unions, samples.

A decoder takes a view of the encoded msgpack value. msgspec decodes and checks it; what
msgspec has no type for is decoded without a type and checked here.
"""

from __future__ import annotations

import enum
import functools
import operator
from collections.abc import Callable
from typing import Any, Literal

from fastshard.errors import FormatError, MissingLibraryError, SchemaError
from fastshard.typed.kinds import codecs
from fastshard.typed.kinds.annotations import FORMATS, Kind, show

__all__ = ["Decode", "decoder_of", "python_type"]

Decode = Callable[[memoryview], Any]
PLAIN = {
    "int": int,
    "float": float,
    "bool": bool,
    "str": str,
    "bytes": bytes,
    "none": None,
    "any": Any,
}


def decoder_of(kind: Kind, plan_of: Callable[[type], Any]) -> Decode:
    """Return the decoder of a field.

    Parameters
    ----------
    kind : Kind
        That of an object: no scalar, no array.
    plan_of : callable
        Returns the plan of a nested class.

    Raises
    ------
    TypeError
        No decoder can tell such values apart.
    """
    if kind.name == "sample":
        assert kind.cls is not None
        return SampleField(kind.cls, kind.optional, plan_of)
    if kind.name in FORMATS:
        return functools.partial(decode_format, kind.name, kind.cls, kind.optional)
    if kind.name == "literal":
        known = {(type(value), value): value for value in kind.values}
        return functools.partial(decode_literal, decoder_for(Any), known, kind.optional)
    if kind.name == "enum":
        assert kind.cls is not None
        return functools.partial(decode_enum, decoder_for(Any), kind.cls, kind.optional)
    hook = NestedSamples(plan_of)
    return decoder_for(python_type(kind, hook.stand_in), hook)


def decoder_for(hint: Any, hook: NestedSamples | None = None) -> Decode:
    """Return msgspec's decoder for a type."""
    msgspec = load_msgspec()
    dec_hook = hook if hook is not None and hook.classes else None
    decode: Decode = msgspec.msgpack.Decoder(hint, dec_hook=dec_hook).decode
    return decode


def load_msgspec() -> Any:
    """Import msgspec.

    Raises
    ------
    MissingLibraryError
        It is not installed.
    """
    try:
        import msgspec
        import msgspec.msgpack
    except ImportError as error:
        raise MissingLibraryError(
            "msgspec is needed for fields that are containers: "
            f"pip install 'fastshard[typed]' ({error})"
        ) from error
    return msgspec


def python_type(kind: Kind, stand_in: Callable[[type], type]) -> Any:
    """Return the type that msgspec decodes; `stand_in` gives those of samples."""
    inner = [python_type(item, stand_in) for item in kind.items]
    hint: Any
    if kind.name in PLAIN:
        hint = PLAIN[kind.name]
    elif kind.name == "list":
        hint = list[inner[0]] if inner else list  # type: ignore[valid-type]
    elif kind.name == "dict":
        hint = dict[inner[0], inner[1]] if inner else dict  # type: ignore[valid-type]
    elif kind.name == "tuple" and kind.is_variadic:
        hint = tuple[inner[0], ...] if inner else tuple  # type: ignore[valid-type]
    elif kind.name == "tuple":
        hint = tuple[tuple(inner)] if inner else tuple[()]  # type: ignore[misc]
    elif kind.name == "union":
        hint = functools.reduce(operator.or_, inner)
    elif kind.name == "literal":
        hint = Literal[kind.values]
    elif kind.name == "enum":
        hint = kind.cls
    elif kind.name == "sample":
        assert kind.cls is not None
        hint = stand_in(kind.cls)
    else:
        raise TypeError(f"{kind.name}s inside containers cannot be fields of a sample")
    return hint | None if kind.optional and hint is not None else hint


class StandIn(type):
    """Classes that msgspec does not know, of which samples are instances."""

    of: type

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, cls.of)


class NestedSamples:
    """msgspec's hook for samples inside containers.

    msgspec builds no samples: their schema evolution is that of their plans. It
    decodes their maps, which are encoded again for the plan.
    """

    def __init__(self, plan_of: Callable[[type], Any]) -> None:
        self.plan_of = plan_of
        self.classes: dict[type, type] = {}

    def stand_in(self, cls: type) -> type:
        """Return a class that msgspec does not know, for a class of samples."""
        mark = StandIn(cls.__name__, (), {"__module__": cls.__module__})
        mark.of = cls
        self.classes[mark] = cls
        return mark

    def __call__(self, mark: type, value: Any) -> Any:
        data = load_msgspec().msgpack.encode(value)
        return self.plan_of(self.classes[mark]).from_buffer(data, copy=True)


class SampleField:
    """Decoder of a field that is a sample itself; its plan is made when needed."""

    def __init__(
        self, cls: type, optional: bool, plan_of: Callable[[type], Any]
    ) -> None:
        self.cls = cls
        self.optional = optional
        self.plan_of = plan_of

    def __call__(self, view: memoryview) -> Any:
        if self.optional and is_nil(view):
            return None
        try:
            return self.plan_of(self.cls).from_buffer(view)
        except SchemaError:
            raise
        except FormatError as error:
            if error.member is not None:
                raise
            raise SchemaError(
                f"{self.cls.__qualname__}: {error.reason}", "", error.offset
            ) from None


def is_nil(view: memoryview) -> bool:
    return view[0] == 0xC0


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
        raise SchemaError(f"{value!r} is none of {choices}", "", 0) from None


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


def decode_format(name: str, cls: type | None, optional: bool, view: memoryview) -> Any:
    """Decode a value of another library from the bin that has its encoding."""
    if optional and is_nil(view):
        return None
    data = decoder_for(bytes)(view)
    try:
        value = codecs.decode(name, data)
    except (FormatError, MissingLibraryError):
        raise
    except Exception as error:  # of libraries, for bytes that they cannot read
        raise FormatError(f"no {name}: {error}", "", 0) from error
    if cls is not None and not isinstance(value, cls):
        raise SchemaError(f"expected {show(cls)}, got {show(type(value))}", "", 0)
    return value
