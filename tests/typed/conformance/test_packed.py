"""Fields of shards that atdata wrote, read without a type."""

import gzip

import pytest

import fastshard
from support.typed.expected import READABLE, described, served

pytest.importorskip("msgspec")

MODES = ("mmap", "private", "pread")


def assert_packed(found, known):
    """Compare an untyped sample: its values, and where arrays lie in the payload."""
    assert found.key == known.key
    assert list(found.keys()) == list(known.fields)
    values = found.decode()
    assert values.pop("__key__") == known.key
    assert {name: described(value) for name, value in values.items()} == known.fields
    for name in known.places:
        assert described(found.array(name)) == known.fields[name]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", READABLE)
def test_packed(typed_data, name, mode):
    known = typed_data.shards[name]
    with fastshard.open(typed_data.root / name, packed=True, mode=mode) as ds:
        assert len(ds) == len(known)
        for found, sample in zip(ds, known, strict=True):
            assert_packed(found, sample)
        for i in range(len(known)):
            assert_packed(ds[i], known[i])


@pytest.mark.parametrize("name", READABLE)
def test_views_of_arrays_are_where_they_were_written(typed_data, name):
    data = (typed_data.root / name).read_bytes()
    with fastshard.open(typed_data.root / name, packed=True) as ds:
        for found, sample in zip(ds, typed_data.shards[name], strict=True):
            for field, place in sample.places.items():
                at = sample.offset + place["field_offset"]
                view = found[field]
                assert bytes(view) == data[at : at + len(view)]
                array = found.array(field)
                first = place["data_offset"]
                stored = data[first : first + array.nbytes]
                assert array.tobytes("A" if place["enc"] == "npy" else "C") == stored


@pytest.mark.parametrize("name", READABLE)
def test_packed_over_http(typed_data, loopback, tmp_path, name):
    known = typed_data.shards[name]
    with (
        served(typed_data, name) as url,
        fastshard.open(url, packed=True, cache_dir=tmp_path) as ds,
    ):
        assert len(ds) == len(known)
        for found, sample in zip(ds, known, strict=True):
            assert_packed(found, sample)
        assert_packed(ds[-1], known[-1])


def test_compressed_tars_are_refused_by_name(typed_data, tmp_path):
    """atdata reads them from the start to the end."""
    path = tmp_path / "basic.tar.gz"
    path.write_bytes(gzip.compress((typed_data.root / "basic.tar").read_bytes()))
    with pytest.raises(fastshard.FastshardError, match=r"basic\.tar\.gz.*gunzip"):
        fastshard.open(path, packed=True)
