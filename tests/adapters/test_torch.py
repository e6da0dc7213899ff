"""Tensors on views, in child processes: some cases crash."""

import pytest

import fastshard
from support.marks import not_sanitized, slow
from support.processes import run_script
from support.servers.forks import run_forked, run_with_torch
from support.tars import write_tar

try:
    import torch  # noqa: F401
except ImportError:
    pytestmark = pytest.mark.skip(reason="torch is not installed")
else:
    pytestmark = not_sanitized

# `test_torch_loading` has spawned workers, of which each imports torch for seconds.
START_METHODS = pytest.mark.parametrize(
    "method", ["fork", pytest.param("spawn", marks=slow)]
)


def run(code, path):
    """Return a function that runs code with `shard`, `torch`, recorded warnings."""
    setup = (
        "import sys, warnings, torch, fastshard\n"
        "mode, path = sys.argv[1:]\n"
        "warnings.simplefilter('error' if mode == 'private' else 'ignore')\n"
        "shard = fastshard.open_shard(path, mode=mode)\n"
    )
    return lambda mode: run_forked(path.parent, setup + code, mode, path)


@pytest.fixture
def path(tmp_path):
    return write_tar(tmp_path / "s.tar", {"a.bin": bytes(range(200)) * 100})


def test_private_tensors_can_be_changed_in_place(path):
    done = run(
        "tensor = torch.frombuffer(shard[0], dtype=torch.uint8)\n"
        "other = torch.from_dlpack(shard.array(0, 'u1'))\n"
        "third = torch.from_numpy(shard.array(0, 'u1'))\n"
        "tensor.add_(1)\n"
        "assert other[0] == third[0] == shard[0][0] == 1\n"
        "shard.close()\n"
        "other[5] = 99\n"
        "print(int(tensor[5]), int(tensor[199]))",
        path,
    )("private")
    assert (done.stdout, done.stderr) == ("99 200\n", "")
    assert path.read_bytes()[512:514] == b"\0\1"  # the file is unchanged


def test_tensors_on_read_only_views_can_be_read(path):
    done = run(
        "tensor = torch.frombuffer(shard[0], dtype=torch.uint8)\n"
        "del shard\n"
        "print(int(tensor.sum()), int((tensor + 1)[0]))",
        path,
    )("mmap")
    assert done.stdout == f"{sum(range(200)) * 100} 1\n"


def test_changing_a_read_only_tensor_in_place_kills_the_process(path):
    """The README warns of this: torch does not check for read-only memory."""
    done = run(
        "torch.frombuffer(shard[0], dtype=torch.uint8).add_(1)\nprint('survived')", path
    )("mmap")
    assert done.returncode < 0
    assert "survived" not in done.stdout


def test_a_tensor_of_a_copy_can_be_changed(path):
    done = run(
        "tensor = torch.tensor(shard.array(0, 'u1'))\n"
        "tensor.add_(1)\n"
        "print(int(tensor[0]), shard[0][0])",
        path,
    )("mmap")
    assert done.stdout == "1 0\n"


def test_a_dataset_of_a_shard_in_a_dataloader(path, tmp_path):
    code = (
        "class Data(torch.utils.data.Dataset):\n"
        "    def __init__(self, shard): self.shard = shard\n"
        "    def __len__(self): return len(self.shard)\n"
        "    def __getitem__(self, i): return int(self.shard[i][1])\n"
        "if __name__ == '__main__':\n"
        "    loader = torch.utils.data.DataLoader(Data(shard), num_workers=2)\n"
        "    print([int(batch) for batch in loader])"
    )
    done = run(code, path)("mmap")
    assert done.stdout == "[1]\n", done.stderr


LOADER = """
import sys, numpy, fastshard
from torch.utils.data import DataLoader

class Doubled:
    def __call__(self, values):
        return values | {"npy": values["npy"] * 2}

if __name__ == "__main__":
    ds = fastshard.open(sys.argv[1]).decode("npy", "cls").map(Doubled())
    loader = DataLoader(
        ds, batch_size=4, num_workers=2, multiprocessing_context=sys.argv[2]
    )
    keys = []
    for batch in loader:
        keys += batch["__key__"]
        for row, number in zip(batch["npy"], batch["cls"]):
            assert (row == 2 * number).all()
    print(*keys)
"""


@START_METHODS
def test_a_data_loader_reads_a_dataset(tmp_path, method):
    import numpy as np

    import fastshard

    with fastshard.ShardWriter(tmp_path / "t-{}.tar", max_count=5) as writer:
        for i in range(14):
            array = np.full(3, i, np.float32)
            writer.write({"__key__": f"{i:03d}", "npy": array, "cls": i})
    start = run_with_torch if method == "fork" else run_script
    printed = start(tmp_path, LOADER, tmp_path, method)
    assert printed.split() == [f"{i:03d}" for i in range(14)]


@START_METHODS
def test_a_data_loader_of_batches_without_keys(tmp_path, method):
    torch = pytest.importorskip("torch")
    from fastshard.adapters.torch import IterableDataset, collate, loader

    write_tar(tmp_path / "a.tar", {f"{i:03d}.cls": str(i).encode() for i in range(40)})
    ds = fastshard.open(tmp_path)
    made = collate(keys=False)
    batches = torch.utils.data.DataLoader(
        ds, 8, num_workers=1, collate_fn=made, multiprocessing_context=method
    )
    found = list(batches)
    assert [list(batch) for batch in found] == [["cls"]] * 5
    assert torch.cat([batch["cls"] for batch in found]).tolist() == list(range(40))
    assert list(collate(ds.get_many([0, 1]), keys=False)) == ["cls"]
    assert list(next(iter(IterableDataset(ds, 8, collate=made)))) == ["cls"]
    with loader(ds, 8, collate=fastshard.collate(keys=False)) as threads:
        assert {name: type(x) for name, x in next(threads).items()} == {
            "cls": torch.Tensor
        }
