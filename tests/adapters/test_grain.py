"""Datasets as data sources of grain's loaders."""

import pytest

from support.marks import not_sanitized
from support.processes import run_script
from support.tars import write_numbers

pytest.importorskip("grain")
pytestmark = not_sanitized

CODE = """
import sys, fastshard, grain
import grain.python as old
import numpy as np

class Values(old.MapTransform):
    def map(self, sample):
        return {"x": np.array(sample.array("npy")), "y": int(sample.text("cls"))}

def loader(workers):
    source = fastshard.open(sys.argv[1]).shuffle(5)
    sampler = old.IndexSampler(len(source), old.NoSharding(), shuffle=True, seed=3,
                               num_epochs=1)
    return old.DataLoader(data_source=source, sampler=sampler, worker_count=workers,
                          operations=[Values(), old.Batch(8)])

if __name__ == "__main__":
    from absl import flags
    flags.FLAGS(["test"])
    source = fastshard.open(sys.argv[1])
    assert isinstance(source, old.RandomAccessDataSource)
    for workers in (0, 2):
        it = iter(loader(workers))
        seen = [next(it) for _ in range(2)]
        state = it.get_state()
        rest = [batch["y"].tolist() for batch in it]
        again = iter(loader(workers))
        again.set_state(state)
        assert [batch["y"].tolist() for batch in again] == rest
        assert seen[0]["x"].shape == (8, 2, 3)
        found = [n for batch in seen for n in batch["y"].tolist()] + sum(rest, [])
        assert sorted(found) == list(range(50))
    shuffled = source.shuffle(5)
    batches = grain.MapDataset.source(shuffled).map(lambda s: int(s.text("cls")))
    found = np.concatenate(list(batches.batch(8).to_iter_dataset()))
    assert found.tolist() == [int(s.text("cls")) for s in shuffled]
    print("done")
"""


def test_grain_reads_shuffles_and_resumes(tmp_path):
    folder = write_numbers(tmp_path / "n", 50)
    assert "done" in run_script(tmp_path, CODE, folder)
