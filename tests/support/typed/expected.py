"""Values of the typed shards in ``tests/data/typed.tar.xz``.

atdata 0.7.0b1 wrote the shards, and read them for ``expected.json``: an array or a long
text is described by its SHA-256, any other value by itself.
"""

from __future__ import annotations

import hashlib
import json
import math
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from support.paths import DATA
from support.servers.http import Server

ARCHIVE = DATA / "typed.tar.xz"
PLACES = ("enc", "field_offset", "data_offset", "data_align")  # of an array's bytes
LONG = 1000  # characters of a text that is described by its hash

# Needs nothing unpacked: for `pytest.mark.parametrize`.
SHARDS = (
    *("basic.tar", "dtypes.tar", "opt.tar", "nested.tar", "unicode.tar", "struct.tar"),
    *("vec-000000.tar", "vec-000001.tar", "vec-000002.tar"),
    *(f"splits/ds-{split}-000000.tar" for split in ("train", "test", "val")),
    "legacy.tar",
)
EXTRA = (
    *("extra/item-v1.tar", "extra/item-v2.tar", "extra/formats.tar"),
    *(f"extra/tagged-{i:06}.tar" for i in range(3)),
    *(f"extra/byatdata-{i:06}.tar" for i in range(3)),
)
# Those whose fields are numbers, texts, bytes, lists, dicts and dense arrays.
READABLE = tuple(name for name in (*SHARDS, *EXTRA) if name != "extra/formats.tar")


@dataclass(frozen=True)
class Sample:
    """A sample: its member, the member's place in the shard, its fields.

    `fields` has a description a field, in the order of the payload; `places` has of
    arrays `enc` ("compact", "npy"), `field_offset` (of the bin's contents in the
    payload), `data_offset` (of the elements in the shard) and `data_align`.
    """

    member: str
    offset: int
    size: int
    sha256: str
    fields: dict[str, Any]
    places: dict[str, dict[str, Any]]

    @property
    def key(self) -> str:
        return self.member.partition(".")[0]


@dataclass(frozen=True)
class TypedData:
    """The shards below `root`, by their paths in it ("extra/item-v1.tar").

    `batch` is what the first batch of eight of a shard has; `extra` has the rest of
    ``extra/expected.json``: `types`, `upstream`, `manifests`, `queries`, `fields.tar`.
    """

    root: Path
    shards: dict[str, list[Sample]]
    batch: dict[str, Any]
    extra: dict[str, Any]
    sha256: dict[str, str] = field(repr=False)  # of the shards' files


def unpack(folder: Path) -> TypedData:
    """Unpack all shards into a folder."""
    with tarfile.open(ARCHIVE) as tar:
        tar.extractall(folder, filter="data")
    known = json.loads((folder / "expected.json").read_bytes())
    extra = json.loads((folder / "extra/expected.json").read_bytes())
    shards = known["shards"] | {
        f"extra/{name}": shard for name, shard in extra["shards"].items()
    }
    return TypedData(
        folder,
        {
            name: list(map(sample_of, shard["samples"]))
            for name, shard in shards.items()
        },
        known["batch"],
        extra,
        {name: shard["sha256"] for name, shard in shards.items()},
    )


@contextmanager
def served(data: TypedData, name: str) -> Iterator[str]:
    """Yield the URL of a shard, served by this machine."""
    with Server({f"/{name}": (data.root / name).read_bytes()}) as server:
        yield f"http://127.0.0.1:{server.port}/{name}"


def sample_of(known: dict[str, Any]) -> Sample:
    fields = {name: known["fields"][name] for name in known["dictsample_keys"]}
    places = {
        name: {key: value[key] for key in PLACES if key in value}
        for name, value in fields.items()
        if value["t"] == "nd"
    }
    return Sample(
        *(known[name] for name in ("member", "offset", "size", "sha256")),
        {name: without_places(value) for name, value in fields.items()},
        places,
    )


def without_places(known: Any) -> Any:
    """Return a description without the places of bytes."""
    places = (*PLACES, "field_size", "field_sha256", "kind")
    return {key: value for key, value in known.items() if key not in places}


def described(value: Any) -> dict[str, Any]:
    """Return the description that ``expected.json`` has of a value.

    Types count: no NumPy scalar is a number, and no view is bytes.
    """
    if value is None:
        return {"t": "none"}
    if isinstance(value, np.ndarray):
        return described_array(value)
    return DESCRIPTIONS[type(value)](value)


def described_array(value: np.ndarray) -> dict[str, Any]:
    structured = [list(column) for column in value.dtype.descr]
    return {
        "t": "nd",
        "dtype": value.dtype.str if value.dtype.names is None else structured,
        "shape": list(value.shape),
        "sha256": hashlib.sha256(value.tobytes()).hexdigest(),
    }


def described_text(value: str) -> dict[str, Any]:
    if len(value) < LONG:
        return {"t": "str", "v": value}
    digest = hashlib.sha256(value.encode()).hexdigest()
    return {"t": "str", "len": len(value), "sha256": digest}


def described_float(value: float) -> dict[str, Any]:
    return {"t": "float", "v": value.hex() if math.isfinite(value) else str(value)}


DESCRIPTIONS: dict[type, Any] = {
    bool: lambda value: {"t": "bool", "v": value},
    int: lambda value: {"t": "int", "v": str(value)},
    float: described_float,
    str: described_text,
    bytes: lambda value: {"t": "bytes", "hex": value.hex()},
    list: lambda value: {"t": "list", "v": [described(item) for item in value]},
    dict: lambda value: {
        "t": "dict",
        "v": {key: described(item) for key, item in value.items()},
    },
}
