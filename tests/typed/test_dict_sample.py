"""Samples of no declared type: fields by name, errors, copies, views, lifetimes."""

import copy
import mmap
import pickle
import threading

import numpy as np
import pytest

from fastshard import FieldNotFoundError, FormatError, SchemaError, typed
from fastshard.typed import DictSample
from fastshard.typed.kinds.values import pack

pytest.importorskip("msgspec")

X = np.arange(6, dtype="f4").reshape(2, 3)
VALUES = {
    "text": "a cat",
    "label": 1,
    "score": -0.5,
    "ok": True,
    "nothing": None,
    "raw": b"\x00\xff",
    "tags": ["a", ["b"]],
    "meta": {"a": {"b": 1}},
    "名前": "é",
}


def of_values():
    return DictSample(_data=VALUES)


def of_payload():
    return DictSample.from_bytes(pack(VALUES))


@pytest.fixture(params=[of_values, of_payload], ids=["values", "payload"])
def sample(request):
    return request.param()


def test_fields_are_attributes_and_items(sample):
    for name, value in VALUES.items():
        assert getattr(sample, name) == value
        assert sample[name] == value
        assert sample.get(name) == value
        assert name in sample
    assert sample.meta is sample["meta"]  # decoded once


def test_names_values_and_items_are_lists(sample):
    assert sample.keys() == list(VALUES)
    assert sample.values() == list(VALUES.values())
    assert sample.items() == list(VALUES.items())
    assert list(sample) == list(VALUES)
    assert len(sample) == len(VALUES)
    assert dict(sample) == VALUES
    assert sample.get("zzz") is None
    assert sample.get("zzz", 5) == 5
    assert sample.get(3, 5) == 5
    assert "zzz" not in sample
    assert 3 not in sample
    assert "\ud800" not in sample
    assert set(VALUES) <= set(dir(sample))


def test_the_dict_is_a_copy(sample):
    values = sample.to_dict()
    assert values == VALUES
    values["text"] = "a dog"
    assert sample.text == "a cat"


def test_given_values_are_copied():
    values = {"a": 1}
    sample = DictSample(values)
    values["b"] = 2
    assert sample.keys() == ["a"]


def test_missing_fields_list_those_that_there_are(sample):
    with pytest.raises(AttributeError, match="has no field 'zzz'") as caught:
        _ = sample.zzz
    assert str(list(VALUES)) in str(caught.value)
    with pytest.raises(KeyError) as caught:
        sample["zzz"]
    assert isinstance(caught.value, FieldNotFoundError)
    for name in VALUES:
        assert repr(name) in str(caught.value)
    with pytest.raises(KeyError):
        sample[3]
    assert not hasattr(sample, "__array_interface__")


def test_samples_are_read_only(sample):
    with pytest.raises(AttributeError, match="read-only"):
        sample.text = "a dog"
    with pytest.raises(AttributeError):
        del sample.text
    with pytest.raises(TypeError):
        sample["text"] = "a dog"
    assert sample.text == "a cat"
    with pytest.raises(TypeError):
        hash(sample)


def test_samples_are_equal_by_value(sample):
    assert sample == of_values()
    assert sample == of_payload()
    assert sample != DictSample(VALUES | {"text": "a dog"})
    assert sample != DictSample({**VALUES, "more": 1})
    assert sample != VALUES
    arrays = [DictSample(x=np.arange(n)) for n in (3, 3, 4)]
    assert arrays[0] == arrays[1]
    assert arrays[0] != arrays[2]
    assert arrays[0] != DictSample(x=5)
    assert DictSample(x=[np.arange(3)]) == DictSample(x=[np.arange(3)])


def test_copies_and_pickles(sample):
    _ = sample.text
    for again in (
        copy.copy(sample),
        copy.deepcopy(sample),
        *(pickle.loads(pickle.dumps(sample, n)) for n in range(6)),
    ):
        assert type(again) is DictSample
        assert again == sample
        assert again.keys() == sample.keys()


def test_a_subclass_keeps_its_class():
    again = pickle.loads(pickle.dumps(Special(VALUES)))
    assert type(again) is Special
    assert type(Special.from_bytes(pack(VALUES))) is Special
    assert Special(VALUES).shout() == "A CAT"


class Special(DictSample):
    def shout(self):
        return self.text.upper()


def test_a_sample_is_packed_again(sample):
    assert sample.packed == pack(VALUES)
    assert DictSample.from_bytes(sample.packed) == sample
    record = sample.as_wds
    assert record["msgpack"] == sample.packed
    assert isinstance(sample, typed.Packable)
    assert sample.as_wds["__key__"] != record["__key__"]


def test_repr_names_the_fields(sample):
    assert repr(sample).startswith("DictSample(text=..., label=...")


def test_construction():
    assert DictSample().keys() == []
    assert DictSample(a=1).a == 1
    assert DictSample.from_data({"a": 1}) == DictSample(a=1)
    for bad in (5, "text", [("a", 1)], None):
        with pytest.raises(TypeError, match="mapping"):
            DictSample.from_data(bad)
    with pytest.raises(TypeError, match="not by both"):
        DictSample({"a": 1}, b=2)


# Arrays and views.


@pytest.mark.parametrize("array_format", ["npy", "compact"])
def test_arrays_are_bytes_and_array_makes_them(array_format):
    payload = pack({"text": "a", "x": X}, array_format=array_format)
    sample = DictSample.from_bytes(payload)
    assert type(sample.x) is bytes
    array = sample.array("x")
    assert np.array_equal(array, X)
    assert not array.flags.owndata
    assert not array.flags.writeable
    assert sample.array("x", copy=True).flags.writeable
    assert sample.array("x", aligned=True).flags.aligned
    again = DictSample(sample.to_dict())
    assert np.array_equal(again.array("x"), X)
    assert DictSample(x=X).array("x") is X
    assert DictSample(x=X).array("x", copy=True) is not X


def test_arrays_are_on_the_callers_buffer():
    buffer = bytearray(pack({"x": X}))
    sample = DictSample.from_bytes(buffer)
    array = sample.array("x")
    array[0, 0] = 9
    assert sample.array("x")[0, 0] == 9
    del sample
    with pytest.raises(BufferError):  # the array still refers to it
        buffer.append(0)
    assert array.tolist()[1] == [3, 4, 5]


def test_views_are_without_a_copy():
    payload = pack(VALUES | {"x": X})
    sample = DictSample.from_bytes(payload)
    assert bytes(sample.view("text")) == b"a cat"
    assert bytes(sample.view("raw")) == b"\x00\xff"
    assert bytes(sample.view("label")) == b"\x01"
    assert bytes(sample.view("tags")) == pack({"t": VALUES["tags"]})[3:]
    view = sample.view("x")
    assert view.readonly
    del sample
    assert np.frombuffer(view, "f4", offset=view.nbytes - 24).tolist()[5] == 5.0


def test_views_of_given_values():
    sample = of_values()
    assert bytes(sample.view("text")) == b"a cat"
    assert bytes(sample.view("raw")) == b"\x00\xff"
    with pytest.raises(TypeError, match="'label' is int"):
        sample.view("label")
    with pytest.raises(TypeError, match="'tags' is list"):
        sample.array("tags")


def test_arrays_and_views_that_there_are_not(sample):
    for call in (sample.view, sample.array):
        with pytest.raises(FieldNotFoundError):
            call("zzz")
    with pytest.raises(FormatError) as caught:
        sample.array("raw")
    assert "'raw'" in str(caught.value)


# Payloads.


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\x90",
        b"\x01",
        b"\x81",
        b"\x81\xa1a",
        b"\x81\x01\x02",
        b"\x80\x80",
        b"\xdf",
    ],
)
def test_payloads_that_are_not_a_map_of_fields(payload):
    with pytest.raises(SchemaError) as caught:
        DictSample.from_bytes(payload)
    assert isinstance(caught.value, TypeError | ValueError)
    assert caught.value.offset <= len(payload)


def test_every_cut_of_a_payload_is_refused():
    payload = pack(VALUES | {"x": X})
    for n in range(len(payload)):
        with pytest.raises(SchemaError):
            DictSample.from_bytes(payload[:n])


def test_every_byte_flipped_is_read_or_refused():
    payload = pack({"text": "é", "n": 7, "x": X[0, :2], "m": {"a": [1]}})
    for at in range(len(payload)):
        for bits in (0x01, 0x80, 0xFF):
            broken = bytearray(payload)
            broken[at] ^= bits
            try:
                DictSample.from_bytes(bytes(broken)).to_dict()
            except FormatError as error:
                assert error.offset <= len(payload)


def test_a_broken_field_names_it_and_leaves_others():
    sample = DictSample.from_bytes(b"\x82\xa1a\xa2\xff\xfe\xa1b\x05")
    assert sample.b == 5
    for call in (lambda: sample.a, lambda: sample["a"], sample.to_dict):
        with pytest.raises(FormatError) as caught:
            call()
        assert "'a'" in str(caught.value)


def test_the_last_of_equal_names_counts():
    sample = DictSample.from_bytes(b"\x82\xa1a\x01\xa1a\x02")
    assert sample.a == 2
    assert sample.keys() == ["a"]
    assert len(sample) == 1


def test_maps_with_int_keys_that_others_wrote_are_read():
    assert DictSample.from_bytes(b"\x81\xa1a\x81\x01\x02").a == {1: 2}


def test_a_strided_buffer():
    data = memoryview(bytes(200))[::2]
    with pytest.raises((BufferError, ValueError)):
        DictSample.from_bytes(data)
    with pytest.raises(TypeError):
        DictSample.from_bytes("text")


def test_many_threads_decode_one_sample():
    for _ in range(50):
        sample = of_payload()
        barrier, found = threading.Barrier(4), []

        def work(sample=sample, barrier=barrier, found=found):
            barrier.wait()
            found.append((sample.meta, sample.tags))

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert all(meta is found[0][0] and tags is found[0][1] for meta, tags in found)


def test_samples_keep_the_buffer_that_they_are_made_of(tmp_path):
    path = tmp_path / "payload"
    path.write_bytes(pack({"text": "a cat", "x": X}))
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    sample = DictSample.from_bytes(mapped)
    with pytest.raises(BufferError):
        mapped.close()
    assert sample.text == "a cat"
    array = sample.array("x")
    del sample
    with pytest.raises(BufferError):
        mapped.close()
    assert array.tolist() == X.tolist()
    del array
    mapped.close()
