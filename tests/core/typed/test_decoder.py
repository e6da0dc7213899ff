"""Samples of payloads become objects: in iterations, by position, in all modes."""

import dataclasses
import gc
import pickle
from typing import Any

import numpy as np
import pytest

import fastshard
from core.typed.test_plan import Plan, compact
from fastshard import FormatError
from fastshard._core.typed.decoder import MapDecoder, TypedDecoder
from fastshard._core.typed.plan import FieldMap, TypePlan
from fastshard.errors import SchemaError
from support.memory import cached, evict

msgspec = pytest.importorskip("msgspec")
pack = msgspec.msgpack.encode

SAMPLES = 50
LARGE = 10  # samples of large payloads


@dataclasses.dataclass
class Item:
    i: int
    text: str
    x: Any


FIELDS = (
    Plan("i", "int"),
    Plan("text", "str"),
    Plan("x", "array", dtype=np.dtype("f4")),
)


def make_plan(cls, strict):
    return TypePlan(cls, FIELDS, strict=strict, make=make_plan)


PLAN = make_plan(Item, False)


def payload_of(i):
    return pack({"i": i, "text": f"é{i}", "x": compact(np.full(5, i, "<f4"))})


def write(path, payloads):
    with fastshard.ShardWriter(path) as writer:
        for i, payload in enumerate(payloads):
            writer.write({"__key__": f"{i:04d}", "msgpack": payload})
    return path


@pytest.fixture
def shards(tmp_path):
    for part in range(2):
        numbers = range(part * SAMPLES // 2, (part + 1) * SAMPLES // 2)
        write(tmp_path / f"items-{part}.tar", [payload_of(i) for i in numbers])
    return tmp_path


def check(item, i):
    assert type(item) is Item
    assert (item.i, item.text) == (i, f"é{i}")
    np.testing.assert_array_equal(item.x, np.full(5, i, "<f4"), strict=True)


OPTIONS = [
    {},
    {"mode": "private"},
    {"mode": "pread"},
    {"max_memory": "1MiB"},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_all_ways_of_reading_give_objects(shards, options):
    with fastshard.open(shards, packed=True, **options) as ds:
        items = ds.map(TypedDecoder(PLAN))
        for _ in range(3):  # unknown, looked up, surely resident
            for i, item in enumerate(items):
                check(item, i)
            for i in (0, 7, -1, 31):
                check(items[i], i % SAMPLES)
            for batch in items.batches(8, collate=list):
                assert [item.i for item in batch] == list(
                    range(batch[0].i, batch[0].i + len(batch))
                )
        order = [item.i for item in items.shuffle(seed=1)]
        assert sorted(order) == list(range(SAMPLES))
        assert order != sorted(order)
        item = items[3]
        assert item.x.flags.writeable == (options.get("mode") == "private")
    check(item, 3)  # keeps the file mapped


@pytest.mark.parametrize("copy", [False, True])
@pytest.mark.parametrize("aligned", [False, True])
def test_copies_and_alignment(shards, copy, aligned):
    with fastshard.open(shards, packed=True) as ds:
        decoder = pickle.loads(pickle.dumps(TypedDecoder(PLAN, copy, aligned)))
        assert (decoder.copy, decoder.aligned) == (copy, aligned)
        for _ in range(2):
            for i, item in enumerate(ds.map(decoder)):
                check(item, i)
                assert item.x.flags.writeable == copy
                assert item.x.flags.owndata or not copy
                assert item.x.flags.aligned or not aligned


def test_datasets_with_decoders_pickle(shards):
    with fastshard.open(shards, packed=True) as ds:
        again = pickle.loads(pickle.dumps(ds.map(TypedDecoder(PLAN))))
        for i, item in enumerate(again):
            check(item, i)


def test_arrays_keep_the_file_mapped(shards):
    ds = fastshard.open(shards, packed=True)
    items = list(ds.map(TypedDecoder(PLAN))) + list(ds.map(TypedDecoder(PLAN)))
    ds.close()
    del ds
    gc.collect()
    for i, item in enumerate(items):
        check(item, i % SAMPLES)


@pytest.mark.parametrize("mode", ["mmap", "pread"])
@pytest.mark.parametrize(
    ("payload", "kind", "member", "byte", "reason"),
    [
        (b"\x90", FormatError, "sample '0001'", 0, "not a msgpack map"),
        (payload_of(1)[:-1], FormatError, "sample '0001'", 15, "cut off"),
        (pack({"i": "1"}), SchemaError, "sample '0001', field 'i'", 3, "declares int"),
        (pack({"i": 1}), SchemaError, "sample '0001'", 0, "'text' without a default"),
        (
            pack({"i": 1, "text": "", "x": b"\x03<f4\x01"}),
            FormatError,
            "sample '0001', field 'x'",
            18,
            "shape is cut off",
        ),
    ],
)
def test_errors_name_shard_key_field_and_byte(
    tmp_path, mode, payload, kind, member, byte, reason
):
    path = write(tmp_path / "a.tar", [payload_of(0), payload, payload_of(2)])
    shard = fastshard.open_shard(path)
    start, _ = shard.extent_of(1)
    shard.close()
    with fastshard.open(path, packed=True, mode=mode) as ds:
        items = ds.map(TypedDecoder(PLAN))
        for _ in range(2):
            for read in (lambda: items[1], lambda: list(items)):
                with pytest.raises(kind, match=reason) as caught:
                    read()
                error = caught.value
                assert type(error) is kind
                assert (error.path, error.offset) == (str(path), start + byte)
                if kind is SchemaError:
                    assert error.key == "0001"
                    assert f"sample {error.key!r}" in member
                else:
                    assert error.member == member
        check(items[2], 2)
        assert [item.i for item in items.iter(on_error="skip")] == [0, 2]


def test_other_samples_are_refused(shards):
    with (
        fastshard.open(shards) as ds,
        pytest.raises(TypeError, match="PackedSamples"),
    ):
        list(ds.map(TypedDecoder(PLAN)))


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("copy", [False, True])
def test_field_maps_decode_requested_fields(shards, options, copy):
    with fastshard.open(shards, packed=True, **options) as ds:
        maps = ds.map(pickle.loads(pickle.dumps(MapDecoder(FieldMap, copy))))
        for _ in range(3):
            for i, fields in enumerate(maps):
                assert fields.keys() == ["i", "text", "x"]
                assert (fields["i"], fields.text) == (i, f"é{i}")
            last = maps[-1]
        assert ds.select_fields("text").map(MapDecoder(FieldMap))[2].keys() == ["text"]
    assert last["x"] == compact(np.full(5, SAMPLES - 1, "<f4"))


@pytest.mark.parametrize("mode", ["mmap", "pread"])
def test_errors_of_fields_asked_for_name_the_sample(tmp_path, mode):
    payloads = [pack({"a": 1}), b"\x82\xa1a\x01\xa1b\xa2x\xff", b"\x81\xa1a"]
    path = write(tmp_path / "a.tar", payloads)
    starts = [fastshard.open_shard(path).extent_of(i)[0] for i in range(3)]
    with fastshard.open(path, packed=True, mode=mode) as ds:
        maps = ds.map(MapDecoder(FieldMap))
        for _ in range(2):
            fields = maps[1]
            assert fields["a"] == 1
            with pytest.raises(FormatError, match="UTF-8") as caught:
                fields["b"]
            error = caught.value
            assert (error.path, error.offset) == (str(path), starts[1] + 8)
            assert error.member == "sample '0001', field 'b'"
            with pytest.raises(FormatError, match="cut off") as caught:
                maps[2]
            assert caught.value.offset == starts[2] + 3
            assert caught.value.member == "sample '0002'"
    with pytest.raises(FormatError, match="UTF-8"):
        fields["b"]  # the shard is closed


def test_typed_samples_of_selected_fields(shards):
    @dataclasses.dataclass
    class Text:
        text: str

    plan = TypePlan(Text, [Plan("text", "str")], strict=True)
    with fastshard.open(shards, packed=True) as ds:
        texts = ds.select_fields("text").map(TypedDecoder(plan))
        for _ in range(2):
            assert [item.text for item in texts][:2] == ["é0", "é1"]
            assert texts[5] == Text("é5")


@pytest.fixture
def large(tmp_path):
    rows = [
        {"i": i, "big": np.random.default_rng(i).bytes(300_000), "text": f"é{i}"}
        for i in range(LARGE)
    ]
    for row in rows:
        row["x"] = compact(np.full(5, row["i"], "<f4"))
    return write(tmp_path / "large.tar", [pack(row) for row in rows])


def test_fields_that_a_class_has_not_stay_on_the_disk(large):
    evict(large)
    with fastshard.open(large, packed=True) as ds:
        items = ds.map(TypedDecoder(PLAN))
        for i in range(LARGE):
            check(items[i], i)
        assert cached(large) < large.stat().st_size / 2


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_large_payloads_become_objects(large, options):
    @dataclasses.dataclass
    class Large:
        i: int
        big: Any

    def view(value):
        return value[5:]  # of the head of a bin

    fields = [Plan("i", "int"), Plan("big", "object", decode=view)]
    with fastshard.open(large, packed=True, **options) as ds:
        items = ds.map(TypedDecoder(TypePlan(Large, fields)))
        for _ in range(2):
            evict(large)
            for i in range(LARGE):
                assert items[i].i == i
            for i, item in enumerate(items):
                assert bytes(item.big) == np.random.default_rng(i).bytes(300_000)


def test_errors_of_large_payloads_name_the_sample(tmp_path):
    payload = pack({"big": bytes(100_000), "i": "1", "text": "", "x": b""})
    path = write(tmp_path / "a.tar", [payload, payload[:-9]])
    with fastshard.open(path, packed=True) as ds:
        items = ds.map(TypedDecoder(PLAN))
        for _ in range(2):
            with pytest.raises(SchemaError, match="declares int") as caught:
                items[0]
            assert (caught.value.key, caught.value.field) == ("0000", "i")
            with pytest.raises(FormatError, match=r"more entries|cut off") as caught:
                items[1]
            assert caught.value.member == "sample '0001'"
