"""How typed datasets read: modes, memory, URLs, sources of a caller's own."""

import numpy as np
import pytest
from numpy.typing import NDArray

import fastshard
from fastshard import typed
from support.servers.http import Server
from support.typed.packed import compact, pack, write_shard
from support.typed.photos import Photo, is_odd, label_of, row, write_photos


@pytest.fixture
def source(tmp_path):
    return write_photos(tmp_path)


def assert_photos(dataset):
    """Assert that every way of reading gives the thirty photos."""
    for i, photo in enumerate(dataset):
        assert photo.number == i
        np.testing.assert_array_equal(photo.image, row(i)["image"])
    assert dataset[17].label == "photo 17"
    assert [photo.number for photo in dataset.get_many([20, 3])] == [20, 3]
    for batch in dataset.ordered(batch_size=8):
        expected = np.stack([row(i)["image"] for i in batch.number])
        np.testing.assert_array_equal(batch.image, expected)
        assert batch.label == [f"photo {i}" for i in batch.number]
    shuffled = dataset.shuffled(seed=3, batch_size=7)
    assert sorted(n for batch in shuffled for n in batch.number) == list(range(30))
    assert [photo.number for photo in dataset.filter(is_odd)[:2]] == [1, 3]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"mode": "pread"},
        {"mode": "private"},
        {"max_memory": "1MiB"},
        {"prefetch": False},
        {"index": "none"},
        {"max_mapped": 1},
    ],
    ids=str,
)
def test_samples_in_every_mode(source, options):
    assert_photos(typed.Dataset[Photo](source, **options))


def test_samples_over_http(tmp_path, source):
    files = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with Server(files) as server:
        url = f"{server.url}/photos-{{0..2}}.tar"
        assert_photos(typed.Dataset[Photo](url))
        untyped = typed.Dataset(url)
        assert untyped[3].label == "photo 3"
        assert next(untyped.ordered(batch_size=4)).array("image").shape == (4, 2, 3)


def test_private_pages_are_writable_without_a_copy(source):
    dataset = typed.Dataset[Photo](source, mode="private")
    image = dataset[3].image
    assert image.flags.writeable
    assert not image.flags.owndata
    image += 100
    np.testing.assert_array_equal(dataset[3].image, row(3)["image"] + 100)
    np.testing.assert_array_equal(
        typed.Dataset[Photo](source)[3].image, row(3)["image"]
    )


def test_aligned_copies_arrays_that_are_not(tmp_path):
    @typed.packable
    class Vector:
        x: NDArray[np.float64]

    path = tmp_path / "a.tar"
    write_shard(path, [{"x": np.arange(3.0)}], encode=compact)
    assert not typed.Dataset[Vector](str(path))[0].x.flags.aligned
    for dataset in (
        typed.Dataset[Vector](str(path), aligned=True),
        typed.Dataset[Vector](str(path), copy=True),
    ):
        found = dataset[0].x
        assert found.flags.aligned
        assert found.flags.owndata or found.base is not None
        np.testing.assert_array_equal(found, np.arange(3.0))


def test_strict_refuses_other_fields(source):
    @typed.packable
    class Part:
        number: int

    assert typed.Dataset[Part](source)[3] == Part(3)
    strict = typed.Dataset[Part](source, strict=True)
    for read in (
        lambda: strict[3],
        lambda: list(strict),
        lambda: next(strict.ordered(batch_size=2)).number,
    ):
        with pytest.raises(typed.SchemaError, match="label"):
            read()
    assert typed.Dataset[Photo](source, strict=True)[3].number == 3


class Files:
    """A source of a caller's own: only the three methods."""

    def __init__(self, paths):
        self.paths = {f"my:{i}": path for i, path in enumerate(paths)}

    def list_shards(self):
        return list(self.paths)

    def open_shard(self, shard_id):
        return open(self.paths[shard_id], "rb")

    @property
    def shards(self):
        for name in self.paths:
            yield name, self.open_shard(name)


def test_a_source_of_ones_own(tmp_path, source):
    paths = [tmp_path / f"photos-{k}.tar" for k in range(3)]
    dataset = typed.Dataset[Photo](Files(paths))
    assert_photos(dataset)
    assert dataset.list_shards() == ["my:0", "my:1", "my:2"]
    assert dataset.url == "my:0"
    assert list(dataset.process_shards(len)) == dataset.list_shards()


def test_url_sources_are_sources(source):
    dataset = typed.Dataset[Photo](typed.URLSource(source))
    assert_photos(dataset)
    assert dataset.source.list_shards() == dataset.list_shards()


def test_an_open_dataset_of_fields_is_a_source(source):
    fields = fastshard.open(source, packed=True)
    dataset = typed.Dataset(fields[5:].shuffle(3), Photo)
    assert sorted(photo.number for photo in dataset) == list(range(5, 30))
    assert dataset.list_shards() == list(fields.shards.paths)


@pytest.mark.parametrize("source", [5, object(), None], ids=["5", "object", "none"])
def test_a_non_source_is_refused(source):
    with pytest.raises(TypeError, match="source"):
        typed.Dataset(source, Photo)


def test_commands_are_refused():
    with pytest.raises(fastshard.FastshardError, match="never run"):
        typed.Dataset[Photo]("pipe:cat x.tar")


def test_samples_of_other_readers_are_wrapped(source):
    payloads = [pack(row(i)) for i in range(3)]
    dataset = typed.Dataset[Photo](source)
    photo = dataset.wrap({"__key__": "a", "msgpack": payloads[2]})
    assert photo.number == 2
    np.testing.assert_array_equal(photo.image, row(2)["image"])
    assert dataset.map(label_of).wrap({"msgpack": payloads[1]}) == "photo 1"
    assert typed.Dataset(source).wrap({"msgpack": payloads[1]}).label == "photo 1"
    batch = dataset.wrap_batch({"__key__": ["a", "b", "c"], "msgpack": payloads})
    assert batch.number == [0, 1, 2]
    assert batch.image.shape == (3, 2, 3)


def test_objects_that_cannot_be_wrapped_are_refused(source):
    dataset = typed.Dataset[Photo](source)
    for call in (dataset.wrap, dataset.wrap_batch):
        with pytest.raises(ValueError, match="missing 'msgpack' key: it has jpg"):
            call({"jpg": b""})
    with pytest.raises(ValueError, match="expected the payload to be bytes, got str"):
        dataset.wrap({"msgpack": "text"})
    with pytest.raises(typed.SchemaError):
        dataset.wrap({"msgpack": b"\xff\xfe\x00\x01invalid"})
    with pytest.raises(fastshard.FastshardError, match="call wrap before decode"):
        dataset.decode().wrap({"msgpack": b""})
