"""Tensors of Apache Arrow, in its IPC format."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

__all__ = ["decode", "encode"]


def encode(value: object) -> bytes:
    """Return the IPC message of a tensor."""
    if not isinstance(value, pa.Tensor):
        raise TypeError(f"expected a pyarrow.Tensor, got {type(value).__name__}")
    stream = pa.BufferOutputStream()
    pa.ipc.write_tensor(value, stream)
    data: bytes = stream.getvalue().to_pybytes()
    return data


def decode(data: bytes) -> Any:
    """Return the tensor of an IPC message."""
    return pa.ipc.read_tensor(pa.BufferReader(data))
