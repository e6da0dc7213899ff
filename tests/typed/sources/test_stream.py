"""Sources of a caller's own, read as streams from the first member to the last."""

import gzip
import io
import pickle
import tarfile

import numpy as np
import pytest
from numpy.typing import NDArray

import fastshard
from fastshard import typed
from fastshard.typed.sources import stream
from fastshard.typed.sources.opening import open_source
from support.typed.sources import OwnSource


@typed.packable
class Row:
    i: int
    vector: NDArray[np.float32]


@typed.packable
class Half:
    half: float


@typed.lens
def half(row: Row) -> Half:
    return Half(half=row.i / 2)


def row(i, length=4):
    return Row(i=i, vector=np.full(length, i, "f4"))


def add(tar, name, data, **facts):
    info = tarfile.TarInfo(name)
    info.size = len(data)
    for key, value in facts.items():
        setattr(info, key, value)
    tar.addfile(info, io.BytesIO(data))


def write(
    path, numbers, *, length=4, beside=False, style=tarfile.PAX_FORMAT, **options
):
    """Write a shard as webdataset does: a pax header for each member's time."""
    with tarfile.open(path, "w", format=style, **options) as tar:
        for i in numbers:
            key = f"{'long/' * 40 if i % 5 == 4 else ''}{i:06d}"
            if beside:
                add(tar, f"{key}.jpg", b"picture" * 99, mtime=0.5)
            add(tar, f"{key}.msgpack", row(i, length).packed, mtime=0.5)
            if beside:
                add(tar, f"{key}.txt", b"text", mtime=0.5)
                add(tar, "folder", b"", type=tarfile.DIRTYPE)


@pytest.fixture
def source(tmp_path):
    names = [f"{k}.tar" for k in range(3)]
    for k, name in enumerate(names):
        write(tmp_path / name, range(10 * k, 10 * k + 10))
    return OwnSource(tmp_path, names, seekable=False)


def numbers(samples):
    return [sample.i for sample in samples]


def test_samples_come_in_order_from_streams(source):
    ds = typed.Dataset(source, Row)
    samples = list(ds.ordered())
    assert numbers(samples) == list(range(30))
    np.testing.assert_array_equal(samples[17].vector, np.full(4, 17, "f4"))
    assert source.opened == source.closed == source.names


def test_an_iteration_reads_no_more_than_it_needs(tmp_path):
    write(tmp_path / "a.tar", range(40), length=10_000)
    (tmp_path / "b.tar").write_bytes((tmp_path / "a.tar").read_bytes())
    source = OwnSource(tmp_path, ["a.tar", "b.tar"], seekable=False)
    samples = iter(typed.Dataset(source, Row).ordered())
    assert next(samples).i == 0
    assert source.bytes_read <= 200_000 < (tmp_path / "a.tar").stat().st_size
    assert source.opened == ["a.tar"]
    samples.close()
    del samples
    assert source.closed == ["a.tar"]


def test_batches_filters_maps_and_lenses_read_streams(source):
    ds = typed.Dataset(source, Row)
    batches = list(ds.ordered(batch_size=8))
    assert [len(batch) for batch in batches] == [8, 8, 8, 6]
    assert [i for batch in batches for i in batch.i] == list(range(30))
    np.testing.assert_array_equal(batches[1].vector[:, 0], range(8, 16))
    assert source.opened == source.names
    few = typed.Dataset(source, Row).filter(lambda sample: sample.i % 7 == 0)
    assert numbers(few.ordered()) == [0, 7, 14, 21, 28]
    assert source.opened == 2 * source.names
    seen = typed.Dataset(source, Row).as_type(Half).map(lambda each: each.half)
    assert list(seen.ordered()) == [i / 2 for i in range(30)]
    plain = typed.Dataset(source)
    assert [sample["i"] for sample in plain.ordered()] == list(range(30))
    assert source.opened == source.closed == 4 * source.names


def test_random_access_reads_the_streams_once(source):
    ds = typed.Dataset(source, Row)
    assert numbers(ds.ordered()) == list(range(30))
    assert (len(ds), ds[17].i, ds["000023"].i) == (30, 17, 23)
    assert sorted(numbers(ds.shuffled(seed=1))) == list(range(30))
    assert numbers(ds.ordered()) == list(range(30))
    assert source.opened[:3] == source.names
    assert sorted(source.opened[3:]) == source.names  # by threads, in any order


def test_a_stream_continues_where_it_was(source):
    ds = typed.Dataset(source, Row)
    samples = ds.iter()
    assert numbers([next(samples) for _ in range(13)]) == list(range(13))
    state = samples.state_dict()
    assert numbers(samples) == list(range(13, 30))
    assert numbers(pickle.loads(pickle.dumps(ds)).resume(state)) == list(range(13, 30))


@pytest.mark.parametrize("window", [1, 511, 512, 513, 3000, 1 << 20])
@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize("style", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_parts_of_any_size_have_the_same_samples(
    tmp_path, monkeypatch, window, beside, style
):
    monkeypatch.setattr(stream, "WINDOW", window)
    write(tmp_path / "a.tar", range(12), beside=beside, style=style)
    ds = open_source(OwnSource(tmp_path, ["a.tar"], seekable=False))
    found = [sample.decode() for sample in ds]
    known = fastshard.open(tmp_path / "a.tar", packed=True)
    assert [each["__key__"] for each in found] == list(known.keys())
    assert [each["i"] for each in found] == list(range(12))
    np.testing.assert_array_equal(found[7]["vector"], np.full(4, 7, "f4"))


def test_samples_outlive_the_stream(source):
    first, *_ = list(open_source(source))
    assert first.decode("i")["i"] == 0
    assert first["vector"].nbytes > 0
    assert pickle.loads(pickle.dumps(first)).decode("i")["i"] == 0


def test_every_truncation_gives_samples_and_then_an_error(tmp_path):
    write(tmp_path / "whole.tar", range(3), beside=True)
    whole = (tmp_path / "whole.tar").read_bytes()
    source = OwnSource(tmp_path, ["a.tar"], seekable=False)
    for n in range(0, len(whole) - 10240, 61):
        (tmp_path / "a.tar").write_bytes(whole[:n])
        found = []
        try:
            for sample in typed.Dataset(source, Row).ordered():
                found.append(sample.i)
        except fastshard.FormatError as error:
            assert error.path == "a.tar"
            assert error.offset <= n
        else:
            assert n % 512 == 0
        assert found == list(range(len(found)))
        assert len(source.closed) == len(source.opened)


def test_an_error_of_one_shard_leaves_the_next(source, tmp_path):
    data = (tmp_path / "1.tar").read_bytes()
    (tmp_path / "1.tar").write_bytes(data[: 10 * 1536])
    ds = typed.Dataset(source, Row)
    samples = ds.iter()
    found, errors = [], []
    while True:
        try:
            found.append(next(samples).i)
        except StopIteration:
            break
        except fastshard.FormatError as error:
            errors.append(error)
    (error,) = errors
    assert error.path == "1.tar"
    assert found[:10] == list(range(10))
    assert found[-10:] == list(range(20, 30))
    assert 10 < len(found) - 10 < 20
    again = numbers(typed.Dataset(source, Row).iter(on_error="skip"))
    assert again == found


def test_a_null_payload_names_its_sample(source, tmp_path):
    with tarfile.open(tmp_path / "1.tar", "w") as tar:
        add(tar, "a.msgpack", row(1).packed)
        add(tar, "b.msgpack", b"\x81\xa1i\xa1x")
        add(tar, "c.txt", b"no payload")
    samples = typed.Dataset(source, Row).iter()
    assert numbers([next(samples) for _ in range(11)]) == [*range(10), 1]
    with pytest.raises(fastshard.SchemaError, match="'b'") as caught:
        next(samples)
    assert caught.value.path == "1.tar"
    assert caught.value.offset == 1024 + 512 + 3
    with pytest.raises(fastshard.FormatError, match="c"):
        next(samples)
    assert next(samples).i == 20


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "empty file"),
        (gzip.compress(bytes(5000)), "gzip"),
        (b"x" * 2000, "a text file"),
        (b"\xee" * 2000, "checksum is wrong"),
        (b"\xee" * 100, "inside a header"),
        (b"PK\x03\x04" + bytes(2000), "zip"),
    ],
    ids=["empty", "gzip", "text", "bytes", "cut", "zip"],
)
def test_a_non_tar_is_an_error(tmp_path, data, reason):
    (tmp_path / "a.tar").write_bytes(data)
    source = OwnSource(tmp_path, ["a.tar"], seekable=False)
    with pytest.raises(fastshard.FormatError, match=reason):
        list(typed.Dataset(source, Row).ordered())
    assert source.closed == ["a.tar"]


def test_a_size_beyond_the_stream_takes_no_memory(tmp_path):
    info = tarfile.TarInfo("a.msgpack")
    info.size = 1 << 50
    (tmp_path / "a.tar").write_bytes(info.tobuf(tarfile.GNU_FORMAT) + bytes(4000))
    source = OwnSource(tmp_path, ["a.tar"], seekable=False)
    with pytest.raises(fastshard.FormatError, match="inside this member's data"):
        list(typed.Dataset(source, Row).ordered())


def test_global_headers_hold_for_all_that_follows(tmp_path, monkeypatch):
    monkeypatch.setattr(stream, "WINDOW", 700)
    write(tmp_path / "a.tar", range(5), pax_headers={"comment": "of all"})
    source = OwnSource(tmp_path, ["a.tar"], seekable=False)
    assert numbers(typed.Dataset(source, Row).ordered()) == list(range(5))


@pytest.mark.parametrize("answer", [None, "text"])
def test_files_that_answer_wrongly(source, monkeypatch, answer):
    file = source.open_shard("0.tar")
    monkeypatch.setattr(file, "read", lambda size=-1: answer)
    monkeypatch.setattr(source, "open_shard", lambda name: file)
    with pytest.raises(fastshard.FastshardError, match="must"):
        list(typed.Dataset(source, Row).ordered())


def test_errors_of_the_source_are_its_own(tmp_path, source):
    class Failing(OwnSource):
        def open_shard(self, shard_id):
            raise LookupError("no such luck")

    samples = typed.Dataset(Failing(tmp_path, source.names), Row).iter()
    for _ in range(2):  # unread samples are not left out
        with pytest.raises(LookupError, match="no such luck"):
            next(samples)
    gone = OwnSource(tmp_path, ["gone.tar", *source.names], seekable=False)
    with pytest.raises(FileNotFoundError):
        list(typed.Dataset(gone, Row).ordered())
    assert len(list(typed.Dataset(gone, Row).iter(on_error="skip"))) == 30


def test_a_closed_dataset_reads_no_stream(source):
    ds = open_source(source)
    samples = iter(ds)
    next(samples)
    ds.close()
    with pytest.raises(fastshard.ClosedError):
        list(samples)


def test_links_of_a_stream_are_warned_of_once(tmp_path):
    """The target may be passed by, or not reached yet."""
    with tarfile.open(tmp_path / "t.tar", "w") as tar:
        for i in range(2):
            add(tar, f"{i}.msgpack", row(i).packed)
            link = {"type": tarfile.LNKTYPE, "linkname": "0.msgpack"}
            add(tar, f"l{i}.msgpack", b"", **link)
    source = OwnSource(tmp_path, ["t.tar"], seekable=False)
    ds = typed.Dataset[Row](source)
    with pytest.warns(
        fastshard.UnreadEntryWarning, match="not read from a stream"
    ) as w:
        assert [sample.i for sample in ds.ordered(batch_size=None)] == [0, 1]
    assert len(w) == 1
