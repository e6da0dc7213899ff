"""Peak memory of each way to read a dataset, measured in a process of its own.

Run in a process of its own: ``python -m support.memory_peaks KIND FOLDER MODE BOUND
WAY...`` prints a JSON object from way to bytes above what the process had before.
"""

import gc
import json
import random
import sys
import threading
from collections import deque

import numpy as np

import fastshard
from fastshard.columnar import ShardedDatasetReader

STRIDE = 4096


def in_memory() -> int:
    """Return the resident bytes of this process: mapped files, anonymous memory."""
    with open("/proc/self/status") as status:
        return sum(
            int(line.split()[1]) << 10
            for line in status
            if line.startswith(("RssFile:", "RssAnon:", "RssShmem:"))
        )


class Peak:
    def __init__(self) -> None:
        self.start = self.most = in_memory()

    def look(self, most: int = 0) -> None:
        self.most = max(self.most, in_memory(), self.start + most)


def touch(view) -> None:
    bytes(memoryview(view).cast("B")[::STRIDE])


def shuffled(count: int) -> list[int]:
    return random.Random(0).sample(range(count), count)


def parts(order, size=64):
    return (order[i : i + size] for i in range(0, len(order), size))


def single(ds, look):
    for i in shuffled(len(ds)):
        touch(ds[i]["bin"])
        look()


def kept(ds, look):
    """Iterate with the last few views kept alive."""
    last = deque(maxlen=20)
    for i in shuffled(len(ds)):
        last.append(ds[i]["bin"])
        touch(last[-1])
        look()


def array(ds, look):
    for i in shuffled(len(ds)):
        touch(ds[i].array("bin", "u1"))
        look()


def copied(ds, look):
    for i in shuffled(len(ds)):
        sample = ds[i]
        sample.shard.read(sample.member("bin"))
        look()


def shards(ds, look):
    for shard in ds.shards:
        for i in shuffled(len(shard)):
            touch(shard[i])
            look()


def members(ds, look):
    for i in shuffled(len(ds)):
        touch(ds.members[i])
        look()


def get_many(ds, look):
    for part in parts(shuffled(len(ds))):
        for sample in ds.get_many(part):
            touch(sample["bin"])
        look()


def many_larger(ds, look):
    """Read batches larger than the bound: one at a time is resident."""
    order = shuffled(len(ds))
    for part in parts(order, len(ds) // 4):
        views = [sample["bin"] for sample in ds.get_many(part)]
        for view in views:
            touch(view)
    for i in order[:200]:
        del views
        views = [ds[i]["bin"]]
        touch(views[0])
    look()


def getitems(ds, look):
    for part in parts(shuffled(len(ds))):
        for sample in ds.__getitems__(part):
            touch(sample["bin"])
        look()


def batches(ds, look):
    for _ in ds.shuffle(seed=1).batches(32, out={}):
        look()


def columns(ds, look):
    for part in parts(shuffled(len(ds)), 32):
        ds.columns(part, ["bin"])
        look()


def read_into(ds, look):
    out = bytearray(64 * len(ds[0]["bin"]))
    for part in parts(shuffled(len(ds))):
        ds.read_into(part, out, fields="bin")
        look()


def into_all(ds, look):
    """Copy more than the bound in one call."""
    out = np.ones(len(ds) // 2 * len(ds[0]["bin"]), "u1")
    start, done = in_memory(), threading.Event()
    most = 0

    def watch():
        nonlocal most
        while not done.wait(0.001):
            most = max(most, in_memory() - start)

    watcher = threading.Thread(target=watch)
    watcher.start()
    ds.read_into(shuffled(len(ds))[: len(ds) // 2], out, fields="bin")
    done.set()
    watcher.join()
    assert most > 0
    del out
    look(most)


def iterate(ds, look):
    for sample in ds:
        touch(sample["bin"])
        look()


def scan(ds, look):
    for sample in ds.iter(order=shuffled(len(ds))):
        touch(sample["bin"])
        look()


def of_shard(ds, look):
    """Scan single shards: the bound is that of the scan."""
    for path in [shard.path for shard in ds.shards]:
        with fastshard.open_shard(path) as shard:
            for view in shard.scan(shuffled(len(shard)), max_memory=BOUND):
                touch(view)
                look()


def get_sample(reader, look):
    for i in ids_of(reader):
        touch(reader.get_sample(i)[0]["x"])
        look()


def sample_many(reader, look):
    for part in parts(ids_of(reader)):
        for arrays, _ in reader.get_many(part):
            touch(arrays["x"])
        look()


def sequence(reader, look):
    for i in shuffled(len(reader.samples)):
        touch(reader.samples[i]["x"])
        look()


def sequence_items(reader, look):
    for part in parts(shuffled(len(reader.samples)), 32):
        for arrays in reader.samples.__getitems__(part):
            touch(arrays["x"])
        look()


def stacks(reader, look):
    for part in parts(shuffled(len(reader.samples)), 32):
        reader.columns(part, ["x"])
        look()


def swept(reader, look):
    for arrays in reader.scan():
        touch(arrays["x"])
        look()


def swept_batches(reader, look):
    for _ in reader.scan(batch_size=32):
        look()


def dataset(reader, look):
    with fastshard.open(reader.root, mode=MODE, max_memory=BOUND) as ds:
        for i in shuffled(len(ds)):
            touch(ds[i]["x"])
            look()


def ids_of(reader):
    ids = reader.query_ids()
    return [ids[i] for i in shuffled(len(ids))]


KIND, FOLDER, MODE, BOUND, *WAYS = sys.argv[1:]


def main():
    found = {}
    for way in WAYS:
        gc.collect()
        peak = Peak()
        if KIND == "columnar":
            source = ShardedDatasetReader(FOLDER, mode=MODE, max_memory=BOUND)
        else:
            source = fastshard.open(FOLDER, mode=MODE, max_memory=BOUND)
        with source:
            globals()[way](source, peak.look)
        found[way] = peak.most - peak.start
    print(json.dumps(found))


main()
