"""Kinds of NumPy's arrays, and the names of their dtypes."""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Mapping
from typing import Any

from fastshard.errors import DescriptionError
from fastshard.typed.kinds.annotations import split_metadata
from fastshard.typed.kinds.base import (
    JSON,
    SCHEMAS,
    SHAPE,
    Describe,
    Inner,
    Kind,
    SampleMaker,
)
from fastshard.typed.kinds.value_type import ValueType, list_of, shorten

__all__ = ["KINDS", "ArrayKind", "canonical_dtype", "is_claimed", "resolve_dtype"]

MAX_DIMENSIONS = 64  # NumPy's own limit
MAX_DTYPE = 64  # characters
DTYPE = re.compile(r"[<>=|]?[A-Za-z]\w*(\[\w+\])?", re.ASCII)
CLAIMED = "float32"  # the dtype that atdata writes for arrays of any dtype


class ArrayKind(Kind):
    """Arrays of one dtype, of several, or of any."""

    name = opcode = "array"
    schema_name = "ndarray"
    is_item = False
    is_alternative = False
    is_format = True
    reference = f"{SCHEMAS}atdata-ndarray-bytes/1.0.0#/$defs/ndarray"
    words = ("ndarray",)
    lexicon = "ndarrayBytes"

    @classmethod
    def of(cls, hint: Any, describe: Describe) -> Kind | None:
        origin = typing.get_origin(hint) or hint
        args = typing.get_args(hint)
        if getattr(origin, "__name__", "") != "ndarray" or not isinstance(origin, type):
            return None
        if origin.__module__.partition(".")[0] != "numpy":
            return None
        return cls(scalars=scalars_of(args[1]) if len(args) > 1 else ())

    @classmethod
    def of_format(cls, declared: Kind) -> Kind:
        optional = declared.optional or declared.name == "any"
        return cls(optional, scalars=declared.scalars)

    @property
    def dtype(self) -> Any:
        """The dtype; for several, their closest common scalar class."""
        import numpy as np

        if not self.scalars:
            return None
        first, *others = self.scalars
        if not others:
            is_abstract = first.__module__ == "numpy" and not is_concrete(first)
            return first if is_abstract else np.dtype(first)
        for base in first.__mro__:
            if all(issubclass(scalar, base) for scalar in others):
                return None if base is np.generic else base
        return None

    def from_stored(self, data: bytes) -> Any:
        from fastshard._core.typed.arrays import unpack_array

        return unpack_array(data, copy=True)

    def to_schema(self, describe_class: Inner) -> dict[str, Any]:
        """Return the schema with the name of the dtype, without byte order."""
        import numpy as np

        names = sorted(
            np.dtype(scalar).name if scalar.__module__ != "numpy" else scalar.__name__
            for scalar in self.scalars
        )
        dtype = names if len(names) > 1 else next(iter(names), None)
        return {**super().to_schema(describe_class), "dtype": dtype}

    def value_type(self) -> ValueType:
        return ValueType("ndarray", self.dtype_name())

    def dtype_name(self) -> str | None:
        """Return the name of the dtype, None unless it is a single one."""
        import numpy as np

        if len(self.scalars) != 1:
            return None
        scalar = self.scalars[0]
        try:
            dtype = np.dtype(scalar)
        except TypeError:
            return None
        is_abstract = isinstance(scalar, type) and dtype.type is not scalar
        return None if is_abstract else bare_name(dtype)

    @classmethod
    def from_reference(cls, found: JSON, where: str) -> ValueType:
        dtype = dtype_of_text(found.get("dtype"), where)
        return ValueType("ndarray", dtype, *dimensions_of(found, where))

    @classmethod
    def annotation(cls, value: ValueType, where: str, inner: Inner) -> Any:
        from numpy.typing import NDArray

        if value.dtype is None or not value.is_exact:
            return NDArray[Any]
        scalar: Any = resolve_dtype(value.dtype, where)
        return NDArray[scalar]

    @classmethod
    def stub(cls, value: ValueType, where: str, prefix: str, inner: Inner) -> str:
        if value.dtype is None or not value.is_exact:
            return "NDArray[Any]"
        scalar: Any = resolve_dtype(value.dtype, where)
        is_numpy = scalar.__module__ == "numpy"
        return f"NDArray[{f'np.{scalar.__name__}' if is_numpy else 'Any'}]"

    def make(self, name: str, maker: SampleMaker) -> Any:
        """Return an array of the first declared dtype, or of float32."""
        import numpy as np

        rng = maker.rng
        dtype = np.dtype(usual_scalar(self.scalars[0]) if self.scalars else np.float32)
        if dtype.kind in "iu":
            high = min(np.iinfo(dtype).max, 100)
            return rng.integers(0, high, SHAPE, endpoint=True).astype(dtype)
        if dtype.kind in "mM":
            return rng.integers(0, 100, SHAPE).astype(dtype)
        if dtype.kind == "b":
            return rng.random(SHAPE) < 0.5
        if dtype.kind in "US":
            texts = [f"{name}_{maker.i}_{j}" for j in range(SHAPE[0] * SHAPE[1])]
            return np.array(texts, dtype).reshape(SHAPE)
        if dtype.kind not in "cf":
            return np.zeros(SHAPE, dtype)
        values = rng.standard_normal(SHAPE)
        if dtype.kind == "c":
            values = values + 1j * rng.standard_normal(SHAPE)
        return values.astype(dtype)


class StructuredKind(ArrayKind):
    """Arrays of a format for structured dtypes, npy included."""

    schema_name = "structured"
    reference = f"{SCHEMAS}atdata-structured-bytes/1.0.0#/$defs/structured"
    words = ("structured",)
    lexicon = "structuredBytes"

    @classmethod
    def of(cls, hint: Any, describe: Describe) -> Kind | None:
        return None  # a format only

    def value_type(self) -> ValueType:
        return ValueType("structured")

    @classmethod
    def from_reference(cls, found: JSON, where: str) -> ValueType:
        dtype = found.get("dtype")
        return ValueType("structured", dtype if isinstance(dtype, str) else None)

    @classmethod
    def from_local(cls, found: JSON, where: str, inner: Inner) -> ValueType:
        dtype = text_of_dtype(found.get("dtype"), where)
        return ValueType("structured", dtype, *dimensions_of(found, where))

    @classmethod
    def annotation(cls, value: ValueType, where: str, inner: Inner) -> Any:
        from numpy.typing import NDArray

        return NDArray[Any]

    @classmethod
    def stub(cls, value: ValueType, where: str, prefix: str, inner: Inner) -> str:
        return "NDArray[Any]"


KINDS: tuple[type[Kind], ...] = (ArrayKind, StructuredKind)


def is_claimed(value: ValueType) -> bool:
    """Return whether arrays have the dtype that atdata claims for all."""
    return value.kind == ArrayKind.schema_name and value.dtype == CLAIMED


def scalars_of(dtype: Any) -> tuple[Any, ...]:
    """Return the scalar types of ``np.dtype[...]``, none for any."""
    (scalar,) = typing.get_args(dtype) or (Any,)
    scalar, _ = split_metadata(scalar)
    if typing.get_origin(scalar) in (typing.Union, types.UnionType):
        each = [scalars_of_type(member) for member in typing.get_args(scalar)]
        return () if () in each else tuple(one for several in each for one in several)
    return scalars_of_type(scalar)


def scalars_of_type(scalar: Any) -> tuple[Any, ...]:
    import numpy as np

    scalar = typing.get_origin(scalar) or scalar  # of np.integer[Any]
    if scalar is Any or isinstance(scalar, typing.TypeVar) or scalar is np.generic:
        return ()
    if isinstance(scalar, type) and issubclass(scalar, np.generic):
        if issubclass(scalar, np.object_):
            raise TypeError("arrays of objects cannot be fields of a sample")
        return (scalar,)
    dtype: np.dtype[Any] = np.dtype(scalar)  # of Python's float, for example
    if dtype.hasobject:
        raise TypeError("arrays of objects cannot be fields of a sample")
    return (dtype.type,)


def usual_scalar(scalar: Any) -> Any:
    """Return a scalar type; for an abstract one a usual concrete one."""
    import numpy as np

    usual = (np.float32, np.int64, np.complex64, np.str_)
    if isinstance(scalar, type) and issubclass(scalar, np.generic):
        return next((each for each in usual if issubclass(each, scalar)), scalar)
    return scalar


def is_concrete(scalar: type) -> bool:
    """Return whether a NumPy scalar type has a dtype of its own."""
    import numpy as np

    abstract = (
        np.number,
        np.integer,
        np.signedinteger,
        np.unsignedinteger,
        np.inexact,
        np.floating,
        np.complexfloating,
        np.flexible,
        np.character,
        np.generic,
    )
    return scalar not in abstract


def bare_name(dtype: Any) -> str:
    """Return a dtype's name without byte order and without the length of its items."""
    return str(dtype.type.__name__.rstrip("_") if dtype.kind in "SUVmM" else dtype.name)


def canonical_dtype(text: str) -> str:
    """Return NumPy's name of a dtype, ``float32`` of ``<f4``; else the text itself."""
    try:
        return bare_name(parse_dtype(text))
    except TypeError:
        return text


def resolve_dtype(text: str, where: str) -> Any:
    """Return the scalar type of a dtype's name."""
    try:
        dtype = parse_dtype(text)
    except TypeError:
        raise DescriptionError(f"unknown dtype {shorten(text)}", where) from None
    if dtype.hasobject or dtype.fields is not None:
        raise DescriptionError(f"arrays of the dtype {text!r} cannot be read", where)
    return dtype.type


def parse_dtype(text: str) -> Any:
    import numpy as np

    if len(text) > MAX_DTYPE or DTYPE.fullmatch(text) is None:
        raise TypeError(text)
    try:
        return np.dtype(text)
    except Exception as error:  # raised by NumPy: TypeError, ValueError, SyntaxError
        try:
            import ml_dtypes
        except ImportError:
            raise TypeError(text) from error
        try:
            return np.dtype(getattr(ml_dtypes, text))
        except (AttributeError, TypeError):
            raise TypeError(text) from error


def text_of_dtype(text: object, where: str) -> str | None:
    """Return a schema's text of a dtype; None is any."""
    if text is not None and not isinstance(text, str):
        raise DescriptionError(f"'dtype' must be a str, is {shorten(text)}", where)
    return text


def dtype_of_text(text: object, where: str) -> str | None:
    """Return NumPy's name of a schema's dtype; None is any."""
    found = text_of_dtype(text, where)
    return None if found is None else canonical_dtype(found)


def dimensions_of(
    found: Mapping[str, Any], where: str
) -> tuple[tuple[int | None, ...] | None, tuple[str, ...] | None]:
    """Return ``shape`` and ``dimensionNames`` of an array's annotations."""
    shape, names = found.get("shape"), found.get("dimensionNames")
    for key, value in (("shape", shape), ("dimensionNames", names)):
        if value is not None and len(list_of(value, repr(key), where)) > MAX_DIMENSIONS:
            raise DescriptionError(f"{key!r} has too many dimensions", where)
    for size in shape or ():
        if size is not None and (type(size) is not int or size < 0):
            raise DescriptionError(
                "'shape' must have sizes and nulls, has " + shorten(size), where
            )
    for name in names or ():
        if not isinstance(name, str):
            raise DescriptionError(
                f"'dimensionNames' must have str, has {shorten(name)}", where
            )
    return (
        None if shape is None else tuple(shape),
        None if names is None else tuple(names),
    )
