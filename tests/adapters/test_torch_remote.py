"""DataLoader workers that read over HTTP, for each start method."""

import sys

import pytest

import fastshard
from support.marks import forks_beside_threads, slow
from support.processes import run_script
from support.servers.forks import run_with_torch
from support.servers.http import Server

pytest.importorskip("torch")

LOAD = """
import multiprocessing, sys
from functools import partial
import torch
from torch.utils.data import DataLoader
import fastshard
from fastshard.adapters.torch import collate, IterableDataset

def main(url, how, local):
    ds = fastshard.open(url)
    first = ds.get_many([0, 5])  # opens connections before a fork
    expected = {s.key: bytes(s["txt"]) for s in fastshard.open(local)}
    for dataset in (ds, IterableDataset(ds.shuffle(3))):
        loader = DataLoader(
            dataset, batch_size=16, num_workers=1 + (how == "fork"),
            multiprocessing_context=how,
            collate_fn=collate,
        )
        found = {}
        for batch in loader:
            for key, text in zip(batch["__key__"], batch["txt"]):
                found[key] = text.encode() if isinstance(text, str) else bytes(text)
        assert found == expected, (len(found), len(expected))
    assert first[1]["txt"] == ds[5]["txt"]
    print("read", len(expected))

if __name__ == "__main__":
    main(*sys.argv[1:])
"""


@pytest.mark.parametrize(
    "how",
    [
        pytest.param("fork", marks=forks_beside_threads),
        pytest.param("forkserver", marks=slow),
        "spawn",
    ],
)
def test_workers_read_over_http(tmp_path, how):
    if sys.platform == "win32" and how != "spawn":
        pytest.skip("this system does not fork")
    folder = tmp_path / "data"
    folder.mkdir()
    for k in range(2):
        with fastshard.ShardWriter(str(folder / f"t-{k}.tar")) as writer:
            for i in range(50):
                writer.write({"__key__": f"{k}{i:03}", "txt": f"text {k} {i}"})
    files = {f"/d/{path.name}": path.read_bytes() for path in folder.iterdir()}
    with Server(files) as server:
        url = server.at("/d/") + "t-{0..1}.tar"
        run = run_with_torch if how == "fork" else run_script
        done = run(tmp_path, LOAD, url, how, str(folder))
    assert done.strip().endswith("read 100")
