"""Shards as sequences of views, by position and by name."""

import copy
import hashlib
import io
import json
import pickle
import random
import socket

import numpy as np
import pytest

import fastshard
from fastshard import ClosedError, FastshardError, MemberNotFoundError
from fastshard._core.dataset.gather import prefetch_samples
from fastshard._core.dataset.remote_prefetch import fetch_samples
from fastshard._core.dataset.shard import find_members, find_odd_width, stage_bytes
from fastshard.formats.sample import Sample

MODES = ["mmap", "private", "pread"]


@pytest.fixture(params=MODES)
def shard(request, shard_path):
    with fastshard.open_shard(shard_path, mode=request.param) as shard:
        yield shard


def test_members_have_the_stored_bytes(shard, members):
    assert len(shard) == len(members)
    assert list(shard.names) == list(members)
    for i, (name, data) in enumerate(members.items()):
        assert shard[i] == data
        assert shard[name] == data
        assert shard[i - len(members)] == data
        assert shard.read(i) == shard.read(name) == data
        assert type(shard.read(i)) is bytes
        assert shard.position(name) == i
        assert name in shard


def test_iterates_over_views(shard, members):
    assert [bytes(view) for view in shard] == list(members.values())
    assert [bytes(v) for v in reversed(shard)] == list(members.values())[::-1]
    assert len(list(iter(shard))) == iter(shard).__length_hint__() == len(members)


@pytest.mark.parametrize(
    "part", [slice(1, 3), slice(None, None, -1), slice(-2, None), slice(9, 12)]
)
def test_a_slice_is_a_list_of_views(shard, members, part):
    assert [bytes(view) for view in shard[part]] == list(members.values())[part]
    assert shard.names[part] == list(members)[part]


def test_numpy_integers_are_positions(shard):
    assert shard[np.int64(2)] == shard[np.uint8(2)] == shard[2]


def test_numpy_strings_are_names(shard, members):
    name = np.array(list(members))[0]
    assert shard[name] == shard.read(name) == members["000.jpg"]
    assert name in shard
    assert name in shard.names
    assert shard.position(name) == 0
    assert shard.samples[np.str_("000")][np.str_("jpg")] == members["000.jpg"]
    assert np.str_("sub/002") in shard.samples
    with pytest.raises(MemberNotFoundError):
        shard[np.str_("ä")]


def test_views_are_plain_memoryviews(shard, members):
    view = shard["000.jpg"]
    assert isinstance(view, memoryview)
    assert (view.format, view.ndim, view.itemsize) == ("B", 1, 1)
    assert view.nbytes == len(members["000.jpg"])
    assert view.c_contiguous
    assert view.readonly == (shard.mode != "private")


def test_consumers_of_buffers_accept_views(shard, members):
    view, data = shard["000.json"], members["000.json"]
    assert np.frombuffer(view, dtype="u1").tobytes() == data
    assert io.BytesIO(view).read() == data
    assert json.loads(bytes(view)) == {"caption": "one"}
    assert hashlib.sha256(view).digest() == hashlib.sha256(data).digest()
    one, other = socket.socketpair()
    with one, other:
        assert one.send(view) == len(data)
        assert other.recv(100) == data


@pytest.mark.parametrize("key", [7, -8, 2**62, -(2**63), 2**80, -(2**80)])
def test_a_position_out_of_range_is_an_index_error(shard, key):
    for call in (shard.__getitem__, shard.read, shard.array, shard.names.__getitem__):
        with pytest.raises(IndexError):
            call(key)


@pytest.mark.parametrize("key", [1.0, b"000.jpg", None, ("000.jpg",), [0]])
def test_other_keys_are_type_errors(shard, key):
    for call in (shard.__getitem__, shard.read, shard.array):
        with pytest.raises(TypeError):
            call(key)
    with pytest.raises(TypeError):
        _ = key in shard
    with pytest.raises(TypeError):
        shard.position(key)


@pytest.mark.parametrize("name", ["", "000", "000.jp", "000.jpgg", "\ud800", "ä"])
def test_a_missing_name_is_a_key_error_with_the_path(shard, name):
    assert name not in shard
    for call in (shard.__getitem__, shard.position, shard.read, shard.array):
        with pytest.raises(MemberNotFoundError) as caught:
            call(name)
        assert isinstance(caught.value, KeyError)
        assert isinstance(caught.value, FastshardError)
        assert caught.value.name == name
        assert shard.path in str(caught.value)


def test_names_are_a_lazy_sequence(shard, members):
    names = shard.names
    assert names == list(members) == names[:]
    assert names != list(members)[1:]
    assert names != 5
    assert list(reversed(names)) == list(members)[::-1]
    assert names[-1] == "sub/002.json"
    assert names.index("001.json") == 3
    assert names.count("001.json") == 1
    assert "README" in names
    assert 3 not in names
    assert pickle.loads(pickle.dumps(names)) == list(members)
    assert "000.jpg" in repr(names)
    with pytest.raises(ValueError, match="not in"):
        names.index("absent")


def test_offsets_and_sizes_are_arrays_without_a_copy(shard, shard_path, members):
    offsets, sizes = shard.offsets, shard.sizes
    whole = shard_path.read_bytes()
    for array in (offsets, sizes):
        assert array.dtype == np.uint64
        assert array.shape == (len(members),)
        assert array.flags.c_contiguous
        assert array.flags.aligned
        assert not array.flags.writeable
        assert not array.flags.owndata
    shard.close()
    for i, data in enumerate(members.values()):  # views outlive the shard
        assert whole[offsets[i] :][: sizes[i]] == data


def test_the_last_of_members_with_one_name_is_found(tmp_path, make_tar):
    first = make_tar({"a": b"1", "b": b"2"}, "first.tar").read_bytes()
    again = make_tar({"a": b"3", "c": b"4"}, "again.tar").read_bytes()
    path = tmp_path / "both.tar"
    path.write_bytes(first[: 4 * 512] + again)
    with fastshard.open_shard(path) as shard:
        assert list(shard.names) == ["a", "b", "a", "c"]
        assert shard["a"] == b"3"
        assert shard.position("a") == 2
        assert [bytes(view) for view in shard] == [b"1", b"2", b"3", b"4"]


def test_a_shard_without_members(make_tar):
    path = make_tar({})
    for mode in MODES:
        with fastshard.open_shard(path, mode=mode) as shard:
            assert len(shard) == len(shard.samples) == len(shard.offsets) == 0
            assert list(shard) == list(shard.names) == shard[:] == []
            assert "a" not in shard
            with pytest.raises(IndexError):
                shard[0]


@pytest.mark.parametrize("count", [1, 2, 3, 7, 8, 9, 1000, 20_000])
def test_every_name_is_found(make_tar, count):
    rng = random.Random(count)
    names = [f"{rng.randrange(10**12)}/{i}.x" for i in range(count)]
    path = make_tar(dict.fromkeys(names, b""))
    with fastshard.open_shard(path) as shard:
        for i, name in enumerate(names):
            assert shard.position(name) == i
            assert name + "y" not in shard


def test_a_closed_shard_raises(shard):
    names = shard.names
    shard.close()
    shard.close()
    assert shard.closed
    assert "closed" in repr(shard)
    for use in (
        lambda: shard[0],
        lambda: shard["000.jpg"],
        lambda: shard["absent"],
        lambda: shard[99],
        lambda: shard[:],
        lambda: len(shard),
        lambda: "000.jpg" in shard,
        lambda: next(iter(shard)),
        lambda: shard.names,
        lambda: shard.offsets,
        lambda: shard.nbytes,
        lambda: shard.read(0),
        lambda: shard.array(0, "u1"),
        lambda: shard.samples[0],
        lambda: shard.samples["000"],
        lambda: len(shard.samples),
        lambda: shard.__enter__(),
        lambda: copy.copy(shard),
        lambda: pickle.dumps(shard),
    ):
        with pytest.raises(ClosedError) as caught:
            use()
        assert isinstance(caught.value, ValueError)
        assert shard.path in str(caught.value)
    assert names[0] == "000.jpg"


def test_a_key_that_closes_the_shard_is_an_error_and_no_crash(shard_path):
    class Closing:
        def __index__(self):
            shard.close()
            return 0

    for mode in MODES:
        for use in ("__getitem__", "read", "array"):
            shard = fastshard.open_shard(shard_path, mode=mode)
            with pytest.raises(ClosedError):
                getattr(shard, use)(Closing())
        shard = fastshard.open_shard(shard_path, mode=mode)
        with pytest.raises(ClosedError):
            shard[Closing() : 3]


def test_pickles_by_path_and_options(shard, members, monkeypatch, tmp_path_factory):
    data = pickle.dumps(shard)
    assert len(data) < 500
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    with pickle.loads(data) as again:
        assert again.mode == shard.mode
        assert [bytes(view) for view in again] == list(members.values())


def test_a_relative_path_survives_a_change_of_directory(shard_path, monkeypatch):
    monkeypatch.chdir(shard_path.parent)
    shard = fastshard.open_shard("shard.tar", key="last", lower=False)
    assert shard.path == "shard.tar"
    monkeypatch.chdir("/")
    again = pickle.loads(pickle.dumps(shard))
    assert list(again.names) == list(shard.names)


def test_a_copy_is_a_handle_of_its_own(shard, members):
    other = copy.copy(shard)
    shard.close()
    assert not other.closed
    assert [bytes(view) for view in other] == list(members.values())
    assert other.samples["000"]["json"] == members["000.json"]


def test_repr_has_the_path_the_length_and_the_mode(shard, shard_path):
    assert str(shard_path) in repr(shard)
    assert "7 members" in repr(shard)
    assert shard.mode in repr(shard)


def test_attributes_of_the_file(shard, shard_path):
    assert shard.path == str(shard_path)
    assert shard.nbytes == shard_path.stat().st_size
    assert dict(shard.skipped) == {}


def test_private_views_are_writable_and_the_file_stays(shard_path, members):
    whole = shard_path.read_bytes()
    with fastshard.open_shard(shard_path, mode="private") as shard:
        view = shard["000.jpg"]
        view[:3] = b"new"
        array = shard.array("000.jpg", "u1")
        array[3] = 7
        assert shard["000.jpg"][:4] == b"new\x07"
    with fastshard.open_shard(shard_path, mode="private") as shard:
        assert shard["000.jpg"] == members["000.jpg"]
    assert shard_path.read_bytes() == whole


@pytest.mark.parametrize("mode", ["mmap", "pread"])
def test_other_views_are_read_only(shard_path, mode):
    with fastshard.open_shard(shard_path, mode=mode) as shard:
        with pytest.raises(TypeError, match="read-only"):
            shard["000.jpg"][0] = 1
        assert not shard.array("000.jpg", "u1").flags.writeable


@pytest.mark.parametrize(
    "options", [{"mode": "r"}, {"mode": None}, {"key": "middle"}, {"key": None}]
)
def test_unknown_options_are_value_errors(shard_path, options):
    with pytest.raises(ValueError, match=r"mode|key"):
        fastshard.open_shard(shard_path, **options)


def test_a_path_of_another_type_is_a_type_error():
    for path in (5, b"shard.tar", None):
        with pytest.raises(TypeError):
            fastshard.open_shard(path)


def test_a_file_that_cannot_be_mapped_is_an_error_that_names_pread():
    """Files of /proc cannot be mapped; the scan comes first and succeeds."""
    from fastshard._core.io.source import MappedFile

    with open("/proc/self/status") as file, pytest.raises(OSError, match="pread"):
        MappedFile(file.fileno(), 100, "/proc/self/status")


def test_names_by_position(shard_path):
    with fastshard.open_shard(shard_path) as shard:
        assert [shard.name_at(i) for i in range(len(shard))] == list(shard.names)
        assert shard.name_at(-1) == shard.names[-1]
        for i in (len(shard), -len(shard) - 1):
            with pytest.raises(IndexError):
                shard.name_at(i)
    with pytest.raises(fastshard.ClosedError):
        shard.name_at(0)


@pytest.mark.parametrize(
    "call",
    [
        lambda sample: sample.key,
        lambda sample: stage_bytes(sample, {}),
        lambda sample: find_members([sample], "txt"),
        lambda sample: find_odd_width([sample]),
        lambda sample: prefetch_samples([sample], 1 << 20),
        lambda sample: fetch_samples([sample], 1 << 20),
        lambda sample: fetch_samples([sample], 1 << 20, ("txt",)),
    ],
    ids=["key", "stage", "members", "width", "prefetch", "fetch", "fetch some"],
)
def test_a_sample_without_a_shard_is_an_error(call):
    """As of subclasses that stand on another sample."""
    with pytest.raises(AttributeError):
        call(Sample.__new__(Sample))
