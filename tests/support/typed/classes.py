"""Types of the samples in ``tests/data/typed.tar.xz``, as users declare them."""

from __future__ import annotations

from typing import Annotated, Any, Optional

import numpy as np
from numpy.typing import NDArray

from fastshard import typed


@typed.packable
class Basic:
    name: str
    value: int
    score: float
    ok: bool
    raw: bytes
    x: NDArray[np.float32]


@typed.packable
class Dtypes:
    dtype: str
    order: str
    x: NDArray[Any]


@typed.packable
class Opt:
    label: str
    x: NDArray | None
    y: Optional[NDArray[np.float32]]  # noqa: UP045  users write it so
    note: str | None


@typed.packable
class Nested:
    meta: dict
    tags: list
    items: list[dict]
    blob: bytes
    nothing: None


@typed.packable
class Unicode:
    text: str
    名前: str
    x: np.ndarray


class Vec(typed.PackableSample):
    idx: int
    x: NDArray[np.float32]
    label: str


@typed.packable
class Legacy:
    name: str
    x: NDArray


@typed.packable
class Struct:
    name: str
    t: NDArray


@typed.packable
class ItemV1:
    idx: int
    caption: str
    score: int
    x: NDArray
    gone: str


@typed.packable
class ItemV2:
    idx: int
    text: str
    score: float
    x: NDArray
    tags: list[str]
    mask: NDArray | None = None
    source: str = "unknown"


@typed.packable
class Item:
    """Reads both versions."""

    idx: int
    text: Annotated[str, typed.Field(aliases=("caption",))]
    score: float
    x: NDArray
    tags: list[str] | None
    mask: NDArray[np.bool_] | None = None
    source: str = "unknown"


@typed.packable
class Formats:
    __field_formats__ = {  # noqa: RUF012  as atdata has it
        "csr": "sparse",
        "other": "sparse",
        "table": "dataframe",
        "tensor": "arrow_tensor",
        "records": "structured",
        "pair": "safetensors",
    }
    name: str
    csr: Any
    other: Any
    table: Any
    tensor: Any
    records: Any
    pair: Any


@typed.packable
class Tagged:
    idx: int
    label: str
    ok: bool
    score: float | None
    tags: list[str]
    colours: Annotated[list[str], typed.ManifestField("set")]
    grade: Annotated[int, typed.ManifestField("categorical")]
    hidden: Annotated[str, typed.ManifestField("categorical", exclude=True)]
    x: NDArray
    raw: bytes


TYPES: dict[str, type] = {
    "basic": Basic,
    "dtypes": Dtypes,
    "opt": Opt,
    "nested": Nested,
    "unicode": Unicode,
    "vec": Vec,
    "ds": Vec,
    "legacy": Legacy,
    "struct": Struct,
    "item-v1": ItemV1,
    "item-v2": ItemV2,
    "formats": Formats,
    "tagged": Tagged,
    "byatdata": Tagged,
}


def type_of(name: str) -> type:
    """Return the type of a shard's samples, by its path."""
    stem = name.rpartition("/")[2].removesuffix(".tar")
    return TYPES.get(stem) or TYPES[stem.partition("-")[0]]
