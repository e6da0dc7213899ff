"""The typed shards unpack whole; values are described as ``expected.json`` does."""

import hashlib
import io
import math
import struct
import tarfile

import msgpack
import numpy as np
import pytest

from support.typed.expected import EXTRA, SHARDS, described


def samples_of(data, names):
    return [sample for name in names for sample in data.shards[name]]


def test_every_shard_is_listed_and_whole(typed_data):
    assert {*SHARDS, *EXTRA} == set(typed_data.shards)
    for name, digest in typed_data.sha256.items():
        data = (typed_data.root / name).read_bytes()
        assert hashlib.sha256(data).hexdigest() == digest


def test_the_number_of_fields(typed_data):
    samples = samples_of(typed_data, SHARDS)
    assert (len(samples), sum(len(s.fields) for s in samples)) == (113, 359)
    assert len(samples_of(typed_data, EXTRA)) == 41


def array_of(data):
    """Return the array of a bin, read without this package."""
    if data[:6] == b"\x93NUMPY":
        return np.load(io.BytesIO(data), allow_pickle=False)
    size, ndim = data[0], data[1 + data[0]]
    shape = struct.unpack_from(f"<{ndim}q", data, 2 + size)
    dtype = np.dtype(data[1 : 1 + size].decode())
    return np.frombuffer(data, dtype, offset=2 + size + 8 * ndim).reshape(shape)


@pytest.mark.parametrize("name", SHARDS)
def test_payloads_that_msgpack_reads_are_described_alike(typed_data, name):
    with tarfile.open(typed_data.root / name) as tar:
        members = tar.getmembers()
        payloads = [tar.extractfile(member).read() for member in members]
    for member, payload, sample in zip(
        members, payloads, typed_data.shards[name], strict=True
    ):
        assert (member.name, member.offset_data) == (sample.member, sample.offset)
        values = msgpack.unpackb(payload)
        assert list(values) == list(sample.fields)
        for field, known in sample.fields.items():
            array = known["t"] == "nd"
            value = array_of(values[field]) if array else values[field]
            assert described(value) == known


@pytest.mark.parametrize(
    ("value", "known"),
    [
        (None, {"t": "none"}),
        (True, {"t": "bool", "v": True}),
        (1, {"t": "int", "v": "1"}),
        (1.5, {"t": "float", "v": "0x1.8000000000000p+0"}),
        (-math.inf, {"t": "float", "v": "-inf"}),
        (b"\x00", {"t": "bytes", "hex": "00"}),
        ([{"a": 1}], {"t": "list", "v": [{"t": "dict", "v": {"a": described(1)}}]}),
    ],
)
def test_descriptions(value, known):
    assert described(value) == known


@pytest.mark.parametrize("value", [np.float32(1), memoryview(b"a"), (1,)])
def test_other_types_have_no_description(value):
    with pytest.raises(KeyError):
        described(value)
