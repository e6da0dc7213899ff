"""Batches of tensors that threads make, on the loader's memory or on a device."""

import json

import numpy as np
import pytest

import fastshard

torch = pytest.importorskip("torch")

from fastshard.adapters.torch import TensorLoader, loader  # noqa: E402
from fastshard.errors import ClosedError, FastshardError  # noqa: E402
from support.inside.datasets import copies_of  # noqa: E402

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
    with loader(shuffled, SIZE, ragged="list") as tensors:
        assert len(tensors) == 13
        found = [as_lists(batch) for batch in tensors]
    assert found == [as_lists(batch) for batch in shuffled.batches(SIZE, ragged="list")]


def test_fields_are_tensors_that_may_be_written_to(ds):
    with loader(ds, SIZE, ragged="list") as tensors:
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


@pytest.mark.parametrize("ahead", [0, 2])
@pytest.mark.parametrize("device", [None, "cpu"])
def test_tensors_are_on_the_memory_of_the_ring(ds, ahead, device):
    vectors = ds.select_fields("npy")
    with loader(vectors, SIZE, ahead=ahead, device=device) as tensors:
        places = [batch["npy"].data_ptr() for batch in tensors]
    assert len(set(places)) <= ahead + 2 < len(places)


KEPT = {
    "batch": lambda tensor: tensor,
    "row": lambda tensor: tensor[1],
    "view": lambda tensor: tensor.view(-1)[8:],
    "detached": lambda tensor: tensor.detach(),
    "array": lambda tensor: tensor.numpy(),
    "DLPack": lambda tensor: np.from_dlpack(tensor)[1:],
}


@pytest.mark.parametrize("part", KEPT)
def test_kept_tensors_are_not_written_over(ds, part):
    with loader(ds, SIZE, ragged="list") as tensors:
        kept = [KEPT[part](batch["npy"]) for batch in tensors]
    batches = ds.batches(SIZE, ragged="list")
    expected = [KEPT[part](torch.tensor(batch["npy"])) for batch in batches]
    assert [as_lists(x) for x in kept] == [as_lists(x) for x in expected]


def test_epochs_follow_each_other(ds):
    with loader(ds.shuffle(7), SIZE, ragged="list") as tensors:
        for epoch in range(3):
            assert (tensors.epoch, len(tensors)) == (epoch, 13)
            found = [as_lists(batch) for batch in tensors]
            batches = ds.shuffle(7, epoch).batches(SIZE, ragged="list")
            assert found == [as_lists(batch) for batch in batches]
        tensors.set_epoch(1)
        one, other = iter(tensors), iter(tensors)
        next(one), next(one), next(other)
        assert (len(one), len(other)) == (11, 12)
        assert other.state_dict()["position"] == other.position == SIZE
        state = one.state_dict()
        tensors.load_state_dict(state)
        tensors.set_epoch(1)
        assert as_lists(next(iter(tensors))) == as_lists(next(one))


def test_tensors_are_sent_to_a_device(ds):
    with loader(ds, SIZE, device="meta", ragged="list") as tensors:
        batch = next(tensors)
    assert batch["npy"].device.type == batch["r.npy"][0].device.type == "meta"
    assert batch["txt"] == [f"text {i}" for i in range(SIZE)]


def test_a_state_continues_as_that_of_batches(ds):
    shuffled = ds.shuffle(7)
    with loader(shuffled, SIZE, ragged="list") as tensors:
        done = [next(tensors)["cls"].tolist() for _ in range(3)]
        state = json.loads(json.dumps(tensors.state_dict()))
    rest = [
        batch["cls"].tolist()
        for batch in shuffled.batches(SIZE, state=state, ragged="list")
    ]
    with loader(shuffled, SIZE, state=state, ragged="list") as tensors:
        assert rest == [batch["cls"].tolist() for batch in tensors]
    assert sorted(i for batch in done + rest for i in batch) == list(range(COUNT))


def test_statistics_count_batches(ds):
    with loader(ds, SIZE, ragged="list") as tensors:
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
    tensors = loader(ds, SIZE, ragged="list")
    next(tensors)
    tensors.close()
    assert next(tensors, None) is None
    with pytest.raises(ClosedError):
        iter(tensors)


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
def test_cuda_is_refused_by_name_without_a_device(ds, options, said):
    with pytest.raises(FastshardError, match=f"{said} needs CUDA"):
        loader(ds, SIZE, **options)


def test_pinned_memory_excludes_other_memory(ds, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(ValueError, match="exclude"):
        loader(ds, SIZE, pin=True, allocate=lambda *_: None)


class FakeEvent:
    """CUDA event that records its calls."""

    log: list = []  # noqa: RUF012 - set by each test

    def record(self, stream):
        self.log.append("recorded")

    def synchronize(self):
        self.log.append("awaited")


class CopyingLoader(TensorLoader):
    def _send(self, tensor, device):
        return tensor.clone()


def test_memory_is_kept_until_its_copy_has_ended(ds, monkeypatch):
    log = []
    monkeypatch.setattr(FakeEvent, "log", log)
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: None)
    part = ds.select_fields("npy")
    with part.loader(SIZE, threads=2) as batches:
        tensors = CopyingLoader(batches, torch.device("cuda"))
        for k, _ in enumerate(tensors, 1):
            assert log.count("recorded") == k
            assert log.count("awaited") == k - 1
            (_, kept), *_ = copies_of(tensors)
            assert (
                kept["npy"][:, 0].tolist()
                == list(range(COUNT))[(k - 1) * SIZE :][:SIZE]
            )
        tensors.close()
    assert log.count("awaited") == log.count("recorded") == 13


def test_pinned_batches_are_on_the_storage_of_their_allocator(ds, monkeypatch):
    """Made without a GPU: torch.empty ignores `pin_memory`."""
    made = []

    def empty(nbytes, *, dtype, pin_memory):
        assert pin_memory
        made.append(plain_empty(nbytes, dtype=dtype))
        return made[-1]

    plain_empty = torch.empty
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch, "empty", empty)
    with loader(ds, SIZE, pin=True, ragged="list") as tensors:
        batches = list(tensors)
    storages = {memory.untyped_storage()._cdata for memory in made}
    assert len(storages) == len(made) == 2 * len(batches)  # each batch has its own
    for batch, expected in zip(batches, ds.batches(SIZE, ragged="list"), strict=True):
        assert as_lists(batch) == as_lists(expected)
        assert {batch[n].untyped_storage()._cdata for n in ("npy", "cls")} <= storages


@with_cuda
@pytest.mark.parametrize("pin", [False, True])
def test_copies_on_a_device_are_whole(ds, pin):
    with loader(ds, SIZE, pin=pin, device="cuda", ragged="list") as tensors:
        batches = list(tensors)
    for k, batch in enumerate(batches):
        assert batch["npy"].device.type == "cuda"
        assert batch["npy"][:, 0].tolist() == list(range(COUNT))[k * SIZE :][:SIZE]


@with_cuda
def test_pinned_batches_are_in_pinned_memory(ds):
    with loader(ds, SIZE, pin=True, ragged="list") as tensors:
        assert all(batch["npy"].is_pinned() for batch in tensors)


@with_cuda
@pytest.mark.parametrize("pin", [False, True])
def test_copies_that_the_user_begins_are_whole(ds, pin):
    """A part of a pinned batch too: torch's allocator waits for the copy."""
    with loader(ds, SIZE, pin=pin, ragged="list") as tensors:
        kept = [
            (batch["npy"].to("cuda", non_blocking=True), batch["npy"][2:].cuda())
            for batch in tensors
        ]
    torch.cuda.synchronize()
    for k, (whole, part) in enumerate(kept):
        expected = list(range(COUNT))[k * SIZE :][:SIZE]
        assert whole[:, 0].tolist() == expected
        assert part[:, 0].tolist() == expected[2:]
