"""Pickles that were made before modules and classes got new names.

``tests/data/pickles`` has those of two commits of version 0.1.
"""

import base64
import importlib
import json
import pickle
import pickletools
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import fastshard
from fastshard._moved import MOVED, RENAMED
from support.inside.datasets import plan_of

DATA = Path(__file__).parent / "data" / "pickles"
ROOT = "/fastshard-data"  # where the data lay when the pickles were made
COMMITS = json.loads((DATA / "pickles.json").read_text())


@pytest.fixture(scope="module", params=COMMITS)
def load(request, tmp_path_factory):
    """Load a pickle by name, as if it had been made of data in a directory here."""
    root = tmp_path_factory.mktemp("pickles")
    shutil.copytree(DATA / "tars", root / "tars")
    shutil.copytree(DATA / "columns", root / "columns")

    def load(name):
        data = base64.b64decode(COMMITS[request.param][name])
        out = bytearray()
        starts = [at for _, _, at in pickletools.genops(data)]
        ends = [*starts[1:], len(data)]
        for (op, arg, at), end in zip(pickletools.genops(data), ends, strict=True):
            piece = data[at:end]
            if op.name == "BINUNICODE" and arg.startswith(ROOT):
                text = (str(root) + arg.removeprefix(ROOT)).encode()
                piece = b"X" + len(text).to_bytes(4, "little") + text
            out += piece
        return pickle.loads(bytes(out))

    return load


def numbers_in(ds):
    return [int(sample.array("npy")[0]) for sample in ds]


@pytest.mark.parametrize("name", COMMITS["2949317"])
def test_every_pickle_loads_and_pickles_again(load, name):
    loaded = load(name)
    again = pickle.loads(pickle.dumps(loaded))
    assert type(again) is type(loaded)


def test_datasets(load):
    assert numbers_in(load("dataset")) == list(range(6))
    assert numbers_in(load("pread")) == list(range(6))
    assert numbers_in(load("masked")) == [0, 2, 4]
    assert numbers_in(load("sliced")) == list(range(6))[::-1]
    ranked = load("shuffled")
    fresh = load("dataset").shuffle(seed=7, epoch=3).split_by_rank(1, 2)
    assert numbers_in(ranked) == numbers_in(fresh)
    assert load("narrowed")[4] == {"__key__": "11", "txt": "text 11", "cls": 4}
    assert load("decoders")[0].decode("txt")["txt"] == "text 00"


def test_shards_and_samples(load):
    assert bytes(load("shard")["01.txt"]) == b"text 01"
    assert bytes(load("sample")["txt"]) == b"text 11"
    assert [sample.key for sample in load("samples")] == ["01", "02"]


def test_columnar(load):
    assert sorted(int(s["x"][0]) for s in load("columnar")) == list(range(5))
    np.testing.assert_array_equal(load("column_sample")["x"], np.arange(4) + 2)
    assert len(load("reader")) == 5
    assert load("reader_samples")[3]["x"][0] == 3


def test_combined(load):
    assert len(load("mix")) > 0
    assert load("zip")[2][0].key == load("zip")[2][1].key == "02"


def test_plans_and_functions(load):
    assert load("plan") == plan_of(load("dataset").shuffle(seed=7))
    assert load("collate") is fastshard.collate
    assert load("error").offset == 7
    assert load("missing").args


@pytest.mark.parametrize("name", MOVED)
def test_an_alias_has_what_its_home_has(name):
    alias = importlib.import_module(name)
    home = importlib.import_module(MOVED[name])
    for public in getattr(home, "__all__", ()):
        assert getattr(alias, public) is getattr(home, public)
    with pytest.raises(AttributeError):
        alias.nothing_of_this_name  # noqa: B018


def test_what_code_of_before_imports():
    import fastshard.decoders
    from fastshard.build import build_index
    from fastshard.columnar.reader import ShardedDatasetReader
    from fastshard.columnar.writer import ShardedDatasetWriter

    from fastshard.dataset import Dataset

    assert build_index is fastshard.build_index
    assert Dataset is fastshard.Dataset
    assert fastshard.decoders.NpzDecoder.__name__ == "NpzDecoder"
    assert fastshard.columnar.ShardedDatasetReader is ShardedDatasetReader
    assert fastshard.columnar.ShardedDatasetWriter is ShardedDatasetWriter
    assert "NpzDecoder" in dir(fastshard.decoders)
    names = {}
    exec("from fastshard.encoders import *", names)
    assert "encode" in " ".join(names)


@pytest.mark.parametrize("name", ["adapters", "columnar", "decoders", "errors"])
def test_modules_are_attributes_of_the_package(name):
    code = f"import fastshard; fastshard.{name}"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_renamed_attributes():
    for (module, name), new in RENAMED.items():
        home = importlib.import_module(MOVED[module])
        assert getattr(importlib.import_module(module), name) is getattr(home, new)
