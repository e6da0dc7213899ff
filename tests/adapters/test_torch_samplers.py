"""A rank's share under a sampler that divides it among the ranks again."""

import copy
import pickle
import warnings

import numpy as np
import pytest

import fastshard
from fastshard import typed
from support.typed.photos import Photo, is_odd, write_photos

torch = pytest.importorskip("torch")

from torch.utils.data import (  # noqa: E402
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
)

from fastshard.adapters.torch import IterableDataset, collate  # noqa: E402

AGAIN = "it is one rank's share already, by split_by_rank"


@pytest.fixture(scope="module")
def ds(tmp_path_factory):
    folder = tmp_path_factory.mktemp("numbers")
    with fastshard.ShardWriter(folder / "{}.tar", max_count=15) as writer:
        for i in range(40):
            tokens = np.full(6, i, "u2")
            writer.write({"__key__": f"{i:03d}", "npy": tokens, "cls": i})
    return fastshard.open(folder)


class MySampler(DistributedSampler):
    def __init__(self, dataset):
        super().__init__(dataset, 2, 0)


class SamplerDataset(Dataset):
    """A sampler as a dataset, as Lightning wraps one."""

    def __init__(self, sampler):
        self.sampler = sampler

    def __len__(self):
        return len(self.sampler)


class BatchSamplerShard(BatchSampler):
    """Takes every n-th batch, as Accelerate does."""

    def __init__(self, batch_sampler, num_processes=2):
        self.batch_sampler = batch_sampler
        self.num_processes = num_processes

    def __len__(self):
        return len(self.batch_sampler) // self.num_processes

    def __iter__(self):
        return self.every()

    def every(self):
        for i, batch in enumerate(self.batch_sampler):
            if i % self.num_processes == 0:
                yield batch


class IterableDatasetShard(torch.utils.data.IterableDataset):
    """Takes every n-th item, as Accelerate does."""

    def __init__(self, dataset):
        self.dataset = dataset
        self.num_processes = 2

    def __iter__(self):
        for i, item in enumerate(self.dataset):
            if i % self.num_processes == 0:
                yield item


def wrapped(share):
    return DistributedSampler(SamplerDataset(RandomSampler(share)), 2, 0)


def sharded_batches(share):
    return list(BatchSamplerShard(BatchSampler(SequentialSampler(share), 4, False)))


def sharded_items(share):
    return list(IterableDatasetShard(share))


def sharded_samples(share):
    return list(IterableDatasetShard(IterableDataset(share)))


SAMPLERS = {
    "torch's": lambda share: DistributedSampler(share, 2, 0),
    "a subclass": MySampler,
    "over a sampler": wrapped,
    "of batches": sharded_batches,
    "of items": sharded_items,
    "of an IterableDataset": sharded_samples,
}


def shares(ds):
    share = ds.shuffle(1).split_by_rank(0, 2)
    yield share
    yield share[:10]
    yield share.shuffle(3).select_fields("cls").map(lambda sample: sample)
    yield pickle.loads(pickle.dumps(share))
    yield share.resume(share.state_dict(2))
    yield fastshard.mix([share, share])
    yield fastshard.mix([ds, ds]).split_by_rank(1, 2).shuffle(1)
    yield share + share
    yield share.tokens("npy", 2)


def unsplit(ds):
    yield ds.shuffle(1)
    yield ds[:10]
    yield ds.split_by_rank(0, 1)
    yield fastshard.mix([ds, ds])
    yield ds.tokens("npy", 2)


@pytest.mark.parametrize("place", SAMPLERS)
def test_a_sampler_over_a_share_warns(ds, place):
    with pytest.warns(UserWarning, match=AGAIN) as found:
        SAMPLERS[place](ds.split_by_rank(0, 2))
    (warning,) = found
    assert warning.filename == __file__
    text = str(warning.message)
    ways_out = {
        "BatchSamplerShard": "Accelerator.prepare",
        "IterableDatasetShard": "Accelerator.prepare",
        "DistributedSampler": "Trainer(use_distributed_sampler=False)",
        "MySampler": "Trainer(use_distributed_sampler=False)",
    }
    assert ways_out[text.split()[0]] in text


def test_all_that_is_made_of_a_share_is_one(ds):
    for share in shares(ds):
        with pytest.warns(UserWarning, match=AGAIN):
            DistributedSampler(share, 2, 0)


def test_a_sampler_warns_once(ds):
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        share = ds.split_by_rank(0, 2)
        sampler = DistributedSampler(share, 2, 0)
        loader = DataLoader(
            share, 4, sampler=sampler, num_workers=1, collate_fn=collate
        )
        for _ in range(2):
            assert len(list(loader)) == 3
    assert len([each for each in found if AGAIN in str(each.message)]) == 1


def test_datasets_that_are_not_split_do_not_warn(ds):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for data in unsplit(ds):
            sampler = DistributedSampler(data, 2, 0)
            assert len(list(sampler)) == len(sampler)
            sharded_batches(data)
            sharded_items(data)


def test_shares_without_another_division_do_not_warn(ds):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for share in shares(ds):
            for shuffle in (False, True):
                loader = DataLoader(share, 4, shuffle=shuffle, collate_fn=collate)
                assert len(list(loader)) == len(loader)
            len(list(DataLoader(IterableDataset(share, 4), batch_size=None)))
            list(DistributedSampler(share, 1, 0))  # of one process
            copy.copy(share)[0]
            len(list(share.batches(4)))


def test_a_share_of_typed_samples_warns(tmp_path):
    photos = typed.Dataset[Photo](write_photos(tmp_path))
    share = photos.split_by_rank(0, 2)
    for data in (share, share.filter(is_odd), share.filter(is_odd).shuffle(1)):
        with pytest.warns(UserWarning, match=AGAIN):
            DistributedSampler(data, 2, 0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        DistributedSampler(photos.filter(is_odd), 2, 0)
