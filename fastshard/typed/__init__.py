"""Samples as objects of declared types, in tar shards of msgpack members.

A class with annotated fields is a sample type: derived from `PackableSample`, or
decorated with `packable`. Its samples are written as msgpack, their arrays are read
without a copy:

>>> import numpy as np
>>> import fastshard
>>> from numpy.typing import NDArray
>>> from fastshard import typed
>>> class ImageSample(typed.PackableSample):
...     image: NDArray[np.float32]
...     label: str
>>> images = [
...     ImageSample(image=np.full(4, i, "f4"), label=f"label {i}") for i in range(100)
... ]
>>> _ = typed.write_samples(images, "data.tar")
>>> ds = typed.Dataset[ImageSample]("data.tar")
>>> ds[7].label, ds[7].image
('label 7', array([7., 7., 7., 7.], dtype=float32))
>>> next(ds.ordered(batch_size=32)).image.shape
(32, 4)

Shards whose names say a split are loaded by it, with a type or without:

>>> _ = typed.write_samples(images[:20], "splits/train.tar", maxcount=10)
>>> _ = typed.write_samples(images[:10], "splits/test-000000.tar")
>>> typed.load_dataset("splits/", split="train").head(1)[0].label
'label 0'

A lens makes samples of one type from those of another:

>>> @typed.packable
... class Caption:
...     text: str
...     score: float = 0.0
>>> @typed.lens
... def caption_of(sample: ImageSample) -> Caption:
...     return Caption(text=sample.label)
>>> @caption_of.putter
... def with_caption(caption: Caption, sample: ImageSample) -> ImageSample:
...     return ImageSample(image=sample.image, label=caption.text)
>>> ds.as_type(Caption)[7]
Caption(text='label 7', score=0.0)

An index keeps datasets under names:

>>> index = typed.Index(
...     path="datasets.db", data_store=typed.LocalDiskStore("store"), atmosphere=None
... )
>>> _ = index.add_entry(ds, name="images")
>>> index.get_dataset("images").open()[7].label
'label 7'

The examples of methods continue from here.
"""

from importlib import import_module
from sys import modules
from typing import Any

from fastshard.typed.homes import HOMES

_ALIASES = {
    "AbstractIndex": "Index",
    "AtdataError": "FastshardError",
    "ShardError": "FormatError",
}
_MODULES = {name: home for home, names in HOMES.items() for name in names.split()}
__all__ = sorted([*_MODULES, *_ALIASES])


def __getattr__(name: str) -> Any:
    """Import a public name at its first use."""
    if name in ("atmosphere", "testing"):  # submodules
        return import_module(f"{__name__}.{name}")
    if name not in _MODULES and name not in _ALIASES:
        from fastshard._util.hints import missing_name

        raise missing_name(name, modules[__name__])
    known = _ALIASES.get(name, name)
    home = _MODULES.get(known, "errors")
    module = import_module(f"fastshard.{home}")
    value = globals()[name] = getattr(module, known)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
