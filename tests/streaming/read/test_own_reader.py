"""Readers of formats of the user's own, and classes that override ours."""

import copy
import pickle

import numpy as np
import pytest

from fastshard.streaming import FileInfo, MDSReader, Reader, reader_from_json
from support.inside.streaming import has_rows

FIELDS = ["a", "b"]


class Own(Reader):
    """A format of two methods: rows are the numbers of their positions."""

    def __init__(self, dirname, samples, **options):
        super().__init__(dirname, "val/nested", "zstd:7", ["md5"], samples, "1kb")
        self.fields = options.get("fields")
        self.file_pairs.append((FileInfo("own.bin", 70, {}), None))

    def decode_sample(self, data):
        return {"a": int(data), "b": data}

    def get_sample_data(self, idx):
        return b"%d" % idx


def test_two_methods_are_a_format(tmp_path):
    reader = Own(str(tmp_path), 10)

    assert len(reader) == reader.size == 10
    assert reader[3] == reader.get_item(3) == {"a": 3, "b": b"3"}
    assert [row["a"] for row in reader[::-3]] == [9, 6, 3, 0]
    assert [row["a"] for row in reader] == [*range(10)]
    assert reader[[1, np.array([2])]][1][0]["b"] == b"2"
    assert reader[-1]["a"] == 9
    assert reader.read_columns([4, -1]) == {"a": [4, 9], "b": [b"4", b"9"]}
    assert reader.get_item(3, fields=["b"]) == {"b": b"3"}
    assert reader.get_raw_size() == reader.get_max_size() == 70
    assert (reader.split, reader.size_limit) == ("val/nested", 1024)
    for at in (10, -11):
        with pytest.raises(IndexError, match="out of range"):
            reader[at]
    with pytest.raises(IndexError, match="out of range"):
        reader.get_item(-1)
    reader.validate(allow_unsafe_types=False)


def test_a_reader_of_ones_own_pickles(tmp_path):
    reader = Own(str(tmp_path), 10)
    for again in (pickle.loads(pickle.dumps(reader)), copy.deepcopy(reader)):
        assert vars(again) == vars(reader)
        assert again[3] == reader[3]


def test_a_reader_needs_both_methods():
    class Half(Reader):
        def decode_sample(self, data):
            return {}

    with pytest.raises(TypeError, match="get_sample_data"):
        Half("x", None, None, [], 1, None)


class Decoded(MDSReader):
    def decode_sample(self, data):
        return {"mine": len(data)}


class Stored(MDSReader):
    def get_sample_data(self, idx):
        return super().get_sample_data(0)


class Item(MDSReader):
    def get_item(self, idx, **options):
        return {"item": idx, **super().get_item(idx, **options)}


class Plain(MDSReader):
    def extra(self):
        return self[0]


class Indexed(MDSReader):
    def __getitem__(self, at):
        return ("mine", super().__getitem__(at))


@pytest.fixture
def shard(streaming_data):
    dataset = streaming_data["edge/raw_only"]
    return str(dataset.root), None, dataset.index["shards"][0]


def test_overridden_methods_are_called(shard):
    reader = reader_from_json(*shard)
    decoded, stored = Decoded.from_json(*shard), Stored.from_json(*shard)
    item, indexed = Item.from_json(*shard), Indexed.from_json(*shard)

    for _ in range(3):  # before the file is open, and after
        assert decoded[1] == {"mine": len(reader.get_sample_data(1))}
        assert stored[1] == stored[-1] == reader[0]
        assert item[1] == {"item": 1, **reader[1]}
        assert item[-1]["item"] == len(reader) - 1
        assert item[:2] == [item[0], item[1]]
        assert indexed[1] == ("mine", reader[1])
    for each in (decoded, stored, item):
        assert not has_rows(each)


def test_a_subclass_without_such_methods_is_compiled(shard):
    reader = Plain.from_json(*shard)

    assert reader.extra() == reader_from_json(*shard)[0]
    assert has_rows(reader)
