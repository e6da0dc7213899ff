"""Values of columns: their stored forms, and conversion."""

from __future__ import annotations

import json
from codecs import BOM_UTF8
from collections.abc import Callable
from decimal import Decimal
from typing import Any, NamedTuple, TypeAlias

from fastshard.conversion.columns import FLOATS, INTEGERS
from fastshard.errors import FormatError

__all__ = [
    "ABSENT",
    "MAX_INT",
    "MIN_INT",
    "Buffer",
    "ValueMismatchError",
    "ValueReader",
    "check_array",
    "check_finite",
    "coerce",
    "key_reader",
    "metadata_reader",
    "npy_reader",
    "packed_reader",
    "streaming_reader",
    "tar_reader",
]

Buffer: TypeAlias = bytes | bytearray | memoryview
MIN_INT, MAX_INT = -(2**63), 2**63 - 1
ABSENT = object()  # placeholder: the sample lacks the column
RAW = {"bytes", "jpeg", "png"}  # encodings with the same stored bytes in every format
FORMS = {"str": "utf8", "json": "json"} | dict.fromkeys(RAW, "raw")


class ValueMismatchError(ValueError):
    """A value cannot be stored with an encoding; callers name sample and column."""


class ValueReader(NamedTuple):
    """Reader of one column of a sample: its stored bytes and its value.

    Attributes
    ----------
    form : str
        Of the stored bytes: ``raw``, ``utf8``, ``json``, ``npy``, ``decimal``, or
        ``mds:ENCODING``. Bytes of one form are copied between formats unchanged.
        ``row:ENCODING``: a value of a row of JSON. ``packed``: a value of a msgpack
        map. Empty: bytes of no other format.
    stored : callable
        Returns the stored bytes of a sample.
    value : callable
        Returns the decoded value of a sample.
    """

    form: str
    stored: Callable[[Any], Buffer]
    value: Callable[[Any], Any]

    def value_for(self, encoding: str) -> Callable[[Any], Any]:
        """Return the function whose values an encoding converts.

        JSON becomes text as it is stored.
        """
        return self.stored if (self.form, encoding) == ("json", "str") else self.value


def tar_reader(field: str, encoding: str) -> ValueReader:
    """Return the reader of a tar's field."""
    form = {"int": "decimal", "npy": "npy"}.get(encoding) or FORMS[encoding]
    stored = _json_text(field) if encoding == "json" else _stored(field)
    return ValueReader(form, stored, _value(field, encoding))


def key_reader() -> ValueReader:
    """Return the reader of the samples' keys."""
    return ValueReader(
        "", lambda sample: sample.key.encode(), lambda sample: sample.key
    )


def npy_reader(field: str) -> ValueReader:
    """Return the reader of a columnar dataset's field."""
    return ValueReader("npy", _stored(field), _value(field, "npy"))


def packed_reader(field: str) -> ValueReader:
    """Return the reader of a field of a msgpack map."""
    return ValueReader("packed", _stored(field), _value(field, ""))


def metadata_reader(name: str) -> ValueReader:
    """Return the reader of a name in the samples' metadata."""

    def value(sample: Any) -> Any:
        return sample.metadata[name]

    return ValueReader("", lambda sample: json.dumps(value(sample)).encode(), value)


def streaming_reader(name: str, encoding: str, format: str) -> ValueReader:  # noqa: A002
    """Return the reader of a column of an MDS, JSON or XSV shard."""
    stored = _stored(name)
    if format == "mds":
        form = FORMS.get(encoding, f"mds:{encoding}")
    else:
        form = "utf8" if (format, encoding) == ("xsv", "str") else ""
    if format == "json":
        form = f"row:{encoding}"
    return ValueReader(form, stored, _value(name, encoding))


def _stored(field: str) -> Callable[[Any], Buffer]:
    return lambda sample: sample.view(field)


def _json_text(field: str) -> Callable[[Any], Buffer]:
    """Return a function that reads JSON without a byte order mark."""

    def stored(sample: Any) -> Buffer:
        view: memoryview = sample.view(field)
        return (
            view[len(BOM_UTF8) :] if bytes(view[: len(BOM_UTF8)]) == BOM_UTF8 else view
        )

    return stored


def _value(field: str, encoding: str) -> Callable[[Any], Any]:
    if encoding in RAW:
        return lambda sample: sample.view(field)
    if encoding == "npy":
        return lambda sample: sample.array(field)
    return lambda sample: sample.decode(field)[field]


def coerce(value: Any, encoding: str) -> Any:
    """Convert a value to an encoding, if that is lossless."""
    converter = CONVERTERS.get(encoding.partition(":")[0])
    if converter is None:
        raise ValueMismatchError(f"values cannot be converted to {encoding}")
    try:
        return converter(value, encoding)
    except ValueMismatchError:
        raise
    except FormatError:
        raise
    except (ValueError, TypeError, OverflowError, ArithmeticError) as error:
        reason = f"{_describe(value)} does not fit {encoding}: {error}"
        raise ValueMismatchError(reason) from error


def _describe(value: Any) -> str:
    """Return a short text of a value, for errors."""
    dtype, shape = getattr(value, "dtype", None), getattr(value, "shape", None)
    if shape:
        return f"an array of {dtype} {list(shape)}"
    text = repr(bytes(value[:40]) if isinstance(value, memoryview) else value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _fail(value: Any, encoding: str) -> ValueMismatchError:
    return ValueMismatchError(f"{_describe(value)} does not fit {encoding}")


def _scalar(value: Any) -> Any:
    """Return the Python value of a NumPy scalar or an array without dimensions."""
    return value.item() if getattr(value, "shape", None) == () else value


def to_bytes(value: Any, encoding: str) -> Buffer:
    if isinstance(value, Buffer):
        return value
    raise _fail(value, encoding)


def to_str(value: Any, encoding: str) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, Buffer):
        return str(value, "utf-8")
    value = _scalar(value)
    if isinstance(value, int | float | Decimal | str):
        return str(value)
    if isinstance(value, dict | list):
        return json.dumps(value)
    raise _fail(value, encoding)


def to_int(value: Any, encoding: str) -> int:
    number = to_any_int(value, encoding)
    if not MIN_INT <= number <= MAX_INT:
        raise ValueMismatchError(f"{_describe(number)} does not fit 64 bits")
    return number


def to_any_int(value: Any, encoding: str) -> int:
    value = _scalar(value)
    if isinstance(value, int | str):
        return int(value)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    raise _fail(value, encoding)


def to_float(value: Any, encoding: str) -> float:
    value = _scalar(value)
    if isinstance(value, float):
        return value
    if isinstance(value, str):
        return float(value)
    if isinstance(value, int) and int(float(value)) == value:
        return float(value)
    raise _fail(value, encoding)


def to_scalar(value: Any, encoding: str) -> Any:
    """Return a NumPy scalar that equals the value."""
    import numpy as np

    kind = getattr(np, encoding)
    if getattr(value, "shape", None) == () and value.dtype == kind:
        return kind(value)
    if encoding in INTEGERS:
        number: Any = to_any_int(value, encoding)
        limits = np.iinfo(kind)
        if not limits.min <= number <= limits.max:
            raise _fail(value, encoding)
        return kind(number)
    number = to_float(value, encoding)
    with np.errstate(over="ignore"):
        rounded = kind(number)
    if float(rounded) != number and number == number:
        raise _fail(value, encoding)
    return rounded


def to_json(value: Any, encoding: str) -> Any:
    import numpy as np

    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, Buffer):
        raise _fail(value, encoding)
    check_names(value)
    json.dumps(value)
    return value


def check_names(value: Any) -> None:
    """Raise ValueMismatchError for a map with keys that are not text, at any depth."""
    rest = [value]
    while rest:
        value = rest.pop()
        if isinstance(value, dict):
            for name in value:
                if not isinstance(name, str):
                    raise ValueMismatchError(f"a map with the key {name!r} is not JSON")
            rest.extend(value.values())
        elif isinstance(value, list):
            rest.extend(value)


def to_decimal(value: Any, encoding: str) -> Decimal:
    value = _scalar(value)
    if isinstance(value, Decimal | int | str):
        return Decimal(value)
    raise _fail(value, encoding)


def to_array(value: Any, encoding: str) -> Any:
    """Return an array for MDS; the encoding checks dtype and shape."""
    import numpy as np

    if not isinstance(value, np.ndarray | np.generic):
        raise _fail(value, encoding)
    if not value.shape or not value.size or value.dtype.kind not in "uif":
        what = "empty" if value.shape and not value.size else "" or str(value.dtype)
        raise ValueMismatchError(
            f"{encoding} has no {what} array of shape {list(value.shape)}"
        )
    return value


def to_npy(value: Any, encoding: str) -> Any:
    import numpy as np

    if isinstance(value, np.ndarray):
        return value
    if isinstance(value, np.generic | int | float):
        return np.asarray(value)
    raise _fail(value, encoding)


CONVERTERS: dict[str, Callable[[Any, str], Any]] = {
    "bytes": to_bytes,
    "jpeg": to_bytes,
    "png": to_bytes,
    "str": to_str,
    "int": to_int,
    "str_int": to_any_int,
    "float": to_float,
    "str_float": to_float,
    "str_decimal": to_decimal,
    "json": to_json,
    "ndarray": to_array,
    "npy": to_npy,
    **dict.fromkeys((*INTEGERS, *FLOATS), to_scalar),
}


def check_array(array: Any, encoding: str) -> None:
    """Raise ValueMismatchError for an array not of ``ndarray:DTYPE:SHAPE``."""
    if not encoding.startswith("ndarray:"):
        return
    dtype, _, shape = encoding.removeprefix("ndarray:").partition(":")
    is_same = array.dtype.name == dtype and (
        not shape or array.shape == tuple(map(int, shape.split(",")))
    )
    if not is_same:
        raise _fail(array, encoding)


def check_finite(value: Any) -> Any:
    """Return a JSON value; raise ValueMismatchError if it has NaN or an infinity."""
    try:
        json.dumps(value, allow_nan=False)
    except ValueError as error:
        raise ValueMismatchError(f"{_describe(value)} is not JSON: {error}") from error
    return value
