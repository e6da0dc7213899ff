"""The datasets unpack whole; values are hashed as those of ``expected.json``."""

import hashlib
import json
from decimal import Decimal

import numpy as np
import pytest

from support.streaming.expected import NAMES, canonical, described


def test_every_dataset_is_listed_and_whole(streaming_data):
    assert sorted(NAMES) == sorted(streaming_data)
    for dataset in streaming_data.values():
        for name, known in dataset.files.items():
            data = (dataset.root / name).read_bytes()
            assert len(data) == known["bytes"]
            assert hashlib.sha256(data).hexdigest() == known["sha256"]


def test_the_number_of_fields(streaming_data):
    samples = [s for known in streaming_data.values() for s in known.samples]
    assert sum(len(sample["fields"]) for sample in samples) == 6687


def test_values_of_json_shards_are_hashed_alike(streaming_data):
    known = streaming_data["json/none"]
    lines = [
        json.loads(line)
        for k in range(len(known.shards))
        for line in (known.root / f"shard.{k:05}.json").read_text().split("\n")[:-1]
    ]
    assert len(lines) == len(known.samples)
    for values, sample in zip(lines, known.samples, strict=True):
        for name, field in sample["fields"].items():
            assert described(values[name]) == (field["type"], field["sha256"])


@pytest.mark.parametrize(
    ("value", "kind", "data"),
    [
        (None, "NoneType", b"null"),
        (True, "bool", b"true"),
        (np.uint8(7), "np.uint8", b"|u1\0\x07"),
        (np.float64(0), "np.float64", b"<f8\0" + bytes(8)),
        (np.zeros((2, 1), "<u2"), "ndarray", b"<u2\x002,1\0" + bytes(4)),
        (memoryview(b"ab"), "bytes", b"ab"),
        (10**40, "int", b"1" + b"0" * 40),
        (float("nan"), "float", b"nan"),
        (-0.0, "float", b"-0x0.0p+0"),
        (Decimal("-0.00"), "Decimal", b"-0.00"),
        (["a"], "list", b"str\0\x01" + bytes(7) + b"a"),
        (
            {"k": None},
            "dict",
            b"\x01" + bytes(7) + b"kNoneType\0\x04" + bytes(7) + b"null",
        ),
    ],
)
def test_canonical_bytes(value, kind, data):
    assert canonical(value) == (kind, data)


def test_a_value_without_canonical_bytes():
    with pytest.raises(TypeError, match="object"):
        canonical(object())


def test_a_copy_is_a_dataset_of_its_own(copy_streaming, streaming_data):
    copy = copy_streaming("edge/splits#train")
    assert copy.index == streaming_data["edge/splits#train"].index
    (copy.folder / "index.json").unlink()
    assert (streaming_data["edge/splits#train"].folder / "index.json").exists()
