"""Fields and rows of samples: dataclasses, `DictSample`, mappings."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from fastshard.typed.dict_sample import DictSample

__all__ = ["array_of", "field_names", "row_of", "value_of"]


def field_names(kind: Any) -> list[str] | None:
    """Return the fields of a sample or its type."""
    if dataclasses.is_dataclass(kind):
        return [field.name for field in dataclasses.fields(kind)]
    if isinstance(kind, type):
        return None
    keys = getattr(kind, "keys", None)
    return list(keys()) if callable(keys) else None


def row_of(sample: Any) -> Mapping[str, Any]:
    """Return the fields of a sample by name; arrays are not copied."""
    if isinstance(sample, Mapping):
        return sample
    names = field_names(sample)
    if names is None:
        raise TypeError(
            "expected samples with named fields, got the result of a mapped "
            f"function: {type(sample).__name__}"
        )
    if dataclasses.is_dataclass(sample):
        return {name: getattr(sample, name) for name in names}
    return {name: sample[name] for name in names}


def value_of(sample: Any, name: str) -> Any:
    """Return a field of a sample."""
    if dataclasses.is_dataclass(sample) or not hasattr(sample, "__getitem__"):
        try:
            return getattr(sample, name)
        except AttributeError as error:
            raise KeyError(f"{name!r}: {error}") from None
    return sample[name]


def array_of(sample: Any, name: str) -> Any:
    """Return a field of a sample as an array; of a `DictSample` of its bytes."""
    import numpy as np

    value = value_of(sample, name)
    if not isinstance(value, np.ndarray) and isinstance(sample, DictSample):
        return sample.array(name)
    return np.asarray(value)
