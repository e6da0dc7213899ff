"""torch's DataLoader with worker processes: order, state, shared memory."""

import json
import os

import pytest

from support.inside.datasets import descriptor_of, received_slots
from support.marks import LONG, not_sanitized, slow
from support.processes import run_script
from support.servers.forks import run_with_torch
from support.tars import write_numbers

try:
    import torch  # noqa: F401
except ImportError:
    pytestmark = pytest.mark.skip(reason="torch is not installed")
else:
    pytestmark = not_sanitized

# Warnings of these depend on the machine, or are of torch's own calls.
SETUP = """
import itertools, json, sys, warnings
warnings.simplefilter("error")
warnings.filterwarnings("ignore", message="This DataLoader will create")
warnings.filterwarnings("ignore", message=".set_vital")
import numpy as np, torch, fastshard
from torch.utils.data import DataLoader, RandomSampler
import fastshard.adapters.torch as ft
folder, *args = sys.argv[1:]
ds = fastshard.open(folder)

def joined(batches):
    return [n for batch in batches for n in batch["cls"].tolist()]
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_numbers(tmp_path_factory.mktemp("numbers"), 103)


@pytest.fixture
def run(folder, tmp_path):
    def start(code, *args):
        body = "\n".join(f"    {line}" for line in code.strip().splitlines())
        text = f'{SETUP}\nif __name__ == "__main__":\n{body}\n'
        spawns = {"spawn", "forkserver"}.intersection(args)
        run = run_script if spawns else run_with_torch
        return run(tmp_path, text, folder, *args)

    return start


@pytest.mark.parametrize(
    ("method", "workers"),  # each spawned worker imports torch anew
    [
        ("fork", 8),
        pytest.param("forkserver", 8 if LONG else 3, marks=slow),
        ("spawn", 8 if LONG else 2),
    ],
)
def test_many_workers_keep_the_order(run, method, workers):
    run(
        """
part = ds.shuffle(7)
want = [int(sample.text("txt")) for sample in part]
quick = args[0] == "spawn" and args[2] == "quick"  # a worker imports torch for 2 s
for collate in (ft.collate,) if quick else (fastshard.collate, ft.collate):
    loader = DataLoader(part, batch_size=8, num_workers=int(args[1]),
                        collate_fn=collate,
                        multiprocessing_context=args[0], persistent_workers=True)
    for epoch in range(2):
        batches = list(loader)
        assert joined(batches) == want
        assert batches[0]["npy"].shape == (8, 2, 3)
        assert isinstance(batches[0]["npy"], torch.Tensor) == (collate is ft.collate)
        assert batches[0]["txt"] == [str(n) for n in want[:8]]
sampler = RandomSampler(part, generator=torch.Generator().manual_seed(1))
loader = DataLoader(part, batch_size=8, num_workers=0 if quick else 2,
                    collate_fn=ft.collate,
                    multiprocessing_context=None if quick else args[0],
                    sampler=sampler)
assert sorted(joined(loader)) == list(range(103))
""",
        method,
        workers,
        "long" if LONG else "quick",
    )


@pytest.mark.parametrize("workers", [0, 2, 8])
def test_iterable_datasets_are_divided_among_workers(run, workers):
    run(
        """
part = ds.shuffle(7)
want = [int(sample.text("txt")) for sample in part]
workers = int(args[0])
whole = DataLoader(ft.IterableDataset(part, 8), batch_size=None, num_workers=workers)
assert len(whole) == 13
batches = list(whole)
assert joined(batches) == want  # the same batches with any number of workers
assert [len(batch["cls"]) for batch in batches] == [8] * 12 + [7]
drops = ft.IterableDataset(part, 8, drop_last=True)
assert len(drops) == 12
found = joined(DataLoader(drops, batch_size=None, num_workers=workers))
assert found == want[:96]
single = DataLoader(ft.IterableDataset(part), batch_size=8, num_workers=workers,
                    collate_fn=ft.collate)
assert sorted(joined(single)) == list(range(103))

class Mine(torch.utils.data.IterableDataset):  # iter() divides samples among workers
    def __iter__(self):
        return iter(part)

mine = DataLoader(Mine(), batch_size=8, num_workers=workers, collate_fn=ft.collate)
assert sorted(joined(mine)) == list(range(103))

class Whole(torch.utils.data.Dataset):  # not divided: the sampler asks for all
    def __len__(self):
        return 2
    def __getitem__(self, i):
        return len(list(ds)) + len(list(ds.iter()))

assert list(DataLoader(Whole(), batch_size=None, num_workers=workers)) == [206, 206]
ranks = []
for rank in range(3):
    share = part.split_by_rank(rank, 3, drop_last=False)
    split = ft.IterableDataset(share, 8)
    ranks += joined(DataLoader(split, batch_size=None, num_workers=workers))
assert sorted(ranks) == list(range(103))
""",
        workers,
    )


@pytest.mark.parametrize("workers", [0, 2, pytest.param(8, marks=slow)])
def test_a_stateful_loader_resumes_at_its_state(run, workers):
    pytest.importorskip("torchdata")
    run(
        """
from torchdata.stateful_dataloader import StatefulDataLoader
part = ds.shuffle(7).split_by_rank(1, 2, drop_last=False)
workers = int(args[0])

def loader(kind):
    if kind == "map":
        return StatefulDataLoader(part, 4, num_workers=workers, collate_fn=ft.collate)
    if kind == "batches":
        data, options = ft.IterableDataset(part, 4), {"batch_size": None}
    else:
        data, options = ft.IterableDataset(part), {"batch_size": 4}
        options["collate_fn"] = ft.collate
    return StatefulDataLoader(data, num_workers=workers, **options)

for kind in ("map", "batches", "samples"):
    whole = [batch["cls"].tolist() for batch in loader(kind)]
    assert len(sum(whole, [])) == 51
    for stop in (0, 1, 5, 9, len(whole)):
        first = loader(kind)
        it = iter(first)
        seen = [next(it)["cls"].tolist() for _ in range(stop)]
        state = first.state_dict()
        del it
        second = loader(kind)
        second.load_state_dict(state)
        rest = [batch["cls"].tolist() for batch in second]
        assert seen + rest == whole, (kind, stop)
""",
        workers,
    )


def test_workers_and_ranks_change_in_the_middle_of_an_epoch(run):
    run(
        """
want = [int(sample.text("txt")) for sample in ds.shuffle(7, 2)]
seen, state = [], None
for world, workers, batches in ((1, 2, 3), (2, 0, 2), (4, 3, 2), (1, 1, 99)):
    shares, states = [], []
    for rank in range(world):
        part = ds.shuffle(7, 2).split_by_rank(rank, world)
        part = part if state is None else part.resume(state)
        loader = DataLoader(part, 4, num_workers=workers, collate_fn=ft.collate)
        found = joined(itertools.islice(loader, batches))
        states.append(json.loads(json.dumps(part.state_dict(len(found)))))
        shares.append(found)
    seen += [n for step in zip(*shares, strict=True) for n in step]
    state = states[0]
    assert all(one == state for one in states)
assert seen == want
"""
    )


def test_set_epoch_reaches_persistent_workers(run):
    run(
        """
data = ft.IterableDataset(ds.shuffle(7), 8)
loader = DataLoader(data, batch_size=None, num_workers=2, persistent_workers=True)
for epoch in (0, 1, 5):
    data.set_epoch(epoch)
    want = [int(sample.text("txt")) for sample in ds.shuffle(7, epoch)]
    assert joined(loader) == want, epoch
try:
    ft.IterableDataset(ds).set_epoch(1)
except fastshard.FastshardError:
    pass
else:
    raise AssertionError
"""
    )


def test_errors_of_default_collation_have_advice(run):
    run(
        """
pairs = fastshard.zip_by_key(ds, ds)
for data in (ds, ds.map(lambda sample: sample["txt"]), pairs,
             ds.map(lambda sample: {"x": sample["npy"]}), ds.map(lambda s: dict(s))):
    try:
        next(iter(DataLoader(data, batch_size=4)))
    except fastshard.FastshardError as error:
        assert "collate_fn=fastshard.collate" in str(error)
    else:
        raise AssertionError(data)
from torch.utils.data import default_collate
assert default_collate([memoryview(bytearray(b"ab"))] * 2)[0].tolist() == [97, 97]
"""
    )


def test_default_collation_takes_read_only_arrays_without_a_warning(run):
    run(
        """
import warnings
warnings.simplefilter("error")
for mode in ("mmap", "private"):
    values = fastshard.open(folder, mode=mode).decode("npy", "cls")
    for workers in (0, 1):
        batch = next(iter(DataLoader(values, batch_size=4, num_workers=workers)))
        assert batch["npy"].shape == (4, 2, 3) and batch["npy"].dtype == torch.float32
        assert batch["npy"][:, 1, 2].tolist() == batch["cls"].tolist() == [0, 1, 2, 3]
        batch["npy"].add_(1)  # a copy
    assert values[1]["npy"][0, 0] == 1
from torch.utils.data import default_collate
frozen = np.ones(2, "f4")
frozen.flags.writeable = False
assert default_collate([frozen, np.zeros(2, "f4")]).tolist() == [[1, 1], [0, 0]]
for unequal in ([frozen, np.ones(3, "f4")], [frozen.astype("S"), frozen]):
    try:
        default_collate(unequal)
    except (RuntimeError, TypeError):
        pass
    else:
        raise AssertionError
"""
    )


def test_tensors_without_a_copy_and_without_a_warning(run):
    run(
        """
private = fastshard.open(folder, mode="private")
for data in (ds, private):
    array = data[5].array("npy")
    tensor = ft.to_tensor(array)
    assert tensor.data_ptr() == array.ctypes.data
    assert tensor.tolist() == [[5.0] * 3] * 2
tensor.add_(1)
assert array[0, 0] == 6
for array in (np.zeros(2, ">f4"), np.array(["a"]), np.zeros(2, "M8[s]")):
    try:
        ft.to_tensor(array)
    except fastshard.FastshardError as error:
        assert str(array.dtype) in str(error)
    else:
        raise AssertionError
(batch,) = ds[:4].batches(4, collate=ft.collate)
assert batch["npy"].is_contiguous() and batch["npy"][3, 1, 2] == 3
ragged = ds[:3].map(lambda s: {"x": np.arange(int(s.text("cls")))})
(batch,) = ragged.batches(3, collate=ft.collate(ragged="list"))
assert [x.tolist() for x in batch["x"]] == [[], [0], [0, 1]]
(batch,) = ragged.batches(3, collate=ft.TensorCollation("pad"))
assert batch["x"].tolist() == [[0, 0], [0, 0], [0, 1]]
assert batch["__lengths__"]["x"].tolist() == [[0], [1], [2]]
"""
    )


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=slow)])
def test_held_batches_are_not_overwritten(run, method):
    run(
        """
import random
part = ds[np.tile(np.arange(103), 40)]
want = [int(sample.text("txt")) for sample in part]
for data, options in (
    (part, {"batch_size": 8, "collate_fn": ft.collate}),
    (ft.IterableDataset(part, 8), {"batch_size": None}),
):
    loader = DataLoader(data, num_workers=3, multiprocessing_context=args[0], **options)
    held, seen, slots = [], [], set()
    rng = random.Random(0)
    for batch in loader:
        assert type(batch["npy"]) is torch.Tensor
        seen += batch["cls"].tolist()
        slots.add(batch["cls"].data_ptr())
        held.append((batch["cls"].tolist(), batch["npy"][1:], batch["cls"].view(-1, 1)))
        while len(held) > rng.choice([0, 5, 40]):
            numbers, arrays, column = held.pop(rng.randrange(len(held)))
            assert column[:, 0].tolist() == numbers
            assert arrays[:, 1, 2].tolist() == numbers[1:]
            arrays.add_(1)  # writable: the batch is a copy
    assert seen == want
    assert 3 < len(slots) < 300  # slots are reused
""",
        method,
    )


def test_tensors_derived_in_a_worker_are_sent(run):
    run(
        """
def changed(samples):
    batch = ft.collate(samples)
    batch["double"] = batch["npy"] * 2
    batch["row"] = batch["npy"][:, 0]
    batch["turned"] = batch["npy"].transpose(0, 2)
    batch["same"] = batch["cls"]
    assert type(batch["row"]) is torch.Tensor
    return batch

globals()["changed"] = changed
for batch in DataLoader(ds, 8, num_workers=2, collate_fn=changed):
    assert (batch["double"] == 2 * batch["npy"]).all()
    assert (batch["row"] == batch["npy"][:, 0]).all()
    assert (batch["turned"] == batch["npy"].transpose(0, 2)).all()
    assert batch["same"].tolist() == batch["cls"].tolist()
"""
    )


def test_workers_that_do_more_with_a_batch(run):
    run(
        """
import copy, io, os, pickle
from concurrent.futures import ThreadPoolExecutor

def grads(samples):
    batch = ft.collate(samples)
    batch["npy"].requires_grad_()
    return batch

def copies(samples):
    batch = ft.collate(samples)
    torch.save(batch["npy"], io.BytesIO())
    again = pickle.loads(pickle.dumps(batch["npy"]))
    deep = copy.deepcopy(batch)
    assert type(again) is type(deep["npy"]) is torch.Tensor
    assert (again == batch["npy"]).all() and (deep["npy"] == batch["npy"]).all()
    return deep | {"cls": batch["cls"]}

def forks(samples):
    batch = ft.collate(samples)
    child = os.fork()
    if child == 0:
        del batch
        os._exit(0)
    os.waitpid(child, 0)
    return batch

shared = ft.TensorCollation()
pool = None

def threads(samples, collate=ft.collate):
    global pool
    if pool is None or pool[0] != os.getpid():
        pool = os.getpid(), ThreadPoolExecutor(3)
    parts = list(pool[1].map(lambda sample: collate([sample]), samples))
    return {name: torch.cat([part[name] for part in parts]) for name in ("npy", "cls")}

def one(samples):  # tensors of one sample; several threads collate
    global pool
    if pool is None or pool[0] != os.getpid():
        pool = os.getpid(), ThreadPoolExecutor(3)
    parts = list(pool[1].map(lambda sample: shared([sample]), samples))
    return {"cls": [part["cls"] for part in parts]}

want = [int(s.text("txt")) for s in ds]
part = ds[np.tile(np.arange(103), 5)]
for collate in (grads, copies, forks, threads, one):
    seen, held = [], []
    for batch in DataLoader(part, 4, num_workers=2, collate_fn=collate):
        if collate is one:
            batch["cls"] = torch.cat(batch["cls"])
        seen += batch["cls"].tolist()
        if "npy" in batch:
            held.append((seen[-len(batch["cls"]):], batch["npy"]))
            held = held[-20:]
            for numbers, array in held:
                assert array[:, 1, 2].tolist() == numbers, collate
            assert batch["npy"].requires_grad == (collate is grads)
    assert seen == want * 5, collate
"""
    )


def test_a_forked_child_keeps_a_batch_that_its_parent_drops(run):
    run(
        """
import os, signal, time
part = ds[np.tile(np.arange(103), 20)]
it = iter(DataLoader(part, 8, num_workers=1, collate_fn=ft.collate))
for _ in range(10):
    batch = next(it)
numbers = batch["cls"].tolist()
ready, go = os.pipe()
child = os.fork()
if child == 0:
    os.read(ready, 1)
    os._exit(0 if batch["npy"][:, 0, 0].tolist() == numbers else 1)
for _ in range(100):
    batch = next(it)
os.write(go, b"x")
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""
    )


def test_slots_of_ended_processes_are_unmapped(run):
    run(
        """
from support.inside.datasets import drop_dead_slots, received_slots
for _ in range(3):
    for batch in DataLoader(ds, 8, num_workers=2, collate_fn=ft.collate):
        pass
assert 0 < len(received_slots()) <= 16
kept = batch["cls"].clone()
drop_dead_slots()
assert len(received_slots()) == 0
assert (batch["cls"] == kept).all()
"""
    )


def test_slots_are_free_when_neither_side_needs_them():
    from fastshard.adapters import slots

    pool = slots.Pool(0)
    slot = pool.acquire(1000)
    array = slot.allocate((10,), "f4")
    assert slot.allocate((1000,), "f4") is None
    other = slot.allocate((3, 3), "u1")
    assert not slot.is_free
    array[:] = range(10)
    address = array.__array_interface__["data"][0]
    offset = slot.offset_of(address, array.nbytes)
    assert offset == slots.HEADER
    assert slot.offset_of(address - 1, 4) is None
    assert slot.offset_of(address, slot.size) is None
    del other, array
    assert slot.is_free
    assert pool.acquire(1000) is slot
    array = slot.allocate((10,), "f4")
    array[:] = range(10)
    slot.count_sent()
    receive, (key, duplicate, *given) = slot.__reduce__()
    assert duplicate is not None
    got = (
        receive(key, _Descriptor(descriptor_of(slot)), *given)
        .array(offset, 40)
        .view("f4")
    )
    del array
    assert not slot.is_free
    assert got.tolist() == list(range(10))
    part = got[3:]
    del got
    assert not slot.is_free
    del part
    assert slot.is_free
    assert slot.__reduce__()[1][1] is None  # the peer has the descriptor
    busy = [pool.acquire(10) for _ in range(20)]
    for taken in busy[:7]:
        taken.counters.add(slots.SENT)
    assert pool.acquire(10) is not None or len(pool.slots) == slots.MAX_SLOTS
    received_slots().pop(key)


def address_of(array):
    return array.__array_interface__["data"][0]


def test_batches_of_unknown_size_have_slots():
    from fastshard.adapters import slots

    memory = slots.Slots()
    assert memory.allocate((10,), "f4") is None  # outside of a batch
    for _ in range(2):
        with memory.batch():
            labels = memory.allocate((10,), "f4")
            pictures = memory.allocate((1 << 20,), "f4")
            masks = memory.allocate((1 << 19,), "f4")
            rows = [memory.allocate((100,), "f4", 1 << 20) for _ in range(2)]
            assert memory.allocate((0,), "f4") is None
            assert memory.allocate((2,), object) is None
            found = [
                memory.find(address_of(array), array.nbytes)
                for array in (labels, pictures, masks, *rows)
            ]
            with memory.batch():  # of a decoder that collates
                assert memory.allocate((1,), "f4") is not None
            assert memory.is_open
        assert not memory.is_open
        assert found[0] not in found[1:]  # kept labels keep no pictures
        assert found[3] is found[4]
        del labels, pictures, masks, rows
    assert all(slot.is_reused for slot in found)  # of the size of the first batch


def test_a_slot_that_is_not_reused_is_sent_each_time():
    from fastshard.adapters import slots

    own = slots.make_slot(100)
    for _ in range(2):
        receive, (key, duplicate, *given) = own.__reduce__()
        assert duplicate is not None
        receive(key, _Descriptor(descriptor_of(own)), *given)
        assert key not in received_slots()


class _Descriptor:
    """A duplicate of a descriptor, as another process receives it."""

    def __init__(self, fd):
        self.fd = fd

    def detach(self):
        return os.dup(self.fd)


GLOO = """
import os, sys
import torch.distributed as dist
import torch.multiprocessing as mp
import torch, fastshard
from torch.utils.data import DataLoader
import fastshard.adapters.torch as ft

def rank(k, world, folder, store):
    dist.init_process_group("gloo", rank=k, world_size=world,
                            init_method="file://" + store)
    steps = 0
    for epoch in range(2):
        part = fastshard.open(folder).shuffle(7, epoch)
        part = part.split_by_rank(k, world)
        data = ft.IterableDataset(part, 5)
        for batch in DataLoader(data, batch_size=None, num_workers=2):
            total = batch["cls"].sum()
            dist.all_reduce(total)  # hangs if another rank has fewer batches
            steps += 1
    counts = [torch.zeros(1, dtype=torch.int64) for _ in range(world)]
    dist.all_gather(counts, torch.tensor([steps]))
    assert len({int(count) for count in counts}) == 1 and steps == 12, counts
    dist.destroy_process_group()

if __name__ == "__main__":
    args = 4, sys.argv[1], sys.argv[2]
    mp.start_processes(rank, args, nprocs=4, start_method="fork")
    print("all")
"""


def test_an_epoch_ends_on_all_ranks_at_once(folder, tmp_path):
    assert "all" in run_with_torch(tmp_path, GLOO, folder, tmp_path / "store")


def test_states_of_workers_are_json(run):
    printed = run(
        """
for batch in (None, 4):
    data = ft.IterableDataset(ds.shuffle(1), batch)
    print(json.dumps(data.state_dict()))
    it = iter(data)
    next(it)
    print(json.dumps(data.state_dict()))
"""
    )
    positions = [json.loads(line)["position"] for line in printed.splitlines()]
    assert positions == [0, 1, 0, 4]


@slow  # forks without torch are tested with the reader
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_columnar_reader_is_a_map_style_dataset(run, tmp_path, method):
    run(
        """
from fastshard.columnar import ShardedDatasetReader, ShardedDatasetWriter
with ShardedDatasetWriter(args[1]) as writer:
    writer.add_field("x")
    for i in range(50):
        writer.add_sample({"x": np.full(3, i)})
reader = ShardedDatasetReader(args[1])
for sampler in (None, RandomSampler(reader)):
    loader = DataLoader(reader, batch_size=8, num_workers=2, sampler=sampler,
                        multiprocessing_context=args[0])
    seen = [int(row[0]) for batch in loader for row in batch["x"]]
    assert sorted(seen) == list(range(50)), seen
    assert sampler is not None or seen == list(range(50)), seen
assert len(loader) == 7
""",
        method,
        tmp_path / "columns",
    )
