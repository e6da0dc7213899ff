"""Samples of packed shards: fields inside the member ``msgpack``."""

import ast
import copy
import gc
import pickle
import struct
from functools import partial

import numpy as np
import pytest

import fastshard
from fastshard._core.dataset.records import SampleList
from fastshard._core.typed.columns import stack_columns
from fastshard._core.typed.shard import decode_columns
from fastshard.errors import (
    FastshardError,
    FieldNotFoundError,
    FormatError,
    RaggedError,
)
from support.processes import run_script
from support.typed import packed
from support.typed.packed import compact, npy, write_payloads

pytest.importorskip("msgspec")

COUNT = 30
pack = partial(packed.pack, encode=compact)


def values_of(i):
    return {
        "idx": i,
        "label": f"label {i}",
        "score": i / 2,
        "vec": np.arange(6, dtype=np.float32).reshape(2, 3) + i,
        "raw": bytes([i, 0, 255]),
        "tags": ["a", {"n": i}],
        "none": None,
        "flag": i % 2 == 0,
    }


def assert_equal(found, expected):
    if isinstance(expected, np.ndarray):
        np.testing.assert_array_equal(found, expected, strict=True)
    else:
        assert type(found) is type(expected)
        assert found == expected


@pytest.fixture(scope="module")
def shard_path(tmp_path_factory):
    path = tmp_path_factory.mktemp("packed") / "data.tar"
    payloads = ((f"k{i:03}", pack(values_of(i))) for i in range(COUNT))
    return write_payloads(path, payloads, {"k004": {"jpg": b"picture"}})


@pytest.fixture(params=["mmap", "private", "pread", "counted"])
def ds(request, shard_path):
    """Return a dataset in a mode; "counted" has a limit of memory."""
    options = {"mode": request.param}
    if request.param == "counted":
        options = {"max_memory": "1MiB"}
    with fastshard.open(shard_path, packed=True, **options) as dataset:
        yield dataset


def test_a_field_is_an_entry_of_the_map(ds):
    for i, sample in enumerate(ds):
        values = values_of(i)
        assert sample.key == f"k{i:03}"
        assert sample.keys() == list(sample) == list(values)
        assert len(sample) == len(values)
        decoded = sample.decode()
        assert decoded.pop("__key__") == sample.key
        assert list(decoded) == list(values)
        for name, value in values.items():
            assert name in sample
            assert_equal(decoded[name], value)
            assert_equal(sample.decode(name)[name], value)
            if not isinstance(value, np.ndarray):
                assert_equal(ds.decode(name)[i][name], value)


def test_a_decoded_dataset_has_the_values_of_its_samples(ds):
    decoded = ds.decode()
    for _ in range(2):  # before and after the file is known to be resident
        for found in (list(decoded), [decoded[i] for i in range(COUNT)]):
            for i, values in enumerate(found):
                assert list(values) == ["__key__", *values_of(i)]
                assert values["__key__"] == f"k{i:03}"
                for name, value in values_of(i).items():
                    assert_equal(values[name], value)


def test_stored_bytes_are_contents_of_text_and_bytes_and_else_the_encoded_value(ds):
    sample = ds[7]
    assert bytes(sample["label"]) == b"label 7"
    assert bytes(sample.view("raw")) == bytes([7, 0, 255])
    assert bytes(sample["idx"]) == b"\x07"
    assert bytes(sample["none"]) == b"\xc0"
    assert bytes(sample["tags"]) == b"\x92\xa1a\x81\xa1n\x07"
    assert sample.open("label").read() == b"label 7"
    assert sample.text("label") == "label 7"
    shard, member = sample.place("label")
    offset, size = shard.extent_of(member)
    assert (
        shard.names[member] == shard.name_at(member) == "sample 'k007', field 'label'"
    )
    assert bytes(shard[member]) == shard.read(member) == b"label 7"
    with open(shard.path, "rb") as file:
        file.seek(offset)
        assert file.read(size) == b"label 7"


def test_arrays_are_views_of_the_shard(ds, request):
    mode = request.node.callspec.params["ds"]
    array = ds[3].array("vec")
    assert_equal(array, values_of(3)["vec"])
    assert array.flags.writeable == (mode == "private")
    assert array.base is not None
    assert_equal(ds[3].array("raw", "u1"), np.array([3, 0, 255], np.uint8))
    with pytest.raises(ValueError, match="bytes are not a float32 array"):
        ds[3].array("raw", "f4")
    for field, what in (("label", "got str"), ("none", "got None"), ("raw", "no")):
        with pytest.raises(FormatError, match=what) as caught:
            ds[3].array(field)
        assert caught.value.member == f"sample 'k003', field {field!r}"
        assert (
            caught.value.offset
            == ds[3].place(field)[0].extent_of(ds[3].member(field))[0]
        )


def test_an_array_keeps_the_file_mapped_and_counts_as_a_view(shard_path):
    ds = fastshard.open(shard_path, packed=True)
    sample = ds[3]
    array = sample.decode("vec")["vec"]
    with pytest.raises(BufferError):
        sample.shard.close(strict=True)
    ds.close()
    del sample, ds
    gc.collect()
    assert_equal(array, values_of(3)["vec"])


def test_an_absent_field_is_named(ds):
    sample = ds[3]
    for call in (sample.__getitem__, sample.view, sample.array, sample.decode):
        with pytest.raises(FieldNotFoundError, match=r"nope.*'k003'"):
            call("nope")
    assert "nope" not in sample
    assert "\ud800" not in sample
    assert sample.decoder_of("nope") is None
    with pytest.raises(FieldNotFoundError):
        ds.columns([1, 2], "nope")
    with pytest.raises(FieldNotFoundError):
        ds.select_fields("label")[3]["idx"]


def test_a_selection_has_its_fields_alone(ds):
    sample = ds.select_fields("score", "idx")[3]
    assert sample.keys() == ["score", "idx"]
    assert sample.decode() == {"__key__": "k003", "score": 1.5, "idx": 3}
    copied = pickle.loads(pickle.dumps(sample))
    assert copied.decode() == sample.decode()
    assert copied.keys() == ["score", "idx"]
    assert len(pickle.dumps(sample)) < len(pickle.dumps(ds[3]))


def test_copies_have_bytes_of_their_own(ds):
    for copied in (copy.copy(ds[5]), pickle.loads(pickle.dumps(ds[5]))):
        assert copied.key == "k005"
        assert copied.position == 5
        assert copied.keys() == list(values_of(5))
        for name, value in values_of(5).items():
            assert_equal(copied.decode(name)[name], value)
            assert bytes(copied[name]) == bytes(ds[5][name])
        assert_equal(copied.array("vec"), values_of(5)["vec"])
        assert_equal(copied.array("raw", "u1"), np.array([5, 0, 255], np.uint8))
        assert copied.layout_of("vec").kind == "array"
        assert pickle.loads(pickle.dumps(copied)).decode("label") == {
            "__key__": "k005", "label": "label 5",
        }  # fmt: skip
        for call in (copied.view, copied.decode, copied.array):
            with pytest.raises(FieldNotFoundError):
                call("nope")
        batch = fastshard.collate([copied, copied])
        assert batch["vec"].shape == (2, 2, 3)


def test_decoders_of_the_user_take_the_stored_bytes(shard_path):
    decoders = {"label": lambda view: bytes(view).upper()}
    ds = fastshard.open(shard_path, packed=True, decoders=decoders)
    assert ds[3].decode("label", "idx") == {
        "__key__": "k003", "label": b"LABEL 3", "idx": 3,
    }  # fmt: skip
    assert ds.columns([1, 2], "label")["label"] == [b"LABEL 1", b"LABEL 2"]
    assert fastshard.collate([ds[1]])["label"] == [b"LABEL 1"]
    assert ds.fields["label"].kind == "object"


def test_the_fields_of_a_dataset(ds):
    kinds = {name: str(info) for name, info in ds.fields.items()}
    assert kinds == {
        "idx": "int", "label": "text", "score": "float",
        "vec": "array float32 [2, 3]", "raw": "bytes", "tags": "msgpack",
        "none": "object", "flag": "object",
    }  # fmt: skip
    stats = ds.stats()
    assert (stats["samples"], stats["members"]) == (COUNT, COUNT + 1)
    assert ds.verify() == []


def test_the_members_are_there_as_raw_samples(ds):
    assert ds.raw[4].keys() == ["msgpack", "jpg"]
    assert bytes(ds.raw[4]["jpg"]) == b"picture"
    assert bytes(ds.raw[7]["msgpack"]) == pack(values_of(7))
    part = ds.shuffle(3).select_fields("label").decode()
    assert part.raw.keys()[:] == part.keys()[:]
    assert ds.shards[0].names[4:6] == ["k004.msgpack", "k004.jpg"]
    assert bytes(ds.members["k004.jpg"]) == b"picture"
    assert ds.raw.raw[3].keys() == ["msgpack"]


# ------------------------------------------------------------- many at once


def test_columns(ds):
    positions = [3, 20, 3, -1]
    found = ds.columns(positions, list(values_of(0)))
    values = [values_of(i % COUNT) for i in positions]
    for name in ("idx", "score", "vec", "flag"):
        expected = np.stack([value[name] for value in values])
        assert_equal(found[name], expected)
        assert found[name].flags.writeable
    for name in ("label", "tags"):
        assert found[name] == [value[name] for value in values]
    raw = ds.columns(positions, {"raw": "u1", "label": ("u1", (-1,))}, ragged="list")
    assert_equal(raw["raw"], np.stack([np.frombuffer(v["raw"], "u1") for v in values]))
    np.testing.assert_array_equal(
        ds.columns(np.array(positions), "idx")["idx"], [3, 20, 3, COUNT - 1]
    )
    for bad in ([COUNT], np.array([-COUNT - 1])):
        with pytest.raises(IndexError):
            ds.columns(bad, "idx")


def test_numbers_of_every_width_are_one_column(tmp_path):
    ints = [0, -1, -32, -33, 127, 128, 255, 256, -129, 2**16, -(2**15) - 1, 2**31]
    ints += [2**32, -(2**31) - 1, 2**63 - 1, -(2**63)]
    path = tmp_path / "n.tar"
    write_payloads(path, [(f"{i}", pack({"n": n})) for i, n in enumerate(ints)])
    ds = fastshard.open(path, packed=True)
    assert_equal(ds.columns(range(len(ints)), "n")["n"], np.array(ints))
    assert [sample.decode("n")["n"] for sample in ds] == ints

    single = b"\x81\xa1n\xca\x3f\x80\x00\x00"  # float32
    write_payloads(path, [("a", single), ("b", pack({"n": 0.1}))])
    ds = fastshard.open(path, packed=True)
    assert_equal(ds.columns([0, 1], "n")["n"], np.array([1.0, 0.1]))

    write_payloads(path, [("a", pack({"n": 1})), ("b", pack({"n": 2**64 - 1}))])
    ds = fastshard.open(path, packed=True)
    assert list(ds.columns([0, 1], "n")["n"]) == [1, 2**64 - 1]

    write_payloads(path, [("a", pack({"n": 1})), ("b", pack({"n": 0.5}))])
    ds = fastshard.open(path, packed=True)
    assert_equal(ds.columns([0, 1], "n")["n"], np.array([1.0, 0.5]))


def test_batches(ds):
    (batch,) = ds.batches(COUNT)
    values = [values_of(i) for i in range(COUNT)]
    assert batch["__key__"] == [f"k{i:03}" for i in range(COUNT)]
    for name in ("idx", "score", "vec", "flag"):
        assert_equal(batch[name], np.stack([value[name] for value in values]))
    for name in ("label", "tags", "none", "raw"):
        assert batch[name] == [value[name] for value in values]
    out = {"vec": np.zeros((40, 2, 3), np.float32)}
    fastshard.collate(list(ds), out=out)
    assert_equal(out["vec"][:COUNT], batch["vec"])


def test_stored_bytes_are_gathered(ds):
    out = np.zeros(100, np.uint8)
    ends = ds.read_into([3, 20], out, fields=["label", "raw"])
    assert ends.tolist() == [0, 7, 10, 18, 21]
    assert out[:21].tobytes() == b"label 3\x03\0\xfflabel 20\x14\0\xff"


@pytest.mark.parametrize("first", [None, np.zeros(3)])
def test_arrays_beside_none_are_a_list_whichever_comes_first(tmp_path, first):
    other = np.ones(3) if first is None else None
    path = write_payloads(
        tmp_path / "a.tar",
        [(str(i), pack({"x": x})) for i, x in enumerate((first, other, first))],
    )
    batch = next(fastshard.open(path, packed=True).batches(3))
    for found, expected in zip(batch["x"], (first, other, first), strict=True):
        assert_equal(found, expected)


def test_unequal_arrays_are_ragged(tmp_path):
    arrays = [np.zeros(3), np.ones(4), np.ones(3, np.float32)]
    path = write_payloads(
        tmp_path / "a.tar",
        [(str(i), pack({"x": x})) for i, x in enumerate(arrays)],
    )
    ds = fastshard.open(path, packed=True)
    batch = next(ds.batches(3, ragged="list"))
    assert [array.shape for array in batch["x"]] == [(3,), (4,), (3,)]
    with pytest.raises(RaggedError, match="'x'"):
        next(ds.batches(3))
    padded = next(ds[:2].batches(2, ragged="pad"))
    assert padded["x"].shape == (2, 4)
    assert padded["__lengths__"]["x"].tolist() == [[3], [4]]
    with pytest.raises(RaggedError):
        ds.columns([0, 1], "x")
    with pytest.raises(RaggedError):
        ds.columns([0, 2], "x")
    listed = ds.columns([0, 1], "x", ragged="list")["x"]
    assert [array.shape for array in listed] == [(3,), (4,)]


def test_arrays_of_both_forms_and_orders_are_stacked(tmp_path):
    array = np.arange(6, dtype=">i2").reshape(2, 3)
    fortran = np.asfortranarray(array)
    forms = [{"x": array}, {"x": npy(array)}, {"x": npy(fortran)}]
    for order in ([0, 0], [0, 1, 2], [1, 0], [2, 2], [2, 1], [1, 1]):
        path = write_payloads(
            tmp_path / "a.tar", [(str(i), pack(forms[k])) for i, k in enumerate(order)]
        )
        ds = fastshard.open(path, packed=True)
        expected = np.stack([array] * len(order))
        batch = next(ds.batches(len(order), ragged="error"))
        np.testing.assert_array_equal(batch["x"], expected)
        assert batch["x"].dtype.newbyteorder("=") == np.int16


def padded_npy(padding, shape="(4,)", number=1.0):
    """Return an array of four float32, behind a header with this padding."""
    text = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}{padding}\n"
    data = np.full(4, number, np.float32).tobytes()
    return b"\x93NUMPY\1\0" + struct.pack("<H", len(text)) + text.encode() + data


def write_padded(path, *arrays):
    return write_payloads(
        path, [(f"{k:03}", pack({"x": found})) for k, found in enumerate(arrays)]
    )


def test_headers_of_any_padding_are_stacked_together(tmp_path):
    arrays = [padded_npy(" " * k, number=k) for k in range(70)]
    ds = fastshard.open(write_padded(tmp_path / "a.tar", *arrays), packed=True)
    expected = np.repeat(np.arange(70, dtype=np.float32), 4).reshape(70, 4)
    assert_equal(stack_columns(list(ds), ("x",))["x"], expected)
    assert_equal(ds.columns(range(70), "x")["x"], expected)


@pytest.mark.parametrize(
    "other",
    [
        padded_npy("  ", shape="(2,2)"),
        padded_npy(" ")[:-4],
        padded_npy(" ") + bytes(4),
        padded_npy("   #"),
        padded_npy("  x"),
        padded_npy("\n\0"),
        padded_npy("")[:40],
        padded_npy("")[:9],
        padded_npy(" ").replace(b"f4", b"i4"),
        padded_npy(" ").replace(b"Y\1", b"Y\2"),
        padded_npy("")[-16:],
    ],
)
def test_other_headers_are_not_taken_for_padded_ones(tmp_path, other):
    path = write_padded(tmp_path / "a.tar", padded_npy(" " * 9), other)
    ds = fastshard.open(path, packed=True)
    assert stack_columns(list(ds), ("x",)) == {}
    assert stack_columns([ds[0]], ("x",))["x"].tolist() == [[1.0] * 4]


def test_headers_of_every_padding_are_parsed_once(tmp_path, monkeypatch):
    arrays = [padded_npy(" " * k, number=k) for k in range(64)]
    ds = fastshard.open(write_padded(tmp_path / "a.tar", *arrays), packed=True)
    parsed = []
    parse = ast.literal_eval
    monkeypatch.setattr(
        ast, "literal_eval", lambda text: (parsed.append(text), parse(text))[1]
    )
    for _ in range(3):
        for k, sample in enumerate(ds):
            assert_equal(sample.array("x"), np.full(4, k, np.float32))
    assert len(parsed) <= 64


def test_a_batch_takes_samples_of_many_shards_in_any_order(tmp_path):
    for k in range(5):
        payloads = [(f"{k}{i}", pack({"x": np.full(4, 10 * k + i)})) for i in range(10)]
        write_payloads(tmp_path / f"{k}.tar", payloads)
    ds = fastshard.open(tmp_path, packed=True)
    order = np.random.default_rng(1).permutation(50)
    found = ds.columns(order, "x")["x"]
    assert_equal(found, np.stack([np.full(4, n) for n in order]))
    batches = list(ds.shuffle(2).batches(16))
    found = np.concatenate([batch["x"] for batch in batches])
    keys = [int(key) for batch in batches for key in batch["__key__"]]
    assert_equal(found, np.stack([np.full(4, n) for n in keys]))


# ------------------------------------------------------------- odd payloads


def test_a_name_twice_counts_once_and_the_last_value_counts(tmp_path):
    path = write_payloads(
        tmp_path / "a.tar",
        [("a", b"\x83\xa1n\x01\xa1m\x05\xa1n\x02"), ("b", pack({"n": 3, "m": 6}))],
    )
    ds = fastshard.open(path, packed=True)
    assert ds[0].keys() == ["n", "m"]
    assert len(ds[0]) == 2
    assert ds[0].decode() == {"__key__": "a", "n": 2, "m": 5}
    batch = next(ds.batches(2))
    assert batch["n"].tolist() == ds.columns([0, 1], "n")["n"].tolist() == [2, 3]


def test_many_fields(tmp_path):
    values = {f"f{k}": k for k in range(300)}
    path = write_payloads(tmp_path / "a.tar", [("a", pack(values)), ("b", pack({}))])
    ds = fastshard.open(path, packed=True)
    assert len(ds[0]) == 300
    assert ds[0].decode() == {"__key__": "a"} | values
    assert ds.select_fields("f299", missing="skip").keys()[:] == ["a"]
    assert ds[1].decode() == {"__key__": "b"}
    assert ds[1].keys() == []


def test_names_are_of_any_text(tmp_path):
    names = ["", "é", "a b", "\0", "日本", "x" * 300]
    path = write_payloads(
        tmp_path / "a.tar", [("a", pack({name: k for k, name in enumerate(names)}))]
    )
    sample = fastshard.open(path, packed=True)[0]
    assert sample.keys() == names
    for k, name in enumerate(names):
        assert sample.decode(name)[name] == k


def test_a_field_of_the_name_of_the_key_is_refused(tmp_path):
    path = write_payloads(tmp_path / "a.tar", [("a", pack({"__key__": 1, "n": 2}))])
    ds = fastshard.open(path, packed=True)
    assert ds[0].decode("n") == {"__key__": "a", "n": 2}
    assert bytes(ds[0]["__key__"]) == b"\x01"
    for value in (1, None):
        write_payloads(path, [("a", pack({"__key__": value, "n": 2}))])
        decoded = fastshard.open(path, packed=True).decode()
        for call in (
            lambda d=decoded: list(d),
            lambda d=decoded: d[0],
        ):
            with pytest.raises(FastshardError, match="__key__"):
                call()
    for call in (ds[0].decode, lambda: pickle.loads(pickle.dumps(ds[0])).decode()):
        with pytest.raises(FastshardError, match="__key__"):
            call()


def test_dicts_of_numbers_as_keys_are_read(tmp_path):
    path = write_payloads(tmp_path / "a.tar", [("a", b"\x81\xa1d\x81\x01\x02")])
    assert fastshard.open(path, packed=True)[0].decode("d")["d"] == {1: 2}


def test_lists_need_msgspec(shard_path, tmp_path):
    code = (
        "import sys\nsys.modules['msgspec'] = None\n"
        "import fastshard\n"
        f"sample = fastshard.open({str(shard_path)!r}, packed=True)[1]\n"
        "assert sample.decode('idx', 'label', 'vec')['idx'] == 1\n"
        "try:\n    sample.decode('tags')\n"
        "except fastshard.MissingLibraryError as error:\n    print(error)\n"
    )
    assert "pip install 'fastshard[typed]'" in run_script(tmp_path, code)


# ------------------------------------------------------------- arguments


def test_packed_is_an_option_of_tar_shards(tmp_path, shard_path):
    from fastshard.streaming import MDSWriter

    with MDSWriter(columns={"a": "int"}, out=str(tmp_path / "rows")) as writer:
        writer.write({"a": 1})
    with pytest.raises(ValueError, match="packed= is an option of tar shards"):
        fastshard.open(tmp_path / "rows", packed=True)
    for source in (str(shard_path), [shard_path], f"{shard_path.parent}/*.tar"):
        assert len(fastshard.open(source, packed=True)) == COUNT
    assert fastshard.open(shard_path)[0].keys() == ["msgpack"]


def test_an_index_of_the_dataset_is_used(tmp_path):
    for k in range(3):
        payloads = [(f"{k}{i}", pack({"n": i})) for i in range(10)]
        write_payloads(tmp_path / f"{k}.tar", payloads)
    fastshard.build_index(tmp_path)
    ds = fastshard.open(tmp_path, packed=True)
    assert len(ds) == 30
    assert ds["15"].decode("n")["n"] == 5
    assert ds.exclude(["1.tar"]).keys()[9:11] == ["09", "20"]
    again = pickle.loads(pickle.dumps(ds.exclude([0]).shuffle(1)))
    assert sorted(sample.decode("n")["n"] for sample in again) == sorted(
        2 * list(range(10))
    )
    assert ds.raw.keys()[:] == ds.keys()[:]
    assert pickle.loads(pickle.dumps(ds.raw))[0].keys() == ["msgpack"]


def test_a_list_of_positions_is_read_as_its_samples(tmp_path):
    paths = [
        write_payloads(
            tmp_path / f"{n}.tar",
            [(f"{n}-{k}", pack({"x": 10 * n + k, "s": f"{n}-{k}"})) for k in range(5)],
        )
        for n in range(3)
    ]
    ds = fastshard.open(paths, packed=True)
    samples = [ds[i] for i in (14, 0, 7, 1, 13, 7)]
    stored = SampleList(samples)
    assert [sample.key for sample in stored] == [sample.key for sample in samples]
    assert stored[2].position == 2
    assert len(stored) == 6
    assert stack_columns(stored, ("x",))["x"].tolist() == [24, 0, 12, 1, 23, 12]
    assert decode_columns(stored, ("s",))["s"][:3] == ["2-4", "0-0", "1-2"]
    with pytest.raises(FieldNotFoundError, match="2-4"):
        decode_columns(stored, ("t",))
    for outside in (6, -1):
        with pytest.raises(IndexError):
            stored[outside]
    del samples, ds
    gc.collect()
    assert stack_columns(stored, ("x",))["x"].tolist() == [24, 0, 12, 1, 23, 12]
    assert len(SampleList([])) == 0
    with pytest.raises(TypeError):
        pickle.dumps(stored)
    for wrong in ([None], [1]):
        with pytest.raises(TypeError):
            SampleList(wrong)
