"""Faults of atdata that fastshard lacks: paths, splits, sources of the caller's own."""

import io
import pickle

import msgpack
import pytest

import fastshard
from fastshard import typed
from support.servers.http import Server

pytest.importorskip("msgspec")


@typed.packable
class Number:
    value: int


@typed.packable
class Negative:
    value: int


@typed.lens
def negate(sample: Number) -> Negative:
    return Negative(value=-sample.value)


class Memory:
    """A source of shards in memory, with the three methods and nothing else."""

    def __init__(self, shards):
        self._shards = shards

    def list_shards(self):
        return list(self._shards)

    @property
    def shards(self):
        for name in self._shards:
            yield name, self.open_shard(name)

    def open_shard(self, name):
        return io.BytesIO(self._shards[name])


def write(path, values):
    path.parent.mkdir(parents=True, exist_ok=True)
    typed.write_samples([Number(value=value) for value in values], path)
    return path


@pytest.fixture
def memory(tmp_path):
    paths = [write(tmp_path / f"m-{i}.tar", [i * 10, i * 10 + 1]) for i in range(3)]
    return Memory({f"memory:{i}": path.read_bytes() for i, path in enumerate(paths)})


def values(ds):
    return [sample.value for sample in ds.ordered()]


# 11: braces in a path, globs in `data_files`, splits by pattern


@pytest.mark.parametrize("name", ["a{b}.tar", "a,b.tar", "a[0].tar", "a*.tar"])
def test_paths_of_a_list_are_taken_literally(tmp_path, name):
    paths = [write(tmp_path / name, [1]), write(tmp_path / "z,{x}.tar", [2])]
    assert values(typed.Dataset(paths, Number)) == [1, 2]
    assert values(typed.Dataset(paths[:1], Number)) == [1]


@pytest.mark.parametrize("folder", ["plain", "with{brace}", "with,comma"])
def test_a_directory_whose_name_is_a_pattern(tmp_path, folder):
    for i in range(2):
        write(tmp_path / folder / f"train-{i}.tar", [i])
    ds = typed.load_dataset(tmp_path / folder, Number, split="train")
    assert values(ds) == [0, 1]


@pytest.mark.parametrize(
    "data_files", ["n-*.tar", ["n-*.tar"], {"train": "n-*.tar"}, {"train": ["n-*.tar"]}]
)
def test_globs_in_data_files(tmp_path, data_files):
    for i in range(3):
        write(tmp_path / f"n-{i}.tar", [i])
    ds = typed.load_dataset(tmp_path, Number, split="train", data_files=data_files)
    assert values(ds) == [0, 1, 2]


def test_splits_are_of_shards_not_of_patterns(tmp_path):
    for split, value in (("train", 1), ("val", 2)):
        for i in range(2):
            write(tmp_path / split / f"x-{i}.tar", [value])
    splits = typed.load_dataset(f"{tmp_path}/{{train,val}}/x-{{0..1}}.tar", Number)
    assert {name: values(ds) for name, ds in splits.items()} == {
        "train": [1, 1],
        "validation": [2, 2],
    }


def test_a_missing_file_is_an_error_at_once(tmp_path):
    with pytest.raises(FileNotFoundError):
        typed.load_dataset(tmp_path / "none.tar", Number, split="train")


def test_pipes_are_refused_by_name():
    with pytest.raises(fastshard.FastshardError, match=r"pipe:.* command"):
        typed.Dataset("pipe:false", Number)


def test_metadata_are_read_from_a_url(tmp_path, loopback):
    path = write(tmp_path / "a.tar", [1])
    files = {"/m.msgpack": msgpack.packb({"licence": "CC0"})}
    files["/a.tar"] = path.read_bytes()
    with Server(files) as server:
        root = f"http://127.0.0.1:{server.port}"
        for source in (path, f"{root}/a.tar"):
            ds = typed.Dataset[Number](source, metadata_url=f"{root}/m.msgpack")
            assert ds.metadata == {"licence": "CC0"}
            assert values(ds) == [1]


# 15, 16: shards are opened by URL, so that other sources and lenses break


def test_shards_are_processed_through_the_source_and_its_stages(memory):
    ds = typed.Dataset(memory, Number)
    found = ds.process_shards(lambda samples: [sample.value for sample in samples])
    assert found == {f"memory:{i}": [i * 10, i * 10 + 1] for i in range(3)}
    lensed = ds.filter(lambda sample: sample.value % 2).as_type(Negative)
    found = lensed.process_shards(lambda samples: [sample.value for sample in samples])
    assert found == {f"memory:{i}": [-(i * 10) - 1] for i in range(3)}


def test_a_source_of_three_methods_is_a_dataset(memory):
    assert isinstance(memory, typed.DataSource)
    ds = typed.Dataset(memory, Number)
    assert ds.source is memory
    assert ds.list_shards() == [f"memory:{i}" for i in range(3)]
    assert values(ds) == [0, 1, 10, 11, 20, 21]
    assert [batch.value for batch in ds.ordered(batch_size=4)] == [
        [0, 1, 10, 11],
        [20, 21],
    ]
    assert len(ds) == 6
    assert ds[4].value == 20
    assert sorted(sample.value for sample in ds.shuffled(seed=2)) == values(ds)
    assert values(pickle.loads(pickle.dumps(ds))) == values(ds)
    assert values(ds.as_type(Negative)) == [0, -1, -10, -11, -20, -21]
