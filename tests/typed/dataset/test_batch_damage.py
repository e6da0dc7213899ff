"""Fields of batches are those of the samples, also where payloads are damaged."""

import random
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from fastshard import typed
from fastshard.errors import FormatError
from support.marks import LONG
from support.typed.packed import compact, npy, pack, write_shard

FIELDS = ("flag", "number", "ratio", "text", "data", "image")


@typed.packable
class Everything:
    flag: bool
    number: int
    ratio: float
    text: str
    data: bytes
    image: NDArray[np.int16]


def payloads(rng: random.Random, encode: object) -> list[bytes]:
    rows = [
        {
            "flag": bool(i % 2),
            "number": rng.choice([0, -1, 127, 1 << 40, -(1 << 40)]),
            "ratio": i / 3 if i % 3 else i,
            "text": "text é" * i,
            "data": b"\x93NUMPY"[: i + 1],
            "image": np.arange(4, dtype="<i2").reshape(2, 2) + i,
        }
        for i in range(4)
    ]
    return [pack(row, encode) for row in rows]


def outcome(read):
    """Return the result of a function, or the error of damaged bytes in its place."""
    try:
        return read()
    except FormatError as error:
        return error


def is_same(a: object, b: object) -> bool:
    if isinstance(a, np.ndarray):
        return np.array_equal(a, np.asarray(b))
    return type(a) is type(b) and a == b


def damage(rng: random.Random, data: bytes) -> bytes:
    at = rng.randrange(len(data))
    kind = rng.randrange(3)
    if kind == 0:
        return data[:at]
    if kind == 1:
        return data[:at] + bytes([rng.randrange(256)]) + data[at + 1 :]
    return data[:at] + data[at + 1 :]


@pytest.mark.parametrize("encode", [npy, compact])
def test_a_damaged_field_is_an_error_or_the_stored_value(
    tmp_path: Path, encode: object
) -> None:
    rng = random.Random(7)
    good = payloads(rng, encode)
    path = tmp_path / "a.tar"
    for _ in range(2000 if LONG else 60):
        rows = list(good)
        k = rng.randrange(4)
        rows[k] = damage(rng, rows[k])
        write_shard(path, rows)
        with typed.Dataset[Everything](str(path)) as dataset:
            samples = [outcome(lambda i=i: dataset[i]) for i in range(4)]
            for name in FIELDS:
                batch = next(dataset.ordered(batch_size=4, ragged="list"))
                found = outcome(lambda b=batch, n=name: b[n])
                failed = samples[k] if isinstance(samples[k], FormatError) else None
                if failed is None:
                    assert not isinstance(found, FormatError), (name, rows[k])
                    for value, sample in zip(found, samples, strict=True):
                        assert is_same(getattr(sample, name), value), (name, rows[k])
                elif isinstance(found, FormatError):
                    assert f"{k:06d}" in str(found)
                else:  # another field of the sample is damaged
                    assert getattr(failed, "field", None) != name
                    for i, value in enumerate(found):
                        if i != k:
                            assert is_same(getattr(samples[i], name), value)


@typed.packable
class Defaults:
    image: NDArray[np.int16]
    text: str = "none"
    optional: str | None = None
    flag: bool = True


@pytest.mark.parametrize("first", [True, False])
def test_an_unknown_field_whose_name_is_not_utf8(tmp_path: Path, first: bool) -> None:
    image = pack({"image": np.arange(4, dtype="<i2")})[1:]
    unknown = b"\xa2\xff\xfe\x01"  # a name of two bytes, and 1
    row = b"\x82" + (unknown + image if first else image + unknown)
    write_shard(tmp_path / "a.tar", [row] * 3)

    with typed.Dataset[Defaults](str(tmp_path / "a.tar")) as dataset:
        batch = next(dataset.ordered(batch_size=3))
        columns = next(dataset.batches(3))
        assert (dataset[0].text, dataset[0].optional, dataset[0].flag) == (
            ("none", None, True)
        )
        for read in (batch, columns):
            assert read["text"] == ["none"] * 3
            assert read["optional"] == [None] * 3
            assert read["flag"] == [True] * 3
            assert read["image"].shape == (3, 4)
