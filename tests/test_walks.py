"""The walks of the first calls: files, returns, and the modules they import."""

import subprocess
import sys

import numpy as np
import pytest

import fastshard
from fastshard.columnar import ShardedDatasetWriter
from support.builders import BUILDERS
from support.processes import environment
from support.walks import Walk, trace_walk

SAMPLES = [
    (f"{i:06d}", {"x": np.full(40, i, "f4"), "y": np.arange(1 + i % 9)})
    for i in range(60)
]
MODULES = """
import sys, fastshard
dataset = fastshard.open(sys.argv[1])
assert len(dataset) == 60
print(*sys.modules)
"""
# The remote floor, and imports of progress bars and clients of servers.
UNUSED = ("fastshard.remote", "tqdm", "importlib.metadata", "email", "socket")
UNUSED_BY = {"tar": ("numpy",), "mds": ("numpy",)}  # the first array needs it
MOST = {"tar": (8, 5), "columnar": (14, 9), "mds": (14, 9)}


@pytest.fixture(autouse=True)
def without_torch(monkeypatch):
    """Hide torch: where a program has imported it, its collation is prepared."""
    monkeypatch.delitem(sys.modules, "torch", raising=False)


@pytest.fixture
def make(tmp_path):
    """Return a function that makes a dataset of a format in ``tmp_path / "data"``."""

    def build(name):
        BUILDERS[name].build(tmp_path / "data", SAMPLES)
        return tmp_path / "data"

    return build


def test_returns_are_steps_into_files_left_before():
    walk = Walk(["a.py", "b.py", "a.py", "c.py", "b.py"])
    assert (walk.files, walk.returns) == ({"a.py", "b.py", "c.py"}, 2)


def test_a_walk_has_the_files_of_called_functions():
    shape = fastshard._core.dataset  # compiled modules have no walk
    assert trace_walk(lambda: vars(shape)).steps == []
    walk = trace_walk(lambda: fastshard.formats.registry.tar_format("packed"))
    assert walk.steps == ["formats/registry.py"]


@pytest.mark.parametrize("name", MOST)
def test_open_of_a_directory(make, name):
    folder = make(name)
    files, returns = MOST[name]
    trace_walk(lambda: fastshard.open(folder)).check(files=files, returns=returns)


@pytest.mark.parametrize("name", MOST)
def test_open_and_len_of_a_directory_import_no_client(make, name):
    command = [sys.executable, "-c", MODULES, str(make(name))]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    unused = tuple(f"{each}." for each in (*UNUSED, *UNUSED_BY.get(name, ())))
    found = done.stdout.split()
    assert [each for each in found if f"{each}.".startswith(unused)] == []


def test_columnar_writer_that_adds_a_sample(tmp_path):
    numbers = iter(range(2))

    def add():
        with ShardedDatasetWriter(tmp_path) as writer:
            writer.add_field("x")
            writer.add_sample({"x": np.arange(3)}, f"{next(numbers)}")

    trace_walk(add).check(files=20, returns=60)
