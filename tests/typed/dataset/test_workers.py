"""Typed datasets in worker processes and threads: torch, grain, fork, pickles."""

import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from fastshard import typed
from support.marks import forks_beside_threads, not_sanitized, slow
from support.processes import run_script
from support.typed.photos import Photo, is_odd, label_of, write_photos

ODD = list(range(1, 30, 2))


@pytest.fixture
def photos(tmp_path):
    return typed.Dataset[Photo](write_photos(tmp_path))


def numbers(samples):
    return [sample.number for sample in samples]


@not_sanitized
@pytest.mark.parametrize(
    "method",
    [
        pytest.param("fork", marks=forks_beside_threads),
        pytest.param("forkserver", marks=slow),
        "spawn",
    ],
)
def test_torch_workers_of_any_start_method(photos, method):
    torch = pytest.importorskip("torch")
    from fastshard.adapters.torch import collate

    if sys.platform == "win32" and method != "spawn":
        pytest.skip("no fork on Windows")
    dataset = photos.shuffle(seed=3).filter(is_odd)
    loader = torch.utils.data.DataLoader(
        dataset,
        batch_size=4,
        num_workers=1 if method == "spawn" else 2,  # a spawned one imports torch
        collate_fn=collate,
        multiprocessing_context=method,
    )
    batches = list(loader)
    found = [n for batch in batches for n in batch["number"]]
    assert found == numbers(dataset)
    assert batches[0]["image"].shape == (4, 2, 3)


def test_torch_collates_typed_samples_by_default(photos):
    torch = pytest.importorskip("torch")
    loader = torch.utils.data.DataLoader(photos, batch_size=4)
    batch = next(iter(loader))
    assert batch["number"].tolist() == [0, 1, 2, 3]
    assert batch["label"] == ["photo 0", "photo 1", "photo 2", "photo 3"]
    assert batch["image"].shape == (4, 2, 3)
    batch["image"] += 1  # a copy: the shards are read-only


@not_sanitized
@forks_beside_threads
@pytest.mark.skipif(sys.platform == "win32", reason="no fork on Windows")
def test_torch_workers_divide_an_iterable_dataset(photos):
    torch = pytest.importorskip("torch")
    from fastshard.adapters.torch import IterableDataset

    dataset = photos.filter(is_odd).shuffle(seed=3)
    batches = IterableDataset(dataset, batch_size=4)
    loader = torch.utils.data.DataLoader(
        batches, batch_size=None, num_workers=2, multiprocessing_context="fork"
    )
    found = [n for batch in loader for n in batch["number"]]
    assert found == numbers(dataset)


def test_the_share_of_a_worker_resumes(photos, monkeypatch):
    import fastshard.dataset.dataset
    import fastshard.typed.dataset
    from fastshard.dataset.sequence import base

    def share(k):
        for module in (base, fastshard.typed.dataset):
            monkeypatch.setattr(module, "current_worker", lambda: (k, 2))

    dataset = photos.filter(is_odd)
    share(0)
    iterator = dataset.iter()
    first = [next(iterator).number for _ in range(3)]
    state = iterator.state_dict()
    rest = numbers(dataset.iter(state))
    share(1)
    other = numbers(dataset.iter())
    assert Counter(first + rest + other) == Counter(ODD)


GRAIN = """
import sys
import grain.python as old
import numpy as np
from numpy.typing import NDArray
from fastshard import typed

@typed.packable
class Photo:
    number: int
    label: str
    image: NDArray[np.float32]

def is_odd(photo):
    return photo.number % 2 == 1

class Values(old.MapTransform):
    def map(self, sample):
        return {"image": np.array(sample.image), "number": sample.number}

def loader(source, workers):
    sampler = old.IndexSampler(len(source), old.NoSharding(), shuffle=True, seed=3,
                               num_epochs=1)
    return old.DataLoader(data_source=source, sampler=sampler, worker_count=workers,
                          operations=[Values(), old.Batch(5)])

if __name__ == "__main__":
    from absl import flags
    flags.FLAGS(["test"])
    source = typed.Dataset[Photo](sys.argv[1]).filter(is_odd)
    assert isinstance(source, old.RandomAccessDataSource)
    it = iter(loader(source, 2))
    first = next(it)
    assert first["image"].shape == (5, 2, 3)
    state = it.get_state()
    rest = [batch["number"].tolist() for batch in it]
    again = iter(loader(source, 2))
    again.set_state(state)
    assert [batch["number"].tolist() for batch in again] == rest
    assert sorted(first["number"].tolist() + sum(rest, [])) == list(range(1, 30, 2))
    print("done")
"""


@slow  # as those of grain with samples without types
@not_sanitized
def test_grain_reads_typed_samples(tmp_path):
    pytest.importorskip("grain")
    assert "done" in run_script(tmp_path, GRAIN, write_photos(tmp_path))


def test_threads_share_a_dataset(photos):
    dataset = photos.filter(is_odd).map(label_of)

    def read(k):
        return [dataset[i] for i in range(k % 3, 15)], list(dataset), len(dataset)

    with ThreadPoolExecutor(4) as pool:
        for k, (some, every, count) in enumerate(pool.map(read, range(12))):
            assert every == [f"photo {i}" for i in ODD]
            assert some == every[k % 3 :]
            assert count == 15


def test_another_thread_in_an_iterator_is_refused(photos):
    iterator = photos.filter(lambda photo: next(iterator)).iter()
    with pytest.raises(ValueError, match="another thread is in this iterator"):
        next(iterator)
