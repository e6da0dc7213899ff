"""Read sharded datasets at memory speed.

Shards are tar files. The members that share a key are a sample, and their extensions
are its fields. `ShardWriter` makes shards, `build_index` makes their indexes, `open`
opens a dataset and `open_shard` one shard, `Dataset.batches` gives arrays:

>>> import numpy as np
>>> import fastshard
>>> with fastshard.ShardWriter("data/train-{:04d}.tar", max_count=25) as writer:
...     for i in range(100):
...         fields = {"npy": np.full(4, i, "f4"), "cls": i % 10, "txt": f"text {i}"}
...         writer.write({"__key__": f"{i:06d}", **fields, "json": {"size": 4}})
>>> ds = fastshard.open("data/train-{0000..0003}.tar")
>>> len(ds)
100
>>> sample = ds[7]
>>> sample.key, sample.keys(), sample.text("txt")
('000007', ['npy', 'cls', 'txt', 'json'], 'text 7')
>>> sample["txt"]
<memory at 0x...>
>>> for batch in ds.shuffle(seed=1, epoch=0).batches(32, drop_last=True):
...     batch["npy"].shape, batch["cls"].dtype
((32, 4), dtype('int64'))
((32, 4), dtype('int64'))
((32, 4), dtype('int64'))
>>> shard = fastshard.open_shard("data/train-0000.tar")
>>> shard.names[0], shard.sizes[0]
('000000.npy', np.uint64(144))

The examples of methods continue from here, with `fastshard`, `np`, `ds`, `sample` and
`shard`. Other packages: `fastshard.columnar` (arrays by field under one index),
`fastshard.streaming` (MDS), `fastshard.typed` (objects), `fastshard.adapters` (torch,
JAX, Ray), `fastshard.formats.decoders`, `fastshard.errors`.
"""

from importlib import import_module
from sys import modules

from fastshard._util.homes import HOMES
from fastshard.formats.registry import register

__version__ = "0.1.0"

_MODULES = {name: home for home, names in HOMES.items() for name in names.split()}
__all__ = sorted(_MODULES)
_SHOWN = "adapters columnar errors formats streaming typed"

register("fastshard.columnar.format", mark="index.sqlite")
register("fastshard.streaming.format", mark="index.json")
register("fastshard.typed.format", mark="")
register("fastshard.atmosphere.format", mark="")


def __getattr__(name: str) -> object:
    if name in f"{_SHOWN} index".split():
        return import_module(f"{__name__}.{name}")
    if name == "decoders":
        return import_module(f"{__name__}.formats.decoders")
    if name not in _MODULES:
        hints = import_module("fastshard._util.hints")
        raise hints.missing_name(name, modules[__name__])
    module = import_module(f"{__name__}.{_MODULES[name]}")
    value = globals()[name] = getattr(module, name)
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, *_SHOWN.split(), "__version__"])
