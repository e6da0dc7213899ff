"""Odd shards that mosaicml-streaming reads: names, sizes, arrays, missing parts."""

import json
import struct

import numpy as np
import pytest

import fastshard
from fastshard.streaming import reader_from_json

SEVEN = struct.pack("<q", 7)


def write_mds(root, columns, rows, *, config=None, **changes):
    """Write an MDS shard from encodings, sizes and stored bytes, and its index."""
    shard = {
        "version": 2,
        "format": "mds",
        "compression": None,
        "hashes": [],
        "size_limit": 1 << 26,
        "column_names": list(columns),
        "column_encodings": [encoding for encoding, _ in columns.values()],
        "column_sizes": [size for _, size in columns.values()],
    }
    config = json.dumps(shard).encode() if config is None else config
    fixed = [size is not None for _, size in columns.values()]
    data = []
    for row in rows:
        sizes = [len(f) for f, is_fixed in zip(row, fixed, strict=True) if not is_fixed]
        data.append(struct.pack(f"<{len(sizes)}I", *sizes) + b"".join(row))
    starts = [4 * (len(rows) + 2) + len(config)]
    for one in data:
        starts.append(starts[-1] + len(one))
    head = struct.pack(f"<{len(starts) + 1}I", len(rows), *starts)
    return write_index(root, shard | changes, len(rows), head + config + b"".join(data))


def write_index(root, shard, samples, raw, meta=None):
    files = {"raw_data": raw, "zip_data": None}
    if meta is not None:
        files |= {"raw_meta": meta, "zip_meta": None}
    shard = {"samples": samples} | shard
    for key, data in files.items():
        if data is not None and key not in shard:
            (root / key).write_bytes(data)
            data = {"basename": key, "bytes": len(data), "hashes": {}}
        shard = {key: data} | shard
    text = json.dumps({"version": 2, "shards": [shard]})
    (root / "index.json").write_text(text)


def read_both(root):
    """Return all samples by `fastshard.open`; they are those of the Reader."""
    (shard,) = json.loads((root / "index.json").read_text())["shards"]
    reader = reader_from_json(str(root), None, shard)
    by_reader = [reader[i] for i in range(len(reader))]
    with fastshard.open(root) as ds:
        by_open = [sample.decode() for sample in ds]
        assert ds.verify() == []
    for sample, expected in zip(by_open, by_reader, strict=True):
        del sample["__key__"]
        np.testing.assert_equal(sample, expected)
    return by_open


ODD_NAMES = [chr(0xD800), "a" + chr(0xDFFF), chr(0xDC80), "", "a\nb", "\0"]


@pytest.mark.parametrize("name", ODD_NAMES)
def test_columns_of_any_name(name, tmp_path):
    write_mds(tmp_path, {name: ("int", 8), "z": ("str", None)}, [[SEVEN, b"x"]] * 2)

    assert read_both(tmp_path) == [{name: 7, "z": "x"}] * 2
    with fastshard.open(tmp_path) as ds:
        assert next(ds.select_fields(name).batches(2))[name].tolist() == [7, 7]
        assert list(ds[0].keys()) == [name, "z"]
        assert repr(ds).isascii()


@pytest.mark.parametrize("newline", ["", "\n", "\r\n", "\ud800"])
def test_json_rows_with_any_newline(newline, tmp_path):
    row = b'{"\\ud800": 3}'
    shard = {
        "version": 2,
        "format": "json",
        "compression": None,
        "hashes": [],
        "size_limit": None,
        "columns": {"\ud800": "int"},
        "newline": newline,
    }
    meta = struct.pack("<4I", 2, 0, len(row), 2 * len(row)) + json.dumps(shard).encode()
    write_index(tmp_path, shard, 2, 2 * row, meta)

    assert read_both(tmp_path) == [{"\ud800": 3}] * 2


ARRAYS = [  # stored, as an ndarray column has it, and the array
    (b"\x08\x00\x07", np.array(7, "u1")),
    (b"\x42\x00" + struct.pack("<d", 1.5), np.array(1.5)),
    (b"\x08\x04\x00", np.zeros(0, "u1")),
    (b"\x22\x08\x02\x00", np.zeros((2, 0), "f4")),
    (b"\x22\x09\x00\x00\x00\x01", np.zeros((0, 256), "f4")),
]


@pytest.mark.parametrize(("stored", "expected"), ARRAYS)
def test_arrays_without_dimensions_or_items(stored, expected, tmp_path):
    write_mds(tmp_path, {"a": ("ndarray", None)}, [[stored]] * 3)

    for sample in read_both(tmp_path):
        np.testing.assert_array_equal(sample["a"], expected, strict=True)
    with fastshard.open(tmp_path) as ds:
        stack = np.stack([expected] * 3)
        np.testing.assert_array_equal(ds[1].array("a"), expected, strict=True)
        for batches in (ds.batches(3), ds.loader(3)):
            found = next(iter(batches))["a"]
            np.testing.assert_array_equal(found, stack, strict=True)


def test_a_huge_array_of_no_items_is_refused(tmp_path):
    shape = struct.pack("<3Q", 1 << 62, 1 << 62, 0)
    write_mds(tmp_path, {"a": ("ndarray:uint8", None)}, [[b"\x0f" + shape]])

    sample = fastshard.open(tmp_path)[0]
    with pytest.raises(fastshard.FormatError, match="column 'a'"):
        sample.decode()


@pytest.mark.parametrize(
    "limit", [None, 0, "", 1e8, 1.5, "1.5gb", False, "100", 10**30]
)
def test_any_size_limit_of_a_writer(limit, tmp_path):
    write_mds(tmp_path, {"a": ("int", 8)}, [[SEVEN]], size_limit=limit)

    assert read_both(tmp_path) == [{"a": 7}]


@pytest.mark.parametrize("changes", [{"hashes": None}, {"version": 2.0}])
def test_nulls_and_numbers_that_other_tools_write(changes, tmp_path):
    write_mds(tmp_path, {"a": ("int", 8)}, [[SEVEN]], **changes)
    index = json.loads((tmp_path / "index.json").read_text())
    index["shards"][0]["raw_data"]["hashes"] = None
    (tmp_path / "index.json").write_text(json.dumps(index | {"version": 2.0}))

    assert read_both(tmp_path) == [{"a": 7}]
    with fastshard.open(tmp_path) as ds:
        assert ds.verify(hashes=True) == []


def test_a_shard_without_a_config(tmp_path):
    write_mds(tmp_path, {"a": ("int", 8)}, [[SEVEN]], config=b"")

    assert read_both(tmp_path) == [{"a": 7}]
