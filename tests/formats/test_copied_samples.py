"""Copied samples: pickles of samples, of every format, without the shard."""

import pickle
from importlib import import_module

import numpy as np
import pytest

import fastshard
from fastshard.errors import FastshardError, InfoNotFoundError
from fastshard.formats.sample import CopiedSample
from fastshard.streaming.index import ShardConfig
from support.builders import BUILDERS, npy
from support.tars import write_tar

ARRAYS = {"x": np.arange(40, dtype="<f4"), "y": np.arange(9, dtype="<f4")}


@pytest.fixture(params=BUILDERS)
def live(request, tmp_path):
    """Return a sample of a format with the fields x and y."""
    form = BUILDERS[request.param]
    form.build(tmp_path / "data", [("k0000", ARRAYS)])
    with form.open(tmp_path / "data") as ds:
        yield ds[0]


@pytest.fixture(params=[1, 2], ids=["copy", "copy of a copy"])
def copied(request, live):
    sample = live
    for _ in range(request.param):
        sample = pickle.loads(pickle.dumps(sample))
    return sample


def assert_same_values(found, expected):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert type(found[name]) is type(value)
        np.testing.assert_array_equal(found[name], value)


def test_a_copy_has_the_values_of_its_sample(live, copied):
    assert type(copied) is CopiedSample
    assert copied.key == live.key
    assert copied.position == live.position
    assert list(copied) == list(live)
    assert len(copied) == len(live)
    assert_same_values(copied.decode(), live.decode())
    for field in live:
        assert_same_values(copied.decode(field), live.decode(field))
        assert bytes(copied.view(field)) == bytes(live.view(field))
        assert copied.layout_of(field) == live.layout_of(field)
        assert type(copied.decoder_of(field)) is type(live.decoder_of(field))
        if live.is_array(field):
            np.testing.assert_array_equal(copied.array(field), live.array(field))


def test_a_copy_has_no_index_metadata_of_members(live, copied):
    if hasattr(copied, "metadata"):
        assert dict(copied.infos()) == dict(live.infos())
        return
    assert len(copied.infos()) == 0
    with pytest.raises(InfoNotFoundError, match="k0000"):
        copied.infos()["x"]


class Stored:
    """Object whose pickle calls a function by name."""

    def __init__(self, module, name, *args):
        self.call = getattr(import_module(module), name), args

    def __reduce__(self):
        return self.call


ROWS = ShardConfig("mds", None, (), None, ("id",), ("int",), (8,), None, None)
NUMBERS = {"history": npy(np.arange(3))}


@pytest.mark.parametrize(
    ("module", "name", "state", "decoded"),
    [
        ("formats.sample", "CopiedSample", ({"cls": b"5"},), {"cls": 5}),
        (
            "streaming.samples",
            "CopiedRow",
            ({"id": bytes([7, *bytes(7)])}, ROWS, False),
            {"id": 7},
        ),
        ("typed.samples", "CopiedPacked", (b"\x81\xa1n\x09",), {"n": 9}),
        (
            "columnar.samples",
            "CopiedArrays",
            (NUMBERS, {"day": 1}, {"length": 3}, ["length", "history"]),
            {"length": 3, "history": np.arange(3)},
        ),
    ],
    ids=["tar", "streaming", "packed", "columnar"],
)
def test_pickles_of_earlier_copies_load(module, name, state, decoded):
    stored = Stored(f"fastshard.{module}", name, "k", 2, *state)
    sample = pickle.loads(pickle.dumps(stored))
    assert type(sample) is CopiedSample
    assert sample.position == 2
    assert list(sample) == list(decoded)
    assert_same_values(sample.decode(), {"__key__": "k"} | decoded)


def test_metadata_columns_of_a_copy_are_values(tmp_path):
    from fastshard.columnar import ShardedDatasetWriter

    with ShardedDatasetWriter(tmp_path / "series") as writer:
        writer.add_fields(["history"])
        writer.add_metadata_column("length", "$.length", int)
        writer.add_sample({"history": np.arange(4)}, metadata={"length": 4})
    with fastshard.open(tmp_path / "series") as ds:
        copied = pickle.loads(pickle.dumps(ds.select_fields("length", "history")[0]))
    assert list(copied) == ["length", "history"]
    assert copied["length"] == 4
    assert copied.metadata == {"length": 4}
    np.testing.assert_array_equal(copied["history"], np.arange(4))


def test_a_tar_sample_with_a_field_of_the_keys_name_is_refused(tmp_path):
    write_tar(tmp_path / "a.tar", {"a.__key__": b"x", "a.txt": b"y"})
    with fastshard.open(tmp_path / "a.tar") as ds:
        with pytest.raises(FastshardError, match="collides"):
            ds[0].decode()
        assert ds[0].decode("txt") == {"__key__": "a", "txt": "y"}
