"""Bulk reads: many members into one buffer, fields of many samples as arrays."""

import io
import os
import random
from multiprocessing import shared_memory

import numpy as np
import pytest

import fastshard
from fastshard import FastshardError, FieldNotFoundError, FormatError
from fastshard._core.dataset.gather import gather, resolve_positions
from support.memory import evict
from support.tars import write_tar


@pytest.fixture
def mixed(tmp_path):
    rng = random.Random(3)
    sizes = [0, 1, 511, 512, 513, 70_000, 0, 3_000_000, 5]
    data = {f"{i}.x": rng.randbytes(size) for i, size in enumerate(sizes)}
    return write_tar(tmp_path / "mixed.tar", data), list(data.values())


@pytest.mark.parametrize("mode", ["mmap", "private", "pread"])
@pytest.mark.parametrize("is_cold", [True, False])
@pytest.mark.parametrize("threads", [None, 1, 3])
def test_members_one_after_another(mixed, mode, is_cold, threads):
    path, data = mixed
    with fastshard.open_shard(path, mode=mode) as shard:
        if is_cold:
            evict(path)
        order = [7, 0, -1, 5, 7, 2]
        wanted = b"".join(data[i] for i in order)
        out = bytearray(b"\xee" * (len(wanted) + 9))
        offsets = shard.read_into(order, out, threads=threads)
        assert out == wanted + b"\xee" * 9
        assert offsets.dtype == np.int64
        assert offsets.tolist() == [0, *np.cumsum([len(data[i]) for i in order])]


def test_every_kind_of_buffer(mixed):
    path, data = mixed
    with fastshard.open_shard(path) as shard:
        wanted = data[5] + data[2]
        size = len(wanted)
        block = shared_memory.SharedMemory(create=True, size=size)
        try:
            for out in (bytearray(size), np.zeros(size, "u1"), block.buf[:size]):
                shard.read_into(np.array([5, 2], np.uint16), out)
                assert bytes(out) == wanted
                if isinstance(out, memoryview):
                    out.release()
        finally:
            block.close()
            block.unlink()
        pairs = np.zeros(size // 2 + 1, np.int16)
        shard.read_into((5, 2), pairs)
        assert pairs.tobytes()[:size] == wanted
        assert shard.read_into([], bytearray()).tolist() == [0]
        assert shard.read_into([0, 6], bytearray()).tolist() == [0, 0, 0]


def test_rows_of_an_array(tmp_path):
    data = {f"{i:04d}.bin": os.urandom(600) for i in range(50)}
    values = list(data.values())
    with fastshard.open_shard(write_tar(tmp_path / "r.tar", data)) as shard:
        out = np.zeros((4, 10, 60), "u1")
        offsets = shard.read_into([3, 49, 0], out)
        assert offsets.tolist() == [0, 600, 1200, 1800]
        rows = out.reshape(4, 600)
        assert [row.tobytes() for row in rows] == [
            *(values[i] for i in (3, 49, 0)),
            bytes(600),
        ]
        with pytest.raises(ValueError, match=r"5 members do not fit into 4 rows"):
            shard.read_into(range(5), out)
        with pytest.raises(ValueError, match=r"0007\.bin.* 600 bytes.* 599"):
            shard.read_into([7], np.zeros((4, 599), "u1"))


def test_positions_are_integers_of_any_type():
    class Position(int):
        pass

    positions = [0, -1, np.int64(3), np.uint8(4), True, Position(2), 2**31]
    expected = [0, 2**31, 3, 4, 1, 2, 2**31]
    for count in range(len(positions) + 1):
        part = positions[:count]
        for given in (part, tuple(part), iter(part)):
            assert resolve_positions(given, 2**31 + 1).tolist() == expected[:count]
    assert resolve_positions([-(2**63 - 1), 2**63 - 2], 2**63 - 1).tolist() == [
        0,
        2**63 - 2,
    ]


def test_bad_buffers_positions_and_threads_are_refused(mixed):
    path, _ = mixed
    with fastshard.open_shard(path) as shard:
        small = bytearray(b"u" * 511)
        with pytest.raises(ValueError, match="513 bytes do not fit into 511"):
            shard.read_into([4], small)
        assert small == b"u" * 511
        for positions, error in (
            ([9], IndexError),
            ([-10], IndexError),
            ([1, 2**63], IndexError),
            ([1, -(2**63) - 1], IndexError),
            ([1, 1.5], TypeError),
            (["0.x"], TypeError),
            (np.array([0.0]), TypeError),
            (np.array([2**64 - 1], np.uint64), IndexError),
            (5, TypeError),
        ):
            with pytest.raises(error):
                shard.read_into(positions, bytearray(9))
        with pytest.raises((BufferError, ValueError, TypeError)):
            shard.read_into([1], b"bytes")
        with pytest.raises((BufferError, ValueError)):
            shard.read_into([1], np.zeros((8, 8), "u1")[:, ::2])
        for threads in (0, -1):
            with pytest.raises(ValueError, match="threads"):
                shard.read_into([1], bytearray(9), threads=threads)
    with pytest.raises(fastshard.ClosedError):
        shard.read_into([1], bytearray(9))


def npy(array):
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


COUNT = 24


@pytest.fixture(params=["mmap", "pread"])
def ds(request, tmp_path):
    rng = np.random.default_rng(0)
    for k in range(3):
        data = {}
        for i in range(k * 8, k * 8 + 8):
            vec = rng.standard_normal((3, 5)).astype("f4") + i
            data[f"{i:02d}.vec.npy"] = npy(vec)
            data[f"{i:02d}.f.npy"] = npy(np.asfortranarray(vec.astype("i8")))
            data[f"{i:02d}.raw"] = np.full(6, i, "<u2").tobytes()
            data[f"{i:02d}.len.npy"] = npy(np.arange(i % 4))
            data[f"{i:02d}.txt"] = b"t" * i
        write_tar(tmp_path / f"c-{k}.tar", data)
    return fastshard.open(tmp_path, mode=request.param)


def test_fields_of_samples_into_one_buffer(ds):
    order = [20, 3, -1]
    out = bytearray(36)
    offsets = ds.read_into(order, out, fields="raw")
    assert offsets.tolist() == [0, 12, 24, 36]
    assert out == b"".join(bytes(ds[i]["raw"]) for i in order)
    out = bytearray(200)
    offsets = ds.read_into([5, 9], out, fields=["txt", "raw"])
    assert offsets.tolist() == [0, 5, 17, 26, 38]
    narrow = ds.select_fields("raw", "txt")
    assert narrow.read_into([5], out).tolist() == [0, 12, 17]
    assert ds[2:].read_into([3], out, fields="txt").tolist() == [0, 5]
    with pytest.raises(FieldNotFoundError, match="nope"):
        ds.read_into([1], out, fields="nope")


def test_columns_are_stacked(ds):
    order = np.array([23, 0, 8, 8, -2])
    found = ds.columns(order, ["vec.npy", "f.npy", "raw"])
    for field in ("vec.npy", "f.npy"):
        wanted = np.stack([ds[int(i)].array(field) for i in order])
        assert found[field].dtype == wanted.dtype
        assert found[field].shape == (5, 3, 5)
        assert (found[field] == wanted).all()
        assert found[field].flags.writeable
    assert found["raw"].shape == (5, 12)
    typed = ds.columns(order, {"raw": "<u2"})["raw"]
    assert typed.tolist() == [[i % COUNT] * 6 for i in order]
    shaped = ds.columns([1], {"raw": ("<u2", (2, 3))})["raw"]
    assert shaped.shape == (1, 2, 3)
    assert ds.columns([2], "raw")["raw"].shape == (1, 12)
    assert ds.columns([], "vec.npy")["vec.npy"].shape == (0,)


def test_ragged_columns(ds):
    with pytest.raises(
        FastshardError, match=r"'len\.npy' is int64 \(2,\) .*'02' .*\(1,\) .*'01'"
    ):
        ds.columns([1, 2], "len.npy")
    found = ds.columns([1, 2], ["len.npy", "vec.npy"], ragged="list")
    assert [a.tolist() for a in found["len.npy"]] == [[0], [0, 1]]
    assert found["vec.npy"].shape == (2, 3, 5)
    with pytest.raises(FastshardError, match="txt"):
        ds.columns([1, 2], "txt")
    texts = ds.columns([1, 2], "txt", ragged="list")["txt"]
    assert [bytes(text) for text in texts] == [b"t", b"tt"]
    padded = ds.columns([1, 2], ["txt", "vec.npy"], ragged="pad")
    assert padded["txt"].tolist() == [[ord("t"), 0], [ord("t")] * 2]
    lengths = padded["__lengths__"]
    assert [lengths[name].tolist() for name in ("txt", "vec.npy")] == [
        [[1], [2]],
        [[3, 5]] * 2,
    ]
    with pytest.raises(ValueError, match="ragged"):
        ds.columns([1], "txt", ragged="fill")
    assert ds.columns([0, 4], "len.npy")["len.npy"].shape == (2, 0)


def test_columns_of_bad_fields(ds, tmp_path):
    with pytest.raises(FieldNotFoundError):
        ds.columns([1], "nope")
    with pytest.raises(ValueError, match="12 bytes"):
        ds.columns([1], {"raw": "<u8"})
    path = write_tar(tmp_path / "bad.tar", {"a.npy": npy(np.zeros(3)), "b.npy": b"x"})
    with pytest.raises(FormatError, match=r"b\.npy"):
        fastshard.open(path).columns([0, 1], "npy")


def test_scalars_and_empties_are_stacked(tmp_path):
    data = {f"{i}.npy": npy(np.float64(i)) for i in range(4)}
    ds = fastshard.open(write_tar(tmp_path / "s.tar", data))
    assert ds.columns([3, 1], "npy")["npy"].tolist() == [3.0, 1.0]


def test_a_tensor_is_a_buffer(mixed):
    torch = pytest.importorskip("torch")
    path, data = mixed
    with fastshard.open_shard(path) as shard:
        out = torch.zeros(len(data[5]), dtype=torch.uint8)
        shard.read_into([5], out)
        assert out.numpy().tobytes() == data[5]


def test_parts_of_members(shard_path):
    with fastshard.open_shard(shard_path) as shard:
        members = [i for i in range(len(shard)) if len(shard[i]) >= 4][:5]
        skips, sizes = [0, 1, 2, 3, 4], [4, 3, 2, 1, 0]
        parts = [
            bytes(shard[i])[skip : skip + size]
            for i, skip, size in zip(members, skips, sizes, strict=True)
        ]
        out = np.zeros(10, np.uint8)
        given = (np.array(numbers) for numbers in (members, skips, sizes))
        numbers, skips, sizes = given
        ends = gather([shard], numbers, out, skips=skips, sizes=sizes)
        assert out.tobytes() == b"".join(parts)
        assert ends.tolist() == [0, 4, 7, 9, 10, 10]
        too_large = [len(shard[i]) + 1 for i in members]
        for wrong in (too_large, [-1] * 5, sizes[:4]):
            with pytest.raises(ValueError, match="size"):
                gather([shard], numbers, out, sizes=np.array(wrong))
