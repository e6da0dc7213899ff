"""`load_dataset`: datasets by their splits, from every kind of path."""

import logging
import pickle
from types import SimpleNamespace

import numpy as np
import pytest
from numpy.typing import NDArray

import fastshard
from fastshard import typed
from support.servers.http import Server


@typed.packable
class Text:
    text: str
    vector: NDArray[np.float32]


@typed.packable
class Short:
    text: str


def write(path, *numbers):
    path.parent.mkdir(parents=True, exist_ok=True)
    with fastshard.ShardWriter(path) as writer:
        for i in numbers:
            sample = Text(text=f"no. {i}", vector=np.full(3, i, "f4"))
            writer.write({"__key__": f"{i:06d}", "msgpack": sample.packed})


@pytest.fixture
def folder(tmp_path):
    write(tmp_path / "train-000.tar", 0, 1)
    write(tmp_path / "train-001.tar", 2)
    write(tmp_path / "test-000.tar", 3, 4)
    return tmp_path


def texts(ds):
    return [sample.text for sample in ds.ordered()]


def test_a_split_is_a_dataset(folder):
    ds = typed.load_dataset(f"{folder}/train-*.tar", Text, split="train")
    assert isinstance(ds, typed.Dataset)
    assert ds.sample_type is Text
    assert texts(ds) == ["no. 0", "no. 1", "no. 2"]
    np.testing.assert_array_equal(ds[2].vector, np.full(3, 2, "f4"))
    assert ds.list_shards() == [f"{folder}/train-{k:03d}.tar" for k in range(2)]


def test_without_a_type_samples_are_untyped(folder):
    ds = typed.load_dataset(folder, split="test")
    assert ds.sample_type is typed.DictSample
    (sample, _) = ds.ordered()
    assert sample["text"] == sample.text == "no. 3"
    assert ds.as_type(Short)[1] == Short(text="no. 4")


def test_without_a_split_there_are_all(folder):
    found = typed.load_dataset(str(folder), Text)
    assert isinstance(found, typed.DatasetDict)
    assert isinstance(found, dict)
    assert set(found) == {"train", "test"}
    assert found.sample_type is Text
    assert not found.streaming
    assert found.num_shards == {"train": 2, "test": 1}
    assert texts(found["test"]) == ["no. 3", "no. 4"]


def test_braces_with_two_splits_are_two(tmp_path):
    write(tmp_path / "train" / "x-0.tar", 0)
    write(tmp_path / "train" / "x-1.tar", 1)
    write(tmp_path / "val" / "x-0.tar", 2)
    write(tmp_path / "val" / "x-1.tar", 3)
    path = f"{tmp_path}/{{train,val}}/x-{{0..1}}.tar"
    found = typed.load_dataset(path, Text)
    assert found.num_shards == {"train": 2, "validation": 2}
    assert texts(found["validation"]) == ["no. 2", "no. 3"]
    assert texts(typed.load_dataset(path, Text, split="train")) == ["no. 0", "no. 1"]


def test_an_unknown_split_lists_those_that_there_are(folder):
    with pytest.raises(ValueError, match="Split 'dev' not found") as caught:
        typed.load_dataset(folder, Text, split="dev")
    assert str(caught.value).endswith("Available splits: ['test', 'train']")


def test_shards_that_say_no_split_are_train(tmp_path):
    write(tmp_path / "data.tar", 0)
    assert list(typed.load_dataset(tmp_path / "data.tar")) == ["train"]
    ds = typed.load_dataset(tmp_path / "data.tar", Text, split="train")
    assert texts(ds) == ["no. 0"]
    with pytest.raises(ValueError, match="Split 'test' not found"):
        typed.load_dataset(tmp_path / "data.tar", Text, split="test")


def test_files_are_given_by_split(folder):
    files = {"a": "train-*.tar", "b": ["test-000.tar"]}
    found = typed.load_dataset(folder, Text, data_files=files)
    assert found.num_shards == {"a": 2, "b": 1}
    ds = typed.load_dataset(folder, Text, data_files="test-000.tar", split="train")
    assert texts(ds) == ["no. 3", "no. 4"]


def test_names_with_commas_and_braces_stay_names(tmp_path):
    write(tmp_path / "data" / "train-0.tar", 0)
    write(tmp_path / "data" / "train-1.tar", 1)
    (tmp_path / "data" / "train-0.tar").rename(tmp_path / "data" / "train-{0,1}.tar")
    (tmp_path / "data" / "train-1.tar").rename(tmp_path / "data" / "train-*.tar")
    (tmp_path / "data").rename(tmp_path / "a,{0,1}")
    ds = typed.load_dataset(tmp_path / "a,{0,1}", Text, split="train")
    assert sorted(texts(ds)) == ["no. 0", "no. 1"]


def test_streaming_is_kept(folder):
    assert typed.load_dataset(folder, streaming=True).streaming
    ds = typed.load_dataset(folder, split="train", streaming=True)
    assert len(list(ds.ordered())) == 3


def test_nothing_is_read_ahead_over_http(folder):
    names = ("train-000.tar", "train-001.tar", "test-000.tar")
    files = {f"/{name}": (folder / name).read_bytes() for name in names}
    with Server(files) as server:
        path = f"{server.url}/{{train-{{000..001}},test-000}}.tar"
        found = typed.load_dataset(path, Text, timeout=5)
        assert found.num_shards == {"train": 2, "test": 1}
        assert server.requests == []
        assert texts(found["train"]) == ["no. 0", "no. 1", "no. 2"]
        assert not [each for each in server.requests if "test-000" in each.path]


def test_options_are_those_of_datasets(folder):
    ds = typed.load_dataset(folder, Text, split="test", copy=True, mode="pread")
    assert ds[0].vector.flags.writeable
    with pytest.raises(TypeError, match="streamin"):
        typed.load_dataset(folder, Text, streamin=True)


def test_a_missing_name_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        typed.load_dataset(tmp_path / "none.tar", Text, split="train")
    with pytest.raises(FileNotFoundError):
        typed.load_dataset(tmp_path, Text)


def test_loading_is_logged(folder, caplog):
    caplog.set_level(logging.INFO, "fastshard")
    typed.load_dataset(f"{folder}/train-*.tar", Text, split="train")
    (record,) = caplog.records
    assert "train-*.tar, split=train, sample_type=Text" in record.getMessage()
    caplog.clear()
    with pytest.raises(fastshard.FastshardError):
        typed.load_dataset("https://me:password@127.0.0.1:1/x?secret", split="train")
    assert "password" not in caplog.text
    assert "secret" not in caplog.text


# -- DatasetDict


def test_one_split_has_the_methods_of_its_dataset(folder):
    found = typed.load_dataset(f"{folder}/train-*.tar", Text)
    assert [sample.text for sample in found.ordered()] == ["no. 0", "no. 1", "no. 2"]
    assert len(list(found.shuffled(seed=1))) == 3
    assert found.list_shards() == found["train"].list_shards()
    assert found.head(1)[0].text == "no. 0"
    assert found.as_type(Short)[0] == Short(text="no. 0")
    assert "ordered" in dir(found)


def test_several_splits_have_none_of_them(folder):
    found = typed.load_dataset(folder, Text)
    with pytest.raises(AttributeError, match=r"2 splits \('test', 'train'\)") as caught:
        found.ordered()
    assert "ds_dict['test'].ordered()" in str(caught.value)
    assert "ordered" not in dir(found)
    with pytest.raises(AttributeError, match="has no attribute 'filter'"):
        found.filter(None)


def test_a_dict_of_ones_own(folder):
    train = typed.load_dataset(folder, Text, split="train")
    found = typed.DatasetDict({"train": train})
    assert found["train"] is train
    assert found.sample_type is Text
    found["other"] = train
    assert len(found) == 2
    assert typed.DatasetDict[Text]().sample_type is None
    assert typed.DatasetDict(sample_type=Short, streaming=True).sample_type is Short
    with pytest.raises(AttributeError, match="has no split"):
        typed.DatasetDict().ordered()


def test_a_dict_pickles(folder):
    found = typed.load_dataset(folder, Text, streaming=True)
    again = pickle.loads(pickle.dumps(found))
    assert type(again) is typed.DatasetDict
    assert (again.sample_type, again.streaming) == (Text, True)
    assert texts(again["test"]) == ["no. 3", "no. 4"]
    assert repr(again).startswith("DatasetDict({'test': ")


# -- Indexed paths


class Index:
    """The calls of an index that `load_dataset` makes."""

    data_store = None

    def __init__(self, urls, labels=None):
        self.entry = SimpleNamespace(data_urls=urls, schema_ref="a schema")
        self.labels = {} if labels is None else labels
        self.asked = []

    def get_label(self, name, version=None):
        self.asked.append(("label", name, version))
        return self.labels[name, version]

    def get_dataset(self, name):
        self.asked.append(("dataset", name))
        if name != "@local/mine":
            raise KeyError(name)
        return self.entry

    def get_schema_type(self, ref):
        assert ref == "a schema"
        return Text


def test_an_index_names_datasets(folder):
    index = Index([str(folder / "test-000.tar")])
    ds = typed.load_dataset("@local/mine", index=index, split="train")
    assert ds.sample_type is Text
    assert texts(ds) == ["no. 3", "no. 4"]
    assert index.asked == [("label", "@local/mine", None), ("dataset", "@local/mine")]
    found = typed.load_dataset("@local/mine", Short, index=index)
    assert list(found) == ["train"]
    assert found.sample_type is Short


def test_a_version_is_that_of_a_label_alone(folder):
    entry = SimpleNamespace(
        data_urls=[str(folder / "train-001.tar")], schema_ref="a schema"
    )
    index = Index([], {("@local/mine", "1.0"): entry})
    ds = typed.load_dataset("@local/mine@1.0", index=index, split="train")
    assert texts(ds) == ["no. 2"]
    with pytest.raises(KeyError):
        typed.load_dataset("@local/mine@2.0", index=index, split="train")
    with pytest.raises(KeyError):
        typed.load_dataset("@local/other", index=index, split="train")


def test_a_store_says_where_to_read(folder):
    index = Index(["s3://bucket/test-000.tar"])
    read = {"s3://bucket/test-000.tar": str(folder / "test-000.tar")}
    index.data_store = SimpleNamespace(read_url=read.__getitem__)
    ds = typed.load_dataset("@local/mine", index=index, split="train")
    assert texts(ds) == ["no. 3", "no. 4"]


@pytest.mark.parametrize("path", ["@mine", "@/mine", "@local/", "@local/mine@"])
def test_other_indexed_paths_are_an_error(path):
    with pytest.raises(ValueError, match="Invalid indexed path"):
        typed.load_dataset(path, index=Index([]))


def test_a_type_that_is_not_a_class_is_refused(folder):
    with pytest.raises(TypeError, match="sample_type must be a class"):
        typed.load_dataset(folder, "Item")
