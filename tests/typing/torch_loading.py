"""Types of datasets in torch's loaders; read by type checkers, never run."""

from collections.abc import Iterator
from typing import Any, assert_type

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Subset

import fastshard
from fastshard import Sample
from fastshard.columnar import ShardedDatasetReader


def to_tensor(values: dict[str, Any]) -> Tensor:
    return Tensor(values["npy"])


ds = fastshard.open("train/")
assert_type(DataLoader(ds), DataLoader[Sample])
assert_type(DataLoader(ds.shuffle(7).split_by_rank(0, 2)), DataLoader[Sample])
loader = DataLoader(ds.decode("npy").map(to_tensor), batch_size=256, num_workers=8)
assert_type(loader, DataLoader[Tensor])
assert_type(DataLoader(fastshard.mix([ds, ds])), DataLoader[Sample])
pairs = fastshard.zip_by_key(ds, ds)
assert_type(DataLoader(pairs), DataLoader[tuple[Sample, Sample]])
assert_type(Subset(ds, [1, 2]), Subset[Sample])
with ShardedDatasetReader("columnar/") as reader:
    assert_type(DataLoader(reader.samples), DataLoader[dict[str, NDArray[Any]]])
it = iter(ds)
assert_type(it.state_dict(), dict[str, Any])
batches: Iterator[Any] = iter(DataLoader(ds, collate_fn=fastshard.collate))
# Packages and adapters are attributes after `import fastshard` alone.
assert_type(fastshard.adapters.torch.to_tensor(np.zeros(3)), Tensor)
assert_type(fastshard.typed.DictSample(x=1).keys(), list[str])
assert_type(fastshard.streaming.merge_index("mds/"), str)
