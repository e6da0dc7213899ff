"""Every field of every shard that atdata wrote has the value that atdata read."""

import hashlib
from dataclasses import fields

import pytest

import fastshard
from fastshard import typed
from support.typed.classes import Vec, type_of
from support.typed.expected import READABLE as READ
from support.typed.expected import described, served

pytest.importorskip("msgspec")

MODES = ("mmap", "private", "pread")


def values_of(sample):
    return {field.name: getattr(sample, field.name) for field in fields(sample)}


def assert_typed(found, known):
    """Compare an object's fields with those of ``expected.json``."""
    values = values_of(found)
    assert list(values) == list(known.fields)
    assert {name: described(value) for name, value in values.items()} == known.fields


def assert_dict_sample(found, known):
    """Compare a `DictSample`: its bins are bytes, arrays are asked for."""
    assert type(found) is typed.DictSample
    assert found.keys() == list(known.fields)
    for name, description in known.fields.items():
        if name in known.places:
            assert type(found[name]) is bytes
            assert described(found.array(name)) == description
        else:
            assert described(found[name]) == description
            if not hasattr(typed.DictSample, name):  # a field named "items"
                assert described(getattr(found, name)) == description


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", READ)
def test_typed(typed_data, name, mode):
    known = typed_data.shards[name]
    ds = typed.Dataset(typed_data.root / name, type_of(name), mode=mode)
    assert len(ds) == len(known)
    samples = list(ds.ordered())
    for found, sample in zip(samples, known, strict=True):
        assert type(found) is type_of(name)
        assert_typed(found, sample)
        assert_typed(ds.get(sample.key), sample)
    for i in range(-len(known), len(known)):
        assert_typed(ds[i], known[i])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", READ)
def test_copied(typed_data, name, mode):
    ds = typed.Dataset(typed_data.root / name, type_of(name), mode=mode).copied()
    for found, sample in zip(ds, typed_data.shards[name], strict=True):
        assert_typed(found, sample)
        for field in sample.places:
            array = getattr(found, field)
            assert array.flags.writeable
            assert array.flags.owndata or array.base.flags.owndata


@pytest.mark.parametrize("name", READ)
def test_shuffled(typed_data, name):
    known = typed_data.shards[name]
    ds = typed.Dataset(typed_data.root / name, type_of(name))
    described_by = {repr(sample.fields) for sample in known}
    found = [
        {field: described(value) for field, value in values_of(sample).items()}
        for sample in ds.shuffled(seed=5)
    ]
    assert len(found) == len(known)
    assert {repr(sample) for sample in found} == described_by


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", READ)
def test_from_bytes(typed_data, name, mode):
    cls = type_of(name)
    with fastshard.open(typed_data.root / name, mode=mode) as ds:
        for raw, sample in zip(ds, typed_data.shards[name], strict=True):
            assert hashlib.sha256(raw["msgpack"]).hexdigest() == sample.sha256
            assert_typed(cls.from_bytes(raw["msgpack"]), sample)
            assert_typed(cls.from_bytes(bytes(raw["msgpack"])), sample)
            assert_typed(cls.from_bytes(bytearray(raw["msgpack"])), sample)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", READ)
def test_dict_samples(typed_data, name, mode):
    known = typed_data.shards[name]
    ds = typed.Dataset(typed_data.root / name, mode=mode)
    assert ds.sample_type is typed.DictSample
    for found, sample in zip(ds.ordered(), known, strict=True):
        assert_dict_sample(found, sample)
        assert found.to_dict().keys() == sample.fields.keys()
    assert_dict_sample(ds[-1], known[-1])


@pytest.mark.parametrize("mode", ["mmap", "private"])
def test_arrays_are_views_of_the_shard(typed_data, mode):
    ds = typed.Dataset(typed_data.root / "vec-000000.tar", Vec, mode=mode)
    for sample in (ds[3], next(iter(ds.ordered())), ds.head(1)[0]):
        assert not sample.x.flags.owndata
        assert sample.x.flags.writeable == (mode == "private")


@pytest.mark.parametrize("name", READ)
def test_over_http(typed_data, loopback, tmp_path, name):
    known = typed_data.shards[name]
    with served(typed_data, name) as url:
        options = {"cache_dir": tmp_path}
        for found, sample in zip(
            typed.Dataset(url, type_of(name), **options).ordered(), known, strict=True
        ):
            assert_typed(found, sample)
        for found, sample in zip(typed.Dataset(url, **options), known, strict=True):
            assert_dict_sample(found, sample)
