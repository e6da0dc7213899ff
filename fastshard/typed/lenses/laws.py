"""The laws of lenses, GetPut and PutGet, checked on samples."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, Literal, NamedTuple, TypeVar

from fastshard.typed.kinds.equality import equal_arrays

__all__ = ["LawFailure", "find_failures", "is_same"]

S = TypeVar("S")
V = TypeVar("V")


class LawFailure(NamedTuple):
    """One sample for which a lens breaks a law; see `Lens.check_laws`.

    Attributes
    ----------
    law : {"GetPut", "PutGet"}
    position : int
        Of the sample.
    field : str or None
        The first field that differs; None where values differ as a whole.
    """

    law: Literal["GetPut", "PutGet"]
    position: int
    field: str | None


def find_failures(
    get: Callable[[S], V], put: Callable[[V, S], S], samples: Sequence[S]
) -> list[LawFailure]:
    """Return the samples for which a lens breaks a law, in order."""
    failures = []
    views = [get(sample) for sample in samples]
    for i, sample in enumerate(samples):
        changed, field = _find_change(put(views[i], sample), sample)
        if changed:
            failures.append(LawFailure("GetPut", i, field))
        wanted = views[(i + 1) % len(views)]
        changed, field = _find_change(get(put(wanted, sample)), wanted)
        if changed:
            failures.append(LawFailure("PutGet", i, field))
    return failures


def _find_change(a: object, b: object) -> tuple[bool, str | None]:
    """Return whether two samples differ, and the first field that does."""
    if type(a) is type(b) and is_dataclass(a) and not isinstance(a, type):
        for field in fields(a):
            if not is_same(getattr(a, field.name), getattr(b, field.name)):
                return True, field.name
        return False, None
    data = [_mapping_of(each) for each in (a, b)]
    if type(a) is type(b) and data[0] is not None and data[1] is not None:
        for name in [*data[0], *data[1]]:
            if name not in data[0] or name not in data[1]:
                return True, name
            if not is_same(data[0][name], data[1][name]):
                return True, name
        return False, None
    return not is_same(a, b), None


def _mapping_of(sample: Any) -> dict[str, Any] | None:
    """Return the fields of a `DictSample`, or None for another object."""
    to_dict = getattr(sample, "to_dict", None)
    return to_dict() if callable(to_dict) else None


def is_same(a: Any, b: Any) -> bool:
    """Return whether two values are equal, arrays by value; NaN equals itself."""
    if a is b:
        return True
    if hasattr(a, "dtype") and hasattr(b, "dtype"):
        import numpy as np

        return equal_arrays(np.asarray(a), np.asarray(b), equal_nan=True)
    if type(a) is not type(b):
        return bool(_is_plain(a) and _is_plain(b) and a == b)
    if isinstance(a, float):
        return bool(a == b or (math.isnan(a) and math.isnan(b)))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(is_same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(is_same, a, b))
    if is_dataclass(a) and not isinstance(a, type):
        return not _find_change(a, b)[0]
    return bool(a == b)


def _is_plain(value: object) -> bool:
    return value is None or isinstance(value, bool | int | float | str | bytes)
