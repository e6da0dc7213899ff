"""Batches of torch's workers with little shared memory: all samples, or an error."""

import sys

import numpy as np
import pytest

import fastshard
from support.marks import LONG, not_sanitized, slow
from support.processes import run_on_mount
from support.servers.forks import run_with_torch
from support.tars import write_numbers

try:
    import torch  # noqa: F401
except ImportError:
    pytestmark = pytest.mark.skip(reason="torch is not installed")
else:
    pytestmark = not_sanitized

END_WORKERS = """
import multiprocessing, signal

def end_workers():  # torch waits 5 seconds for each after an error
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for worker in multiprocessing.active_children():
        worker.kill()
"""

SCRIPT = """
import gc, sys, warnings
warnings.filterwarnings("ignore", message="This DataLoader will create")
import numpy as np, torch, fastshard
import fastshard.adapters.torch as ft
from torch.utils.data import DataLoader, IterableDataset, default_collate
COUNT, SIZE = int(sys.argv[2]), 256
ds = fastshard.open(sys.argv[1])[np.arange(COUNT) % 8]
want = [n % 8 for n in range(COUNT)]

def as_values(sample):
    return {"npy": sample.array("npy"), "cls": int(sample.text("cls"))}

def as_ragged(sample):
    label = int(sample.text("cls"))
    return {"npy": sample.array("npy")[: 224 - label], "cls": label}

def as_tensors(sample):
    values = as_values(sample)
    return values | {"npy": torch.tensor(values["npy"])}

def as_ragged_tensors(sample):
    return {"npy": torch.tensor(as_ragged(sample)["npy"]), "cls": sample.text("cls")}

def as_pair(sample):
    return as_values(sample), (sample.array("npy")[:, 0], sample.text("cls"))

def doubled(samples):
    batch = ft.collate(samples)
    return batch | {"npy": batch["npy"] * 1}

def from_pair(batch):
    values, (rows, labels) = batch
    assert rows[:, 0, 0].tolist() == list(map(int, labels))
    return values

def loaders(kind, workers):
    if kind == "loader":
        return map(dict, ds.loader(SIZE))
    map_style = {"batch_size": SIZE, "num_workers": workers}
    if kind == "map":
        return DataLoader(ds, collate_fn=ft.collate, **map_style)
    if kind == "iterable":
        data = ft.IterableDataset(ds, SIZE)
        return DataLoader(data, batch_size=None, num_workers=workers)
    if kind in ("ragged", "tensors", "ragged_tensors"):
        data = ds.map(globals()["as_" + kind])
        return DataLoader(data, collate_fn=ft.collate(ragged="list"), **map_style)
    if kind == "pairs":
        data = DataLoader(ds.map(as_pair), collate_fn=ft.collate, **map_style)
        return map(from_pair, data)
    if kind == "derived":  # torch's own memory, by the user's function
        return DataLoader(ds, collate_fn=doubled, **map_style)
    if kind == "default":
        return DataLoader(ds.map(as_values), **map_style)
    if kind == "samples":  # single ones, collated by torch
        data = ft.IterableDataset(ds.map(as_values))
        return DataLoader(data, **map_style)
    assert kind == "single"  # converted by torch, one by one
    data = ft.IterableDataset(ds.map(as_values))
    return DataLoader(data, batch_size=None, num_workers=workers)

def labels(batch):
    found = torch.as_tensor(list(map(int, batch["cls"])) if isinstance(
        batch["cls"], list) else batch["cls"]).reshape(-1)
    pictures = batch["npy"]
    if not isinstance(pictures, list) and len(pictures.shape) == 3:
        pictures = pictures[None]
    assert len(pictures) == len(found)
    for picture, label in zip(pictures, found):
        assert picture[0, 0, 0] == picture[-1, -1, -1] == label
    return found.tolist()

def hung(*args):
    raise TimeoutError

def load(kind, workers, keep):
    kept, found = [], []
    for batch in loaders(kind, int(workers)):
        found += labels(batch)
        if keep == "kept":
            kept.append(batch)
    for batch in kept:
        labels(batch)
    complete = sorted(found) == sorted(want)
    complete &= found == want or kind in ("samples", "single")
    return "all" if complete else f"lost {COUNT - len(found)}"

def outcome(config):
    signal.alarm(30)
    try:
        return load(*config.split(":"))
    except TimeoutError:
        return "hung"
    except Exception as error:
        end_workers()
        return "error " + " ".join(str(error).split())
    finally:
        signal.alarm(0)

if __name__ == "__main__":
    signal.signal(signal.SIGALRM, hung)
    for config in sys.argv[3:]:
        print(config, outcome(config))
        gc.collect()  # batches in tracebacks
"""

NO_MEMFD = """
import os
del os.memfd_create
"""


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """A shard of 8 pictures of 150 KB, each of one value: its label."""
    folder = tmp_path_factory.mktemp("pictures")
    with fastshard.ShardWriter(folder / "p-{}.tar") as writer:
        for i in range(8):
            picture = np.full((224, 224, 3), i, "u1")
            writer.write({"__key__": str(i), "npy": picture, "cls": i})
    return folder


@pytest.fixture
def outcomes(pictures, tmp_path):
    """Load with the given MB of ``/dev/shm``; return each configuration's outcome."""

    def run(megabytes, configs, setup=""):
        mount = f"mount -t tmpfs -o size={megabytes}m tmpfs /dev/shm"
        script = tmp_path / "loads.py"
        script.write_text(setup + END_WORKERS + SCRIPT)
        count = 2048 if LONG else 1024
        words = f"{sys.executable} {script} {pictures} {count} {' '.join(configs)}"
        done = run_on_mount(mount, f"exec {words}", 60 * len(configs))
        assert done.returncode == 0, done.stdout + done.stderr
        lines = [line.split(" ", 1) for line in done.stdout.splitlines()]
        assert [config for config, _ in lines] == configs, done.stdout + done.stderr
        return dict(lines)

    return run


def matrix(kinds, workers, keeps):
    return [f"{k}:{n}:{keep}" for k in kinds for n in workers for keep in keeps]


LITTLE = {64: [1, 2, 4], 32: [2], 16: [2]}  # MB of /dev/shm: numbers of workers
SIZES = [16, pytest.param(64, marks=slow)]


@pytest.mark.parametrize(
    "megabytes", [64, *(pytest.param(n, marks=slow) for n in (32, 16))]
)
def test_batches_arrive_with_little_shared_memory(outcomes, megabytes):
    workers = [1, 2, 4] if LONG else LITTLE[megabytes]
    keeps = ["dropped", "kept"] if LONG else ["kept"]
    configs = matrix(["map", "iterable"], workers, keeps)
    configs.append("loader:0:dropped")
    found = outcomes(megabytes, configs)
    assert found == dict.fromkeys(configs, "all")


def test_all_that_collate_returns_needs_no_shared_memory(outcomes):
    kinds = ["ragged", "tensors", "ragged_tensors", "pairs"]
    configs = matrix(kinds, [1, 4] if LONG else [2], ["kept"])
    found = outcomes(16, configs)
    assert found == dict.fromkeys(configs, "all")


@pytest.mark.parametrize("megabytes", SIZES)
def test_too_little_shared_memory_is_an_error(outcomes, megabytes):
    """For tensors that torch itself moves: it needs /dev/shm."""
    kinds = ["derived", "default", "samples", "single"]
    found = outcomes(megabytes, matrix(kinds, [1, 4] if LONG else [2], ["kept"]))
    for config, outcome in found.items():
        assert outcome.startswith("error"), (config, outcome)
        assert "No space left" in outcome, (config, outcome)
        if config.startswith(("derived", "single")):
            assert "--shm-size" in outcome, (config, outcome)


def test_batches_arrive_without_memfd(outcomes):
    kinds = ["map", "iterable", "ragged", "tensors", "ragged_tensors"]
    configs = matrix(kinds, [1, 4] if LONG else [2], ["dropped"])
    found = outcomes(4096, configs, NO_MEMFD)
    assert found == dict.fromkeys(configs, "all")


@pytest.mark.parametrize("megabytes", SIZES)
def test_without_memfd_too_little_shared_memory_is_an_error(outcomes, megabytes):
    kinds = ["map", "iterable", "ragged", "tensors", "ragged_tensors"]
    configs = matrix(kinds, [1, 4] if LONG else [2], ["kept"])
    for config, outcome in outcomes(megabytes, configs, NO_MEMFD).items():
        assert outcome.startswith("error"), (config, outcome)
        assert "--shm-size" in outcome, (config, outcome)


UNSENT = """
import sys, numpy, fastshard
import fastshard.adapters.torch as ft
from torch.utils.data import DataLoader
try:
    from torchdata.stateful_dataloader import StatefulDataLoader
except ImportError:
    StatefulDataLoader = None
ds = fastshard.open(sys.argv[1])[:20]

def unpicklable(samples):
    last = samples[-1].key == "000019"
    return {"cls": ft.collate(samples)["cls"], "x": (lambda: 0) if last else None}

def loaders():
    yield DataLoader(ds, 4, num_workers=2, collate_fn=unpicklable)
    batches = ft.IterableDataset(ds, 4, collate=unpicklable)
    yield DataLoader(batches, batch_size=None, num_workers=2)
    if StatefulDataLoader is not None:
        yield StatefulDataLoader(ds, 4, num_workers=2, collate_fn=unpicklable)
    samples = ft.IterableDataset(ds)
    yield DataLoader(samples, batch_size=4, num_workers=1, collate_fn=unpicklable)

for loader in loaders():
    found = []
    try:
        for batch in loader:
            found += batch["cls"].tolist()
    except fastshard.FastshardError as error:
        assert "cannot send a batch" in str(error) and "lambda" in str(error), error
    else:
        raise AssertionError(found)
    assert found == list(range(16)), found
    end_workers()
print("all")
"""


@pytest.fixture
def numbers(tmp_path):
    return write_numbers(tmp_path / "numbers", 103)


def test_a_batch_that_cannot_be_pickled_is_an_error(numbers, tmp_path):
    assert (
        run_with_torch(tmp_path, END_WORKERS + UNSENT, numbers, timeout=60) == "all\n"
    )


OUT = """
import sys, fastshard
import fastshard.adapters.torch as ft
from torch.utils.data import DataLoader
ds = fastshard.open(sys.argv[1])[[n % 103 for n in range(4000)]]
want = [n % 103 for n in range(4000)]
batches = ft.IterableDataset(ds, 8, collate=ft.TensorCollation(out={}))
for data, options in (
    (ds, {"batch_size": 8, "collate_fn": ft.TensorCollation(out={})}),
    (batches, {"batch_size": None}),
):
    found = []
    for batch in DataLoader(data, num_workers=2, **options):
        found += batch["cls"].tolist()
        assert batch["npy"][:, 1, 2].tolist() == batch["cls"].tolist()
    assert found == want
print("all")
"""


def test_output_arrays_of_a_worker_are_not_overwritten_before_they_are_sent(
    numbers, tmp_path
):
    assert run_with_torch(tmp_path, OUT, numbers) == "all\n"


LABELS = """
import os, sys, numpy as np, fastshard
import fastshard.adapters.torch as ft
from torch.utils.data import DataLoader
ds = fastshard.open(sys.argv[1])[np.arange(960) % 8]

def resident():
    total, is_slot = 0, False
    with open("/proc/self/smaps") as file:
        for line in file:
            words = line.split()
            if "-" in words[0]:
                is_slot = "memfd:fastshard" in line
            elif is_slot and words[0] == "Rss:":
                total += int(words[1])
    return total // 1024

for data, options in (
    (ds, {"batch_size": 16, "collate_fn": ft.collate}),
    (ft.IterableDataset(ds, 16), {"batch_size": None}),
):
    iterator = iter(DataLoader(data, num_workers=1, **options))
    labels = []
    for _ in range(50):
        batch = next(iterator)
        assert batch["npy"].sum() == batch["cls"].sum() * 224 * 224 * 3  # 2 MB
        labels.append(batch["cls"])
    print(resident())
    list(iterator)
    assert [n for row in labels for n in row.tolist()] == [n % 8 for n in range(800)]
"""


def test_kept_labels_keep_no_pictures(pictures, tmp_path):
    """Of 50 batches of 2 MB: some are under way."""
    printed = run_with_torch(tmp_path, LABELS, pictures)
    assert all(int(line) < 15 for line in printed.split())
