"""Dicts of arrays by name, in the format of safetensors."""

from __future__ import annotations

from typing import Any

import safetensors.numpy

__all__ = ["decode", "encode"]


def encode(value: object) -> bytes:
    """Return the file of a dict of arrays."""
    if not isinstance(value, dict):
        raise TypeError(f"expected a dict of arrays, got {type(value).__name__}")
    data: bytes = safetensors.numpy.save(value)
    return data


def decode(data: bytes) -> dict[str, Any]:
    """Return the dict of arrays of a file."""
    return dict(safetensors.numpy.load(data))
