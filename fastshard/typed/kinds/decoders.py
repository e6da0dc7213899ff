"""Decoders of fields that are neither scalars nor arrays: containers, unions, samples.

A decoder takes a view of the encoded msgpack value. msgspec decodes and checks it;
values without a msgspec type are decoded untyped and checked here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastshard.codecs.libraries import import_library
from fastshard.errors import FormatError, SchemaError

__all__ = ["Decode", "NestedSamples", "SampleField", "decoder_for", "is_nil"]

Decode = Callable[[memoryview], Any]


def decoder_for(hint: Any, hook: NestedSamples | None = None) -> Decode:
    """Return msgspec's decoder for a type."""
    msgspec = load_msgspec()
    dec_hook = hook if hook is not None and hook.classes else None
    decode: Decode = msgspec.msgpack.Decoder(hint, dec_hook=dec_hook).decode
    return decode


def load_msgspec() -> Any:
    """Import msgspec."""
    need = "msgspec is needed for fields that are containers"
    return import_library("msgspec", need, "'fastshard[typed]'")


class StandIn(type):
    """Stand-in classes, unknown to msgspec, for classes of samples."""

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
        """Return a class unknown to msgspec, for a class of samples."""
        mark = StandIn(cls.__name__, (), {"__module__": cls.__module__})
        mark.of = cls
        self.classes[mark] = cls
        return mark

    def __call__(self, mark: type, value: Any) -> Any:
        data = load_msgspec().msgpack.encode(value)
        return self.plan_of(self.classes[mark]).from_buffer(data, copy=True)


class SampleField:
    """Decoder of a field that is a sample; its plan is made at first use."""

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
