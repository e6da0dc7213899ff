"""Reading by id, by position, in columns and in file order."""

import copy
import os
import pickle
import shutil
import signal
import sqlite3
import struct
import threading

import numpy as np
import pytest

import fastshard
from fastshard.columnar import ShardedDatasetReader, ShardedDatasetWriter
from fastshard.errors import (
    ClosedError,
    FastshardError,
    FieldNotFoundError,
    FormatError,
    SampleNotFoundError,
)
from support.inside.columnar import open_sources
from support.inside.datasets import sources_of
from support.marks import not_sanitized
from support.threads import in_threads

COUNT = 250


def value(i, field):
    """Return the array of a sample and field, different for each."""
    size = {"a": 100, "b": 50, "c": 7}[field]
    return (np.arange(size) + 1000 * i + ord(field)).astype(np.float32)


def write(root, count=COUNT, per_shard=100, fields="abc", first=0):
    """Add samples to a dataset; return their ids."""
    with ShardedDatasetWriter(root, samples_per_shard=per_shard) as writer:
        writer.add_fields([f for f in fields if f not in fields_of(root)])
        return [
            writer.add_sample(
                {field: value(i, field) for field in fields}, metadata={"i": i}
            )
            for i in range(first, first + count)
        ]


def fields_of(root):
    """Return the fields of a dataset, none if it does not exist."""
    if not (root / "index.sqlite").exists():
        return []
    with ShardedDatasetReader(root) as reader:
        return reader.list_fields()


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    root = tmp_path_factory.mktemp("columnar") / "dataset"
    return root, write(root)


@pytest.fixture(params=["mmap", "pread", "private"])
def reader(request, dataset):
    with ShardedDatasetReader(dataset[0], mode=request.param) as reader:
        yield reader


def assert_is(arrays, i, fields="abc"):
    """Assert that the arrays are those of sample `i`, in the order of `fields`."""
    assert list(arrays) == list(fields)
    for field in fields:
        np.testing.assert_array_equal(arrays[field], value(i, field))
        assert arrays[field].dtype == np.float32


def test_samples_by_id(reader, dataset):
    for i, sample_id in enumerate(dataset[1]):
        arrays, metadata = reader.get_sample(sample_id)
        assert_is(arrays, i)
        assert metadata == {"i": i}


def test_some_fields_in_the_order_requested(reader, dataset):
    arrays, _ = reader.get_sample(dataset[1][3], fields=["c", "a"])
    assert_is(arrays, 3, "ca")


def test_many_samples_in_the_order_given(reader, dataset):
    ids = dataset[1][::-7]
    for (arrays, metadata), sample_id in zip(
        reader.get_many(sample_ids=ids, fields=["b"]), ids, strict=True
    ):
        i = dataset[1].index(sample_id)
        assert_is(arrays, i, "b")
        assert metadata == {"i": i}


def test_samples_by_position(reader):
    samples = reader.samples
    assert len(samples) == len(reader) == COUNT
    for i in (0, 1, 99, 100, COUNT - 1):
        assert_is(samples[i], i)
    assert_is(samples[-1], COUNT - 1)
    assert [list(s) for s in samples[248:]] == [["a", "b", "c"]] * 2
    for i in (COUNT, -COUNT - 1):
        with pytest.raises(IndexError):
            samples[i]


def test_batches_for_torch_are_writable_copies(reader):
    batch = reader.samples.__getitems__([5, 249, 5])
    for arrays, i in zip(batch, (5, 249, 5), strict=True):
        assert_is(arrays, i)
        arrays["a"][:] = 0
    assert_is(reader.samples[5], 5)


def test_arrays_are_views_of_the_file(dataset):
    with ShardedDatasetReader(dataset[0]) as reader:
        array = reader.get_sample(dataset[1][0])[0]["a"]
        again = reader.samples[0]["a"]
    assert not array.flags.writeable
    assert not array.flags.owndata
    assert array.ctypes.data == again.ctypes.data
    assert array.ctypes.data % 64 == 0  # aligned for vector instructions
    np.testing.assert_array_equal(array, value(0, "a"))  # the reader is closed


def test_copies_are_independent(reader, dataset):
    array = reader.get_sample(dataset[1][0], copy=True)[0]["a"]
    array[:] = -1
    np.testing.assert_array_equal(
        reader.get_sample(dataset[1][0])[0]["a"][:3], [97, 98, 99]
    )


def test_columns_by_id_and_by_position(reader, dataset):
    order = [249, 0, 100, 99, 0]
    for wanted in (
        [dataset[1][i] for i in order],
        order,
        np.array(order),
        [-1, 0, 100, 99, 0],
    ):
        columns = reader.columns(wanted, ["c", "a"])
        assert list(columns) == ["c", "a"]
        for field, column in columns.items():
            expected = np.stack([value(i, field) for i in order])
            np.testing.assert_array_equal(column, expected)
            assert column.flags.writeable
            assert column.flags.c_contiguous


def test_columns_after_all_rows_were_loaded(reader, dataset):
    assert len(reader.samples) == COUNT
    ids = dataset[1][::-3]
    column = reader.columns(ids)["b"]
    expected = np.stack([value(i, "b") for i in range(COUNT)[::-3]])
    np.testing.assert_array_equal(column, expected)


def test_columns_of_any_selection_of_fields(reader, dataset):
    for _ in range(2):  # selections are kept
        for names in (["a"], ["b", "a"], ("a", "b"), ("c",), "c", [], ["c", "c"]):
            fields = list(names)
            given = iter(fields) if type(names) is tuple else names
            found = reader.columns(dataset[1][:4], given)
            assert list(found) == list(dict.fromkeys(fields))
        with pytest.raises(fastshard.FieldNotFoundError):
            reader.columns(dataset[1][:4], ["a", "z"])
        with pytest.raises(ValueError, match="query_ids"):
            reader.columns(dataset[1][:4], ["a"], missing="skip")


def test_columns_of_no_samples(reader):
    assert reader.columns([])["a"].shape == (0,)


@pytest.mark.parametrize("batch_size", [None, 1, 64, 100, 1000])
@pytest.mark.parametrize("max_memory", [None, "1MiB"])
def test_a_scan_yields_every_sample_once(dataset, batch_size, max_memory):
    seen = []
    with ShardedDatasetReader(dataset[0], max_memory=max_memory) as reader:
        for item in reader.scan(batch_size=batch_size):
            keys = item.pop("__key__")
            if batch_size is None:
                assert_is(item, dataset[1].index(keys))
                seen.append(keys)
                continue
            for k, key in enumerate(keys):
                i = dataset[1].index(key)
                assert_is({field: item[field][k] for field in item}, i)
            assert len(keys) == batch_size or not len(seen) + len(keys) < COUNT
            seen += keys
    assert seen == dataset[1]


def test_a_scan_with_a_condition(reader, dataset):
    found = list(
        reader.scan("b", "json_extract(meta_json, '$.i') % 50 = ?", params=(3,))
    )
    assert [item["__key__"] for item in found] == dataset[1][3::50]
    assert all(list(item) == ["__key__", "b"] for item in found)


def test_a_scan_is_in_file_order(tmp_path):
    ids = write(tmp_path / "d", 20, per_shard=5)
    with ShardedDatasetWriter(tmp_path / "d", samples_per_shard=5) as writer:
        for i in (7, 2):
            writer.update_sample(ids[i], {"a": value(100 + i, "a")})
    with ShardedDatasetReader(tmp_path / "d") as reader:
        order = [item["__key__"] for item in reader.scan(fields=["a"])]
        again = [item["__key__"] for item in reader.scan(fields=["b"])]
    assert again == ids
    assert order == [x for x in ids if x not in (ids[7], ids[2])] + [ids[7], ids[2]]


def test_an_abandoned_scan(dataset):
    with ShardedDatasetReader(dataset[0]) as reader:
        threads = threading.active_count()
        scan = reader.scan(batch_size=10)
        assert len(next(scan)["__key__"]) == 10
        scan.close()
        assert threading.active_count() == threads


def test_fields_that_some_samples_lack(tmp_path):
    with ShardedDatasetWriter(tmp_path / "d") as writer:
        writer.add_fields(["a", "b"])
        whole = writer.add_sample({"a": value(0, "a"), "b": value(0, "b")})
        half = writer.add_sample({"b": value(1, "b")})
        writer.register_samples(["none"])
    with ShardedDatasetReader(tmp_path / "d") as reader:
        assert list(reader.get_sample(half)[0]) == ["b"]
        assert reader.get_sample("none") == ({}, {})
        assert [list(s) for s in reader.samples] == [["a", "b"], ["b"], []]
        assert [list(s) for s in reader.samples.__getitems__([0, 1])] == [
            ["a", "b"],
            ["b"],
        ]
        assert len(reader.columns([whole, half], "b")["b"]) == 2
        with pytest.raises(FieldNotFoundError, match=half):
            reader.columns([whole, half], "a")
        assert [sorted(s)[1:] for s in reader.scan()] == [["a", "b"], ["b"], []]
        assert reader.shard_counts("a") == {0: 1}


def test_ragged_columns(tmp_path):
    arrays = [np.zeros(3, "f4"), np.ones((2, 2), "i8"), np.zeros(3, "f4")]
    with ShardedDatasetWriter(tmp_path / "d") as writer:
        writer.add_field("x")
        ids = [writer.add_sample({"x": array}) for array in arrays]
    with ShardedDatasetReader(tmp_path / "d") as reader:
        with pytest.raises(FastshardError, match=ids[1]):
            reader.columns(ids)
        found = reader.columns(ids, ragged="list")["x"]
        for one, other in zip(found, arrays, strict=True):
            np.testing.assert_array_equal(one, other)
        assert reader.columns(ids[::2])["x"].shape == (2, 3)
        batches = reader.scan(batch_size=3, ragged="list")
        assert [len(batch["x"]) for batch in batches] == [3]
        with pytest.raises(ValueError, match="ragged"):
            reader.columns(ids, ragged="pad")


@pytest.mark.parametrize(
    "array",
    [
        np.asfortranarray(np.arange(12.0).reshape(3, 4)),
        np.array(5, "i4"),
        np.zeros((0, 3)),
        np.array([("x", 1.5)], dtype=[("name", "U4"), ("v", "<f8")]),
        np.arange(5, dtype=">u2"),
        np.array(["2024-01-01"], "M8[D]"),
    ],
    ids=lambda a: f"{a.dtype.kind}{a.ndim}",
)
def test_kinds_of_arrays_stacked(tmp_path, array):
    with ShardedDatasetWriter(tmp_path / "d") as writer:
        writer.add_field("x")
        ids = [writer.add_sample({"x": array}) for _ in range(3)]
    with ShardedDatasetReader(tmp_path / "d") as reader:
        column = reader.columns(ids)["x"]
    np.testing.assert_array_equal(column, np.stack([array] * 3))
    assert column.dtype == array.dtype


def test_missing_samples_fields_and_positions(reader, dataset):
    with pytest.raises(SampleNotFoundError, match="absent"):
        reader.get_sample("absent")
    with pytest.raises(KeyError):
        reader.get_many([dataset[1][0], "absent"])
    with pytest.raises(KeyError):
        reader.columns(["absent"])
    with pytest.raises(KeyError):
        reader.get_sample("half a pair \ud800")
    for call in (
        lambda: reader.get_sample(dataset[1][0], fields=["z"]),
        lambda: reader.columns([0], ["z"]),
        lambda: list(reader.scan(["z"])),
        lambda: reader.shard_counts("z"),
    ):
        with pytest.raises(FieldNotFoundError, match="a, b, c"):
            call()
    with pytest.raises(TypeError, match="str"):
        reader.get_sample(3)
    with pytest.raises(IndexError):
        reader.columns([COUNT])


def test_a_closed_reader(dataset):
    reader = ShardedDatasetReader(dataset[0])
    samples = reader.samples
    scan = reader.scan()
    next(scan)
    reader.close()
    reader.close()
    assert reader.closed
    for call in (
        lambda: reader.get_sample(dataset[1][0]),
        lambda: reader.query_ids(),
        lambda: len(reader),
        lambda: reader.refresh(),
        lambda: samples[0],
        lambda: reader.samples,
        lambda: reader.__enter__(),
        lambda: pickle.dumps(reader),
        lambda: list(reader.scan()),
    ):
        with pytest.raises(ClosedError):
            call()


def test_a_reader_is_a_snapshot(tmp_path):
    root = tmp_path / "d"
    ids = write(root, 10)
    with ShardedDatasetReader(root) as reader, ShardedDatasetWriter(root) as writer:
        assert len(reader) == 10
        new = writer.add_sample({"a": value(99, "a")})
        writer.update_sample(ids[0], {"a": value(77, "a")}, metadata={"new": True})
        writer.flush()
        assert len(reader) == 10
        assert_is(reader.get_sample(ids[0])[0], 0)
        assert_is(reader.samples[0], 0)
        with pytest.raises(KeyError):
            reader.get_sample(new)
        reader.refresh()
        assert len(reader) == len(reader.samples) == 11
        np.testing.assert_array_equal(reader.get_sample(ids[0])[0]["a"], value(77, "a"))
        np.testing.assert_array_equal(reader.samples[-1]["a"], value(99, "a"))
        assert reader.get_sample(ids[0])[1] == {"new": True}
        writer.add_field("d")
        writer.flush()
        assert reader.list_fields() == ["a", "b", "c"]
        reader.refresh()
        assert reader.list_fields() == ["a", "b", "c", "d"]


def test_compaction_under_a_reader(tmp_path):
    root = tmp_path / "d"
    ids = write(root, 10)
    with ShardedDatasetWriter(root) as writer:  # leaves dead members to remove
        writer.update_sample(ids[0], {f: value(0, f) for f in "abc"})
    with ShardedDatasetReader(root) as reader, ShardedDatasetReader(root) as late:
        before = reader.get_sample(ids[3])[0]
        fastshard.columnar.compact(root)
        assert_is(before, 3)
        assert_is(reader.get_sample(ids[4])[0], 4)  # its shards are already mapped
        assert_is(late.get_sample(ids[3])[0], 3)  # this one opens them now
        late.refresh()
        assert_is(late.get_sample(ids[3])[0], 3)


def test_a_reader_pickles_by_its_path(dataset):
    with ShardedDatasetReader(dataset[0], mode="private") as reader:
        again = pickle.loads(pickle.dumps(reader))
        samples = pickle.loads(pickle.dumps(reader.samples))
    with again:
        arrays, _ = again.get_sample(dataset[1][5])
        assert arrays["a"].flags.writeable
        assert_is(arrays, 5)
    assert_is(samples[7], 7)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_reads_on(dataset):
    with ShardedDatasetReader(dataset[0]) as reader:
        reader.get_sample(dataset[1][0])
        assert len(reader.samples) == COUNT
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                assert_is(reader.get_sample(dataset[1][9])[0], 9)
                assert_is(reader.samples[10], 10)
                assert reader.query_ids(limit=1) == dataset[1][:1]
                reader.close()
                status = 0
            finally:
                os._exit(status)
        assert os.waitpid(pid, 0)[1] == 0
        assert_is(reader.get_sample(dataset[1][11])[0], 11)
        assert len(reader.query_ids()) == COUNT


def test_many_threads_on_one_reader(dataset):
    with ShardedDatasetReader(dataset[0]) as reader:

        def work(seed):
            rng = np.random.default_rng(seed)
            for i in rng.integers(0, COUNT, 200).tolist():
                assert_is(reader.get_sample(dataset[1][i])[0], i)
                assert_is(reader.samples[i], i)
                column = reader.columns([i, 0], "b")["b"]
                np.testing.assert_array_equal(column[0], value(i, "b"))
                if i % 20 == 0:
                    assert len(reader.query_ids("id > ?", ("",), 3)) == 3

        in_threads(work, 6)


def test_few_shards_open_at_a_time(dataset):
    with fastshard.open(dataset[0], max_mapped=2) as ds:
        for i in range(0, COUNT, 13):
            assert_is(dict(ds[i]), i)
        assert len(sources_of(ds)) <= 2


def test_shards_are_closed_without_cache_tars(dataset):
    with ShardedDatasetReader(dataset[0], cache_tars=False) as reader:
        array = reader.get_sample(dataset[1][3])[0]["a"]
        assert open_sources(reader) == []
        np.testing.assert_array_equal(array, value(3, "a"))
        assert len(reader.get_many(dataset[1][:5])) == 5
        assert open_sources(reader) == []


@pytest.mark.parametrize(
    "header",
    [
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1099511627776,), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (4294967296, 4294967296), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (-1,), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': "
        + "(" * 40
        + ")" * 40
        + ", }",
        "{'descr': '|O', 'fortran_order': False, 'shape': (3,), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (True,), }",
        "{'descr': [('a', '|O')], 'fortran_order': False, 'shape': (3,), }",
        "__import__('os').abort()",
        "{'descr': '<f4'}",
        "(" * 5000,
    ],
)
def test_hostile_npy_headers(tmp_path, header):
    root = tmp_path / "d"
    ids = write(root, 3, fields="a")
    text = header.encode()
    text += b" " * (-(10 + len(text)) % 64)  # to a multiple of 64 bytes
    bad = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text
    path = root / "a_shards" / "shard_0000.tar"
    whole = bytearray(path.read_bytes())
    whole[512 : 512 + min(len(bad), 528)] = bad[:528]
    path.write_bytes(whole)
    with ShardedDatasetReader(root) as reader:
        for call in (
            lambda: reader.get_sample(ids[0]),
            lambda: reader.samples[0],
            lambda: reader.columns(ids),
            lambda: list(reader.scan()),
            lambda: list(reader.scan(batch_size=2)),
        ):
            with pytest.raises(FormatError, match=r"shard_0000\.tar"):
                call()
        assert_is(reader.get_sample(ids[1])[0], 1, "a")
        assert_is(reader.samples[2], 2, "a")


@pytest.mark.parametrize(
    ("offset", "shard"),
    [
        (-1, 0),
        (2**63 - 1, 0),
        (10**9, 0),
        (513, 0),
        (0, 0),
        ("512", 0),
        (512.5, 0),
        (b"512", 0),
        (512, None),
        (None, 0),
        (512, -1),
        (512, "0"),
        (512, 2**62),
        (512, 0.5),
    ],
)
def test_invalid_rows(tmp_path, offset, shard):
    root = tmp_path / "d"
    ids = write(root, 3, fields="a")
    with sqlite3.connect(root / "index.sqlite") as conn:
        conn.execute(
            "UPDATE samples SET a_offset = ?, a_shard = ? WHERE id = ?",
            (offset, shard, ids[0]),
        )
    conn.close()
    # Found by name, unless the offset is past the end of the file.
    is_found = type(offset) is int and shard == 0 and 0 <= offset < 5632
    # Converted by the affinity of the columns:
    is_found = is_found or (offset, shard) in [("512", 0), (512, "0")]
    with ShardedDatasetReader(root) as reader:
        for call in (
            lambda: reader.get_sample(ids[0])[0],
            lambda: reader.samples[0],
            lambda: {"a": reader.columns(ids)["a"][0]},
        ):
            if is_found:
                assert_is(call(), 0, "a")
            else:
                with pytest.raises((FormatError, FileNotFoundError)):
                    call()
        assert_is(reader.samples[1], 1, "a")


def test_every_truncated_shard_is_refused_or_read(tmp_path):
    root = tmp_path / "d"
    ids = write(root, 3, fields="a")
    path = root / "a_shards" / "shard_0000.tar"
    whole = path.read_bytes()
    for size in range(0, len(whole), 97):
        path.write_bytes(whole[:size])
        with ShardedDatasetReader(root) as reader:
            for i, sample_id in enumerate(ids):
                try:
                    arrays, _ = reader.get_sample(sample_id)
                except (FastshardError, OSError):
                    assert size < 512 + 1536 * i + 528
                else:
                    assert_is(arrays, i, "a")


def test_every_flipped_byte_is_refused_or_read(tmp_path):
    root = tmp_path / "d"
    ids = write(root, 2, fields="c")
    path = root / "c_shards" / "shard_0000.tar"
    whole = path.read_bytes()
    for at in [*range(160), *range(500, 680), *range(1024, 1200)]:
        bad = bytearray(whole)
        bad[at] ^= 0x21
        path.write_bytes(bad)
        with ShardedDatasetReader(root) as reader:
            for call in (
                lambda: reader.get_sample(ids[0]),
                lambda: reader.columns(ids),
            ):
                try:
                    call()
                except (FastshardError, OSError):
                    continue
                except ValueError:
                    pytest.fail(f"byte {at}")


@not_sanitized
def test_ctrl_c_ends_a_scan(dataset):
    def interrupt(reader):
        for k, _ in enumerate(reader.scan(batch_size=5)):
            if k == 3:
                signal.raise_signal(signal.SIGINT)

    with ShardedDatasetReader(dataset[0]) as reader:
        with pytest.raises(KeyboardInterrupt):
            interrupt(reader)
        assert len(list(reader.scan())) == COUNT


def test_a_missing_or_invalid_index(tmp_path):
    with pytest.raises(FileNotFoundError):
        ShardedDatasetReader(tmp_path)
    (tmp_path / "index.sqlite").write_bytes(b"no database" * 100)
    with pytest.raises(FormatError, match=r"index\.sqlite"):
        ShardedDatasetReader(tmp_path)


def test_an_invalid_mode(dataset):
    with pytest.raises(ValueError, match="mode"):
        ShardedDatasetReader(dataset[0], mode="r")


def test_a_dataset_that_was_moved(dataset, tmp_path):
    shutil.copytree(dataset[0], tmp_path / "el se?where#%20")
    with ShardedDatasetReader(tmp_path / "el se?where#%20") as reader:
        assert_is(reader.get_sample(dataset[1][1])[0], 1)


def test_a_copied_reader_reads(dataset):
    with ShardedDatasetReader(dataset[0]) as reader, copy.copy(reader) as other:
        assert_is(other.get_sample(dataset[1][2])[0], 2)
