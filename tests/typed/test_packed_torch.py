"""Packed samples in torch: fields of payloads become tensors."""

from functools import partial

import numpy as np
import pytest

import fastshard
from support.typed import packed
from support.typed.packed import compact, write_payloads

pytest.importorskip("msgspec")
torch = pytest.importorskip("torch")

pack = partial(packed.pack, encode=compact)
COUNT = 20


@pytest.fixture
def ds(tmp_path):
    payloads = [
        (f"{i:02}", pack({"n": i, "x": np.full(3, i, np.float32), "text": f"t{i}"}))
        for i in range(COUNT)
    ]
    return fastshard.open(write_payloads(tmp_path / "d.tar", payloads), packed=True)


def test_batches_of_fields_are_tensors(ds):
    from fastshard.adapters.torch import collate

    loader = torch.utils.data.DataLoader(ds, batch_size=5, collate_fn=collate)
    for k, batch in enumerate(loader):
        numbers = torch.arange(5 * k, 5 * k + 5)
        assert torch.equal(batch["n"], numbers)
        assert torch.equal(batch["x"], numbers[:, None].float().expand(5, 3))
        assert batch["text"] == [f"t{n}" for n in numbers]


def test_an_iterable_dataset_gives_every_sample_once(ds):
    from fastshard.adapters.torch import IterableDataset

    shuffled = IterableDataset(ds.decode("n").shuffle(1))
    loader = torch.utils.data.DataLoader(shuffled, batch_size=None, num_workers=2)
    assert sorted(values["n"] for values in loader) == list(range(COUNT))
