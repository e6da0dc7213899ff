"""Packed shards that are damaged, or are not packed."""

import random
import tarfile
from functools import partial

import numpy as np
import pytest

import fastshard
from fastshard import typed
from fastshard.errors import (
    FastshardError,
    FieldNotFoundError,
    FormatError,
    StaleIndexError,
)
from support.marks import thin
from support.typed import packed
from support.typed.packed import compact, write_payloads

pytest.importorskip("msgspec")

pack = partial(packed.pack, encode=compact)
VALUES = {"n": 300, "text": "a text", "x": np.arange(3, dtype=np.float32)}
WHOLE = [("a", pack(VALUES)), ("b", pack(VALUES)), ("c", pack(VALUES))]


def shard_of(path, payload):
    return write_payloads(path / "d.tar", [WHOLE[0], ("b", payload), WHOLE[2]])


def ways_to_read(ds):
    """Yield functions that read all of sample 1."""
    yield lambda: ds[1].decode()
    yield lambda: ds[1].keys()
    yield lambda: len(ds[1])
    yield lambda: list(ds.decode())
    yield lambda: next(ds.batches(3))
    yield lambda: ds.columns([0, 1, 2], ("n", "x"))
    yield lambda: ds[1]["n"]
    yield lambda: "n" in ds[1]
    yield lambda: ds.select_fields("text", missing="skip")


@pytest.mark.parametrize("mode", ["mmap", "pread", "counted"])
@pytest.mark.parametrize(
    ("payload", "at", "reason"),
    [
        (b"", 0, "cut off"),
        (b"\x93\x01\x02\x03", 0, "not a msgpack map"),
        (b"\x81\x01\x02", 1, "not a str"),
        (b"\x81\xa1n\x01\x00", 4, "bytes after the map"),
        (b"\xdf\xff\xff\xff\xff\xa1n\x01", 0, "more entries"),
        (b"\x81\xa1n\xc6\xff\xff\xff\xff\x00", 3, "cut off"),
        (b"\x81\xa1n" + b"\x91" * 600 + b"\x01", 515, "nested deeper"),
    ],
)
def test_damaged_payloads_are_errors_with_their_place(
    tmp_path, payload, at, reason, mode
):
    path = shard_of(tmp_path, payload)
    options = {"max_memory": "1MiB"} if mode == "counted" else {"mode": mode}
    ds = fastshard.open(path, packed=True, **options)
    start = int(ds.raw.shards[0].offsets[1])
    for read in ways_to_read(ds):
        try:
            read()
        except FormatError as error:
            assert reason in error.reason
            assert (error.path, error.offset) == (str(path), start + at)
            assert error.member.startswith("sample 'b'")
        else:
            # The number of entries, which is all that is read for the length.
            assert reason not in ("cut off", "not a msgpack map")
    assert ds[0].decode("n")["n"] == ds[2].decode("n")["n"] == 300
    assert [sample.key for sample in ds] == ["a", "b", "c"]
    found = list(ds.decode().iter(on_error="skip"))
    assert [values["__key__"] for values in found] == ["a", "c"]


def test_a_fault_inside_an_array_names_field_and_byte(tmp_path):
    good = pack(VALUES)
    at = good.index(b"<f4")
    path = shard_of(tmp_path, good.replace(b"<f4", b"<f9"))
    ds = fastshard.open(path, packed=True)
    start = int(ds.raw.shards[0].offsets[1])
    with pytest.raises(FormatError) as caught:
        ds[1].array("x")
    assert caught.value.member == "sample 'b', field 'x'"
    assert caught.value.offset == start + at
    assert type(ds[1].decode("x")["x"]) is bytes  # bytes, not an array


@pytest.mark.parametrize("mode", ["mmap", "pread"])
def test_a_name_that_is_not_text_is_an_error_with_its_place(tmp_path, mode):
    path = shard_of(tmp_path, b"\x82\xa1a\x01\xa1\xff\x02")
    sample = typed.Dataset(path, mode=mode)[1]
    assert sample.a == 1
    for read in (sample.keys, sample.to_dict, partial(len, sample)):
        with pytest.raises(FormatError, match="UTF-8") as caught:
            read()
        assert caught.value.path == str(path)
        assert caught.value.member == "sample 'b'"
        assert caught.value.offset % 512 == 5


def test_every_cut_is_an_error_or_the_values(tmp_path):
    good = pack(VALUES)
    for size in thin(range(len(good)), 7):
        ds = fastshard.open(shard_of(tmp_path, good[:size]), packed=True)
        for read in ways_to_read(ds):
            with pytest.raises(FormatError):
                read()


def test_every_flipped_byte_is_an_error_or_other_values(tmp_path):
    good = pack(VALUES)
    random.seed(1)
    for at in thin(range(len(good)), 5):
        changed = bytearray(good)
        changed[at] ^= 1 << random.randrange(8)
        ds = fastshard.open(shard_of(tmp_path, bytes(changed)), packed=True)
        for read in ways_to_read(ds):
            try:
                read()
            except (FormatError, FieldNotFoundError) as error:
                assert "'b'" in str(error)
            except (FastshardError, ValueError) as error:
                assert "'n'" in str(error) or "fields" in str(error)


def test_samples_without_a_payload_are_named(tmp_path):
    path = tmp_path / "d.tar"
    with fastshard.ShardWriter(str(path)) as writer:
        writer.write({"__key__": "a", "msgpack": pack(VALUES)})
        writer.write({"__key__": "b", "jpg": b"picture", "cls": 3})
    ds = fastshard.open(path, packed=True)
    assert len(ds) == 2
    assert ds[0].decode("n")["n"] == 300
    with pytest.raises(
        FormatError, match=r"sample 'b' has no member.*jpg, cls"
    ) as caught:
        ds[1]
    assert caught.value.path == str(path)
    assert [sample.key for sample in ds.iter(on_error="skip")] == ["a"]
    assert [fault.reason for fault in ds.verify()] == [caught.value.reason]
    assert bytes(ds.raw[1]["jpg"]) == b"picture"
    with pytest.raises(FormatError, match="'b' has no member"):
        ds.columns([0, 1], "n")
    with pytest.raises(FormatError, match="'b' has no member"):
        list(ds.decode())


def test_a_sample_with_several_payloads_is_named(tmp_path):
    path = tmp_path / "d.tar"
    write_payloads(path, [("a", pack(VALUES)), ("b", pack(VALUES))])
    with tarfile.open(path, "a") as tar:
        tar.addfile(tarfile.TarInfo("b.MSGPACK"))
    ds = fastshard.open(path, packed=True)
    assert ds[0].decode("n")["n"] == 300
    with pytest.raises(FormatError, match="'b' has field 'msgpack' twice"):
        ds[1]


def test_compressed_tars_are_refused_by_name(tmp_path):
    import gzip

    path = write_payloads(tmp_path / "d.tar", WHOLE)
    squeezed = tmp_path / "d.tar.gz"
    squeezed.write_bytes(gzip.compress(path.read_bytes()))
    with pytest.raises(FastshardError, match="gzip"):
        fastshard.open(squeezed, packed=True)[0]


@pytest.mark.parametrize("mode", ["mmap", "pread", "counted"])
def test_a_stale_index_is_noticed_when_a_payload_is_read(tmp_path, mode):
    def write(changed):
        keys = ["changed" if i in changed else f"sample{i}" for i in range(400)]
        payloads = [(key, pack(VALUES)) for key in keys]
        return write_payloads(tmp_path / "d.tar", payloads)

    index = fastshard.open_shard(write([])).save_index(tmp_path / "kept.fsi")
    options = {"max_memory": "1MiB"} if mode == "counted" else {"mode": mode}
    path = write([123])
    for read in (
        lambda ds: ds[123].decode(),
        lambda ds: ds[123]["text"],
        lambda ds: ds.columns([123], "n"),
        lambda ds: [sample.keys() for sample in ds],
        lambda ds: list(ds.decode()),
        lambda ds: list(ds.batches(50)),
    ):
        with pytest.raises(StaleIndexError):
            read(fastshard.open(path, packed=True, index=index, **options))


# ------------------------------------------------------------- large payloads


def test_large_payloads_are_read_by_field(tmp_path):
    rows = [
        {
            "big": bytes(200_000),
            "x": np.full(4, i),
            "text": f"t{i}",
            "more": b"z" * 90_000,
        }
        for i in range(6)
    ]
    path = write_payloads(
        tmp_path / "d.tar", [(f"k{i}", pack(row)) for i, row in enumerate(rows)]
    )
    for options in ({}, {"max_memory": "1MiB"}, {"mode": "pread"}, {"mode": "private"}):
        ds = fastshard.open(path, packed=True, **options)
        narrow = ds.select_fields("x", "text")
        for i, sample in enumerate(narrow):
            assert sample.text("text") == f"t{i}"
            assert sample.array("x").tolist() == [i] * 4
        assert [values["text"] for values in narrow.shuffle(1).decode()] == [
            f"t{sample.key[1]}" for sample in ds.shuffle(1)
        ]
        assert ds.columns(range(6), ("x",))["x"][:, 0].tolist() == list(range(6))
        assert ds[3].decode("more")["more"] == b"z" * 90_000
        assert next(narrow.batches(6))["x"].shape == (6, 4)
    sizes = []
    ds.filter(lambda key, found, info: sizes.append(found["big"]))
    assert sizes == [200_000] * 6


def test_a_limit_of_memory_holds(tmp_path):
    rows = [{"x": np.full(50_000, i, np.uint8)} for i in range(200)]
    path = write_payloads(
        tmp_path / "d.tar", [(f"k{i:03}", pack(row)) for i, row in enumerate(rows)]
    )
    ds = fastshard.open(path, packed=True, max_memory="1MiB")
    for _ in range(2):
        for i, sample in enumerate(ds):
            assert sample.array("x")[-1] == i
        for i in range(200):
            assert ds[i].array("x")[0] == i
        resident = ds.memory_info()["resident"]
        assert resident is None or resident <= 2 << 20
    assert ds.columns(range(200), "x")["x"][:, 7].tolist() == list(range(200))
    resident = ds.memory_info()["resident"]
    assert resident is None or resident <= 2 << 20


@pytest.mark.parametrize("resident", [False, True])
def test_a_file_that_became_shorter_is_an_error_if_sizes_are_checked(
    tmp_path, resident
):
    payloads = [(f"k{i:03}", pack(VALUES)) for i in range(100)]
    path = write_payloads(tmp_path / "d.tar", payloads)
    ds = fastshard.open(path, packed=True, check_size=True)
    decoded = ds.decode()
    if resident:
        assert [values["n"] for values in decoded] == [300] * 100
        assert decoded[99]["n"] == 300
    len(ds)
    with open(path, "r+b") as file:
        file.truncate(8192)
    for read in (
        lambda: decoded[99],
        lambda: ds[99]["n"],
        lambda: ds.columns([99], "n"),
        lambda: list(decoded),
    ):
        with pytest.raises(FormatError, match=r"truncated|shorter|beyond"):
            read()
