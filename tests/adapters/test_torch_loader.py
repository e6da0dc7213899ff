"""Batches of tensors that threads make, on the loader's memory or on a device."""

import json

import numpy as np
import pytest

import fastshard

torch = pytest.importorskip("torch", reason="torch has no wheel for this Python")

from fastshard.adapters.torch import TensorLoader, loader  # noqa: E402
from fastshard.errors import FastshardError  # noqa: E402

COUNT, SIZE = 100, 8
HAS_CUDA = torch.cuda.is_available()
with_cuda = pytest.mark.skipif(not HAS_CUDA, reason="no CUDA on this machine")
without_cuda = pytest.mark.skipif(HAS_CUDA, reason="this machine has CUDA")


@pytest.fixture(scope="module")
def ds(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    with fastshard.ShardWriter(folder / "{:04d}.tar", max_count=30) as writer:
        for i in range(COUNT):
            vector = np.full(512, i, "f4")
            ragged = np.full(1 + i % 3, i, "i8")
            sample = {"npy": vector, "cls": i, "txt": f"text {i}", "r.npy": ragged}
            writer.write({"__key__": f"{i:06d}", **sample})
    return fastshard.open(folder)


def as_lists(batch):
    """Return a batch as plain Python, which `==` compares."""
    if isinstance(batch, dict):
        return {name: as_lists(value) for name, value in batch.items()}
    if isinstance(batch, list):
        return [as_lists(value) for value in batch]
    return batch.tolist() if hasattr(batch, "tolist") else batch


def test_batches_are_those_of_the_dataset(ds):
    shuffled = ds.shuffle(7)
    with loader(shuffled, SIZE) as tensors:
        assert len(tensors) == 13
        found = [as_lists(batch) for batch in tensors]
    assert found == [as_lists(batch) for batch in shuffled.batches(SIZE)]


def test_fields_are_tensors_that_may_be_written_to(ds):
    with loader(ds, SIZE) as tensors:
        for batch in tensors:
            assert (batch["npy"].dtype, batch["cls"].dtype) == (
                torch.float32,
                torch.int64,
            )
            before = batch["npy"].clone()
            batch["npy"].add_(1)
            for each in batch["r.npy"]:
                each.add_(1)
            assert torch.equal(batch["npy"], before + 1)
    assert next(ds.batches(1))["npy"].sum() == 0


@pytest.mark.parametrize(("ahead", "hold"), [(0, 1), (2, 1), (1, 3)])
def test_tensors_are_on_the_memory_of_the_ring(ds, ahead, hold):
    vectors = ds.select_fields("npy")
    with loader(vectors, SIZE, ahead=ahead, hold=hold) as tensors:
        places = [batch["npy"].data_ptr() for batch in tensors]
    assert len(set(places)) <= ahead + hold + 1 < len(places)


def test_copies_stay_as_they_are(ds):
    with loader(ds, SIZE, copy=True) as tensors:
        batches = list(tensors)
    for k, batch in enumerate(batches):
        assert batch["npy"][:, 0].tolist() == list(range(COUNT))[k * SIZE :][:SIZE]


def test_a_cpu_as_device_is_the_memory_of_the_ring(ds):
    with loader(ds.select_fields("npy"), SIZE, device="cpu", ahead=0) as tensors:
        places = {batch["npy"].data_ptr() for batch in tensors}
    assert len(places) <= 2


def test_tensors_are_sent_to_a_device(ds):
    with loader(ds, SIZE, device="meta") as tensors:
        batch = next(tensors)
    assert batch["npy"].device.type == batch["r.npy"][0].device.type == "meta"
    assert batch["txt"] == [f"text {i}" for i in range(SIZE)]


def test_a_state_continues_as_that_of_batches(ds):
    shuffled = ds.shuffle(7)
    with loader(shuffled, SIZE) as tensors:
        done = [next(tensors)["cls"].tolist() for _ in range(3)]
        state = json.loads(json.dumps(tensors.state_dict()))
    rest = [batch["cls"].tolist() for batch in shuffled.batches(SIZE, state=state)]
    with loader(shuffled, SIZE, state=state) as tensors:
        assert rest == [batch["cls"].tolist() for batch in tensors]
    assert sorted(i for batch in done + rest for i in batch) == list(range(COUNT))


def test_statistics_count_batches(ds):
    with loader(ds, SIZE) as tensors:
        for _ in tensors:
            pass
        assert (tensors.stats().batches, tensors.stats().samples) == (13, COUNT)


def test_a_replay_gives_tensors_of_the_ring(ds):
    with loader(ds.select_fields("npy"), SIZE) as tensors:
        next(tensors)
        replayed = list(tensors.replay(2))
    assert replayed
    assert all(isinstance(batch["npy"], torch.Tensor) for batch in replayed)


def test_a_closed_loader_has_no_batches(ds):
    tensors = loader(ds, SIZE)
    next(tensors)
    tensors.close()
    assert list(tensors) == []


def test_options_are_checked(ds):
    with pytest.raises(ValueError, match="threads"):
        loader(ds, SIZE, threads=0)
    with pytest.raises(TypeError, match="colate"):
        loader(ds, SIZE, colate=None)


def test_a_dtype_that_torch_lacks_is_an_error(ds):
    texts = ds.map(lambda sample: {"a": np.array("text")})
    with loader(texts, SIZE) as tensors, pytest.raises(FastshardError, match="<U4"):
        next(tensors)


@without_cuda
@pytest.mark.parametrize(
    ("options", "said"),
    [({"pin": True}, "pin=True"), ({"device": "cuda:0"}, "device='cuda:0'")],
)
def test_cuda_is_refused_by_name_where_there_is_none(ds, options, said):
    with pytest.raises(FastshardError, match=f"{said} needs CUDA"):
        loader(ds, SIZE, **options)


def test_pinned_memory_excludes_other_memory(ds, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(ValueError, match="exclude"):
        loader(ds, SIZE, pin=True, allocate=lambda *_: None)


class FakeEvent:
    """CUDA event that writes down what happens to it."""

    log: list = []  # noqa: RUF012 - set by each test
    count = 0

    def record(self, stream):
        self.number = FakeEvent.count
        FakeEvent.count += 1
        self.log.append(("recorded", self.number))

    def synchronize(self):
        self.log.append(("awaited", self.number))


class FakeLoader:
    """Loader of one array that writes down when batches are asked for."""

    def __init__(self, log):
        self.log = log

    def __next__(self):
        self.log.append("next")
        return {"npy": np.zeros(1)}

    def close(self):
        self.log.append("close")


class CopyingLoader(TensorLoader):
    def _send(self, tensor, device):
        return tensor.clone()


@pytest.mark.parametrize("hold", [1, 2])
def test_memory_is_lent_until_its_copy_has_ended(monkeypatch, hold):
    log = []
    monkeypatch.setattr(FakeEvent, "log", log)
    monkeypatch.setattr(FakeEvent, "count", 0)
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: None)
    tensors = CopyingLoader(FakeLoader(log), torch.device("cuda"), hold)

    for _ in range(4):
        next(tensors)
    tensors.close()

    asked = [at for at, what in enumerate(log) if what == "next"]
    for k in range(4):
        # The loader writes to batch k's memory when batch k + hold is asked for.
        written = asked[k + hold] if k + hold < 4 else log.index("close")
        assert log.index(("recorded", k)) < log.index(("awaited", k)) < written


@with_cuda
@pytest.mark.parametrize("pin", [False, True])
def test_copies_on_a_device_are_whole(ds, pin):
    with loader(ds, SIZE, pin=pin, device="cuda") as tensors:
        batches = list(tensors)
    for k, batch in enumerate(batches):
        assert batch["npy"].device.type == "cuda"
        assert batch["npy"][:, 0].tolist() == list(range(COUNT))[k * SIZE :][:SIZE]


@with_cuda
def test_pinned_batches_are_in_pinned_memory(ds):
    with loader(ds, SIZE, pin=True) as tensors:
        assert all(batch["npy"].is_pinned() for batch in tensors)
