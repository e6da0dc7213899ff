"""Dicts of arrays by name, in the format of safetensors."""

from __future__ import annotations

from typing import Any

from fastshard.typed.kinds.base import SCHEMAS, EncodedKind, SampleMaker

__all__ = ["KINDS"]


class SafetensorsKind(EncodedKind):
    """Dicts of arrays by name; a field's format says so."""

    name = "safetensors"
    libraries = ("safetensors.numpy",)
    reference = f"{SCHEMAS}atdata-safetensors/1.0.0#/$defs/safetensors"
    lexicon = "safetensors"

    @staticmethod
    def encode(value: Any) -> object:
        """Return the file of a dict of arrays."""
        import safetensors.numpy

        if not isinstance(value, dict):
            raise TypeError(f"expected a dict of arrays, got {type(value).__name__}")
        return safetensors.numpy.save(value)

    @staticmethod
    def decode(data: Any) -> Any:
        """Return the dict of arrays of a file."""
        import safetensors.numpy

        return dict(safetensors.numpy.load(data))

    def make(self, name: str, maker: SampleMaker) -> Any:
        return {"values": maker.floats()}


KINDS = (SafetensorsKind,)
