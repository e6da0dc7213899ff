"""Loader: the batches of `batches`, in order, for every kind of dataset."""

import json

import numpy as np
import pytest

import fastshard
from support.builders import BUILDERS
from support.loader.batches import assert_same, assert_same_batches
from support.servers.http import Server
from support.tars import write_numbers

COUNT = 90
SIZE = 8


def double(sample):
    return {"n": 2 * int(sample.text("txt")), "length": len(sample["txt"])}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_numbers(tmp_path_factory.mktemp("numbers"), COUNT, per=25)


@pytest.fixture
def ds(folder):
    with fastshard.open(folder) as dataset:
        yield dataset


KINDS = {
    "raw": lambda ds: ds,
    "decoded": lambda ds: ds.decode(),
    "mapped": lambda ds: ds.map(double),
    "tuples": lambda ds: ds.map(lambda s: (len(s["txt"]), s.key)),
    "mixed": lambda ds: fastshard.mix([ds.decode(), ds.shuffle(1).decode()], [2, 1]),
    "mixed raw": lambda ds: fastshard.mix([ds, ds[::-1]]),
    "joined": lambda ds: ds.map(double) + ds[::2].map(double),
    "zipped": lambda ds: fastshard.zip_by_key(ds, ds.decode()),
    "mapped mix": lambda ds: fastshard.mix([ds, ds]).map(double),
}
ORDERS = {
    "in order": lambda ds: ds,
    "shuffled": lambda ds: ds.shuffle(7, epoch=2),
    "selected": lambda ds: ds[::-3],
    "rank": lambda ds: ds.shuffle(3).split_by_rank(1, 3),
}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("kind", KINDS)
def test_batches_are_those_of_batches(ds, kind, order):
    part = ORDERS[order](KINDS[kind](ds))

    for threads in (1, 2, 8):
        assert assert_same_batches(part, SIZE, threads=threads) == -(-len(part) // SIZE)


@pytest.mark.parametrize("form", BUILDERS)
def test_batches_of_every_format(tmp_path, form):
    builder = BUILDERS[form]
    x, y = np.ones(40, "f4"), np.ones(5, "i4")
    samples = [(f"{i:05}", {"x": x * i, "y": (y * i)[: 1 + i % 3]}) for i in range(60)]
    builder.build(tmp_path / "data", samples)
    with builder.open(tmp_path / "data") as ds:
        for part in (ds, ds.shuffle(1), ds.decode()):
            for threads in (1, 4):
                assert assert_same_batches(part, SIZE, threads=threads) == 8


def test_remote_batches(folder):
    files = {f"/d/{path.name}": path.read_bytes() for path in folder.glob("*.tar")}
    with (
        Server(files) as server,
        fastshard.open(server.url + "/d/n-{000..003}.tar") as remote,
    ):
        for part in (remote, remote.map(double), remote.shuffle(2).decode()):
            assert assert_same_batches(part, SIZE) == -(-COUNT // SIZE)


def test_states_are_those_of_batches(ds):
    shuffled = ds.shuffle(5)
    loader, batches = shuffled.loader(SIZE, threads=2), shuffled.batches(SIZE)
    assert loader.state_dict() == batches.state_dict()
    for _ in range(4):
        next(loader), next(batches)
        assert loader.state_dict() == batches.state_dict()
    state = json.loads(json.dumps(loader.state_dict()))
    rest = list(shuffled.loader(SIZE, threads=3, state=state))
    expected = list(shuffled.batches(SIZE, state=batches.state_dict()))
    assert_same(rest, expected)
    assert_same(list(loader)[-1], expected[-1])
    assert loader.state_dict()["position"] == COUNT


def test_fields_of_names_that_look_nested_do_not_share_memory(tmp_path):
    """The first of the tuple "a" is called "a[0]" where memory is found by name."""
    path = tmp_path / "numbers.tar"
    write_numbers(path, 20)

    def make(sample):
        one = np.full(3, 1.0)
        return {"a[0]": one, "a": (one * 2, one * 3), "b/c": one * 4}

    assert assert_same_batches(fastshard.open(path).map(make), 4) == 5
