"""Encoding of payloads: values of Python, NumPy and other libraries as msgpack."""

from __future__ import annotations

import dataclasses
import enum
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from fastshard._core.typed.encode import PayloadEncoder
from fastshard._util.writing.dtypes import explain_unnamed
from fastshard.typed.kinds.registry import kind_of_value

if TYPE_CHECKING:
    import numpy as np

__all__ = ["ArrayFormat", "encode_array", "make_encoder", "pack"]

ArrayFormat = Literal["npy", "compact"]
Convert = Callable[[Any, "str | None"], object]
MAX_TEXT = 65_535 - 64  # bytes of a header of npy 1.0, without padding
MAX_DTYPE = 255  # bytes of a compact array's dtype


def make_encoder(
    names: list[str],
    *,
    array_format: ArrayFormat = "npy",
    dtypes: Mapping[str, Any] | None = None,
    encoders: Mapping[str, Callable[[Any], object]] | None = None,
    kinds: Mapping[str, str] | None = None,
) -> PayloadEncoder:
    """Return an encoder of samples with these fields."""
    if array_format not in ("npy", "compact"):
        raise ValueError(
            f"array_format must be 'npy' or 'compact', got {array_format!r}"
        )
    compact = array_format == "compact"
    plain = convert_compact if compact else convert
    if encoders:
        plain = partial(convert_field, dict(encoders), plain)
    if dtypes:
        declared = {k: v for k, v in dtypes.items() if is_bfloat16(v)}
        if declared:
            plain = partial(convert_bfloat16, frozenset(declared), plain)
    describe = describe_compact if compact else describe_npy
    own = encoders or ()
    return PayloadEncoder(names, plain, describe, compact, own, kinds or {}, dtypes)


_untyped: dict[str, PayloadEncoder] = {}  # by format of arrays


def pack(values: Mapping[str, Any], *, array_format: ArrayFormat = "npy") -> bytes:
    """Return the payload of values by field."""
    encoder = _untyped.get(array_format)
    if encoder is None:
        encoder = _untyped[array_format] = make_encoder([], array_format=array_format)
    return encoder.encode_map(values if type(values) is dict else dict(values))


def encode_array(array: np.ndarray[Any, Any], array_format: ArrayFormat) -> bytes:
    """Return an array's bytes, npy or compact."""
    import numpy as np

    array = np.asanyarray(array)
    if array_format == "npy" or array.dtype.names is not None:
        return save_npy(arrange(array, False))
    array = arrange(array, True)
    return describe_compact(array, False)[1] + array.tobytes()


def save_npy(array: Any) -> bytes:
    """Return the bytes of `np.save`."""
    import io

    import numpy as np

    check_dtype(array.dtype)
    stream = io.BytesIO()
    np.lib.format.write_array(stream, array, allow_pickle=False)
    return stream.getvalue()


def convert(value: Any, name: str | None) -> object:
    """Return a plain value for any other; called by `PayloadEncoder`."""
    if isinstance(value, enum.Enum):
        return value.value
    # Subclasses, also NumPy's float64, str_ and bytes_.
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, bytes):
        return memoryview(value)
    if isinstance(value, (list, tuple)):
        return list(value)
    if isinstance(value, dict):
        return dict(value)
    if isinstance(value, (bytearray, memoryview)):
        return flatten(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        return ({field.name: getattr(value, field.name) for field in fields},)
    return convert_library(value, name)


def convert_library(value: Any, name: str | None) -> object:
    """Return a plain value for one of NumPy; arrays only for a field."""
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.generic):
        number = value.item()
        if type(number) in (bool, int, float):
            return number
    elif numpy is not None and isinstance(value, numpy.ndarray):
        if name is None:
            raise TypeError(
                "an array must be a field of a sample, not a value in a list or map"
            )
        check_dtype(value.dtype)
        return arrange(value, False)
    kind = kind_of_value(value)
    if kind is not None and (name is not None or kind.is_item):
        return kind.to_stored(value)
    raise TypeError(f"cannot store {describe_type(value)}")


def convert_compact(value: Any, name: str | None) -> object:
    """Return a plain value; a structured array as the bytes of `np.save`."""
    import numpy as np

    if name is None or not isinstance(value, np.ndarray):
        return convert(value, name)
    if value.dtype.names is not None:
        return save_npy(arrange(value, False))
    check_dtype(value.dtype)
    return arrange(value, True)


def convert_field(
    encoders: Mapping[str, Callable[[Any], object]],
    convert: Convert,
    value: Any,
    name: str | None,
) -> object:
    """Return a plain value, by the field's own encoder if it has one."""
    encode = None if name is None else encoders.get(name)
    return convert(value, name) if encode is None else encode(value)


def convert_bfloat16(
    fields: frozenset[str],
    convert: Convert,
    value: Any,
    name: str | None,
) -> object:
    """Return a plain value; arrays of bfloat16 of these fields as uint16."""
    if name in fields and is_bfloat16(getattr(value, "dtype", None)):
        value = arrange(value, False).view("<u2")
    return convert(value, name)


def is_bfloat16(dtype: Any) -> bool:
    """Return whether a dtype, or its type, is that of ml_dtypes."""
    library = sys.modules.get("ml_dtypes")
    if library is None:
        return False
    return dtype is library.bfloat16 or getattr(dtype, "type", None) is library.bfloat16


def flatten(value: bytearray | memoryview) -> memoryview:
    """Return a buffer whose bytes lie in order."""
    view = memoryview(value)
    return view if view.contiguous else memoryview(view.tobytes())


def arrange(array: Any, c_order: bool) -> Any:
    """Return an ndarray with data in C order, or Fortran order unchanged."""
    import numpy as np

    if isinstance(array, np.ma.MaskedArray):
        raise TypeError("expected an array without a mask: npy stores no masks")
    array = np.asarray(array)
    if array.flags.c_contiguous or (array.flags.f_contiguous and not c_order):
        return array
    return np.array(array, order="C")


def describe_npy(array: Any, fortran: bool) -> tuple[int, bytes]:
    """Return npy's version, and a header without its padding and newline."""
    import numpy as np

    if is_foreign(array.dtype):
        return -1, b""
    check_dtype(array.dtype)
    descr = np.lib.format.dtype_to_descr(array.dtype)
    text = (
        f"{{'descr': {descr!r}, 'fortran_order': {fortran}, 'shape': {array.shape}, }}"
    )
    try:
        data, version = text.encode("latin-1"), 1
    except UnicodeEncodeError:
        return 3, text.encode()
    if len(data) > MAX_TEXT:
        version = 2
    return version, data


def describe_compact(array: Any, fortran: bool) -> tuple[int, bytes]:
    """Return 0 and the header of a compact array."""
    if is_foreign(array.dtype):
        return -1, b""
    check_dtype(array.dtype)
    name = array.dtype.str.encode()
    if len(name) > MAX_DTYPE:
        raise ValueError(f"a dtype has at most {MAX_DTYPE} letters, got {len(name)}")
    lengths = b"".join(n.to_bytes(8, "little") for n in array.shape)
    return 0, bytes([len(name)]) + name + bytes([array.ndim]) + lengths


def is_foreign(dtype: Any) -> bool:
    """Return whether a dtype belongs to another library, such as bfloat16."""
    return bool(dtype.type.__module__ != "numpy")


def check_dtype(dtype: Any) -> None:
    """Raise ValueError or TypeError for a dtype that a header does not describe."""
    reason = explain_unnamed(dtype)
    if reason is None:
        return
    if is_bfloat16(dtype):
        reason += ", or declare the field NDArray[ml_dtypes.bfloat16]"
    raise ValueError(reason) if dtype.hasobject else TypeError(reason)


def describe_type(value: object) -> str:
    kind = type(value)
    if kind.__module__ == "builtins":
        return kind.__qualname__
    return f"{kind.__module__}.{kind.__qualname__}"
