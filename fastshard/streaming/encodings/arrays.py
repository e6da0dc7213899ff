"""MDS encoding of arrays."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from fastshard._util.writing.dtypes import suggest_plain
from fastshard.streaming.encodings.base import Buffer, Encoding, check_size, fail

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["DTYPES", "NDArrayEncoding"]

DTYPES = {  # by the byte that stands for them
    8: "uint8",
    9: "int8",
    16: "uint16",
    17: "int16",
    18: "float16",
    32: "uint32",
    33: "int32",
    34: "float32",
    64: "uint64",
    65: "int64",
    66: "float64",
}
CODES = {dtype: code for code, dtype in DTYPES.items()}
MAX_NDIM = 63
MAX_NBYTES = 2**63 - 1  # of a shape that an encoding tells


class NDArrayEncoding(Encoding):
    """Array of numbers; its dtype, or dtype and shape, are part of the encoding or not.

    Stored are a byte for the dtype, unless it is given; the number of dimensions and
    the dimensions, unless they are given; and the values in C order, little-endian.
    """

    def __init__(
        self, dtype: str | None = None, shape: tuple[int, ...] | None = None
    ) -> None:
        if dtype is not None and dtype not in CODES:
            raise ValueError(f"unsupported dtype: {dtype}")
        if shape is not None and (dtype is None or not 0 < len(shape) <= MAX_NDIM):
            raise ValueError(f"unsupported shape: {shape}")
        self.dtype = dtype
        self.shape = shape
        if shape is not None:
            nbytes = math.prod(shape) * np.dtype(dtype).itemsize
            if min(shape) < 1 or nbytes > MAX_NBYTES:
                raise ValueError(f"unsupported shape: {shape}")
            self.size = nbytes

    @classmethod
    def from_str(cls, text: str) -> NDArrayEncoding:
        """Return the encoding of ``"DTYPE"`` or ``"DTYPE:DIM,DIM"``."""
        dtype, *dims = text.split(":")
        if len(dims) > 1 or len(text) > 4096:  # int() of many digits is slow
            raise ValueError(f"not a dtype and a shape: {text[:80]!r}")
        shape = tuple(map(int, dims[0].split(","))) if dims else None
        return cls(dtype or None, shape)

    def encode(self, obj: Any) -> bytes:
        dtype = obj.dtype
        code = CODES.get(dtype.name)
        if code is None:
            raise ValueError(
                f"Unsupported dtype: {dtype.name}. Store it as {suggest_plain(dtype)}."
            )
        head = b""
        if self.dtype is None:
            head = bytes([code])
        elif dtype.name != self.dtype:
            raise ValueError(f"Wrong dtype: expected {self.dtype}, got {dtype.name}.")
        if obj.size == 0:
            raise ValueError("Attempting to encode a numpy array with 0 elements.")
        if self.shape is None:
            head += encode_shape(obj.shape)
        elif obj.shape != self.shape:
            raise ValueError(f"Wrong shape: expected {self.shape}, got {obj.shape}.")
        values: bytes = obj.astype(dtype.newbyteorder("<"), copy=False).tobytes()
        return head + values

    def decode(self, data: Buffer) -> NDArray[Any]:
        dtype, shape, at = self.decode_header(data)
        return np.frombuffer(data, dtype, offset=at).reshape(shape)

    def decode_header(self, data: Buffer) -> tuple[np.dtype[Any], tuple[int, ...], int]:
        """Return dtype, shape, and the offset of the values, which end with `data`."""
        at = 0
        name = self.dtype
        if name is None:
            name = DTYPES.get(data[0]) if len(data) else None
            if name is None:
                fail("no dtype of an array", 0)
            at = 1
        dtype = np.dtype(name).newbyteorder("<")
        if self.shape is not None:
            check_size(data, self.size or 0)
            return dtype, self.shape, at
        shape, end = decode_shape(data, at)
        if math.prod(shape) * dtype.itemsize != len(data) - end:
            fail(f"{len(data) - end:,} bytes for an array {shape} of {name}", at)
        return dtype, shape, end


def encode_shape(shape: tuple[int, ...]) -> bytes:
    """Return a shape in the smallest integers that hold its largest dimension."""
    if not shape:
        raise ValueError(
            "Attempting to encode a scalar with NDArray encoding. "
            "Please use a scalar encoding."
        )
    if len(shape) > MAX_NDIM:
        raise ValueError(f"Array has too many axes: maximum 63, got {len(shape)}.")
    largest = max(shape)
    k = (largest >= 2**8) + (largest >= 2**16) + (largest >= 2**32)
    return bytes([len(shape) << 2 | k]) + np.array(shape, f"<u{1 << k}").tobytes()


def decode_shape(data: Buffer, at: int) -> tuple[tuple[int, ...], int]:
    """Return the shape at an offset, and the offset behind it."""
    if len(data) <= at:
        fail("no shape of an array", at)
    ndim, width = data[at] >> 2, 1 << (data[at] & 3)
    end = at + 1 + ndim * width
    if end > len(data):
        fail(f"{len(data) - at - 1:,} bytes for {ndim} dimensions of an array", at)
    dims = np.frombuffer(data[at + 1 : end], f"<u{width}").tolist()
    return tuple(dims), end
