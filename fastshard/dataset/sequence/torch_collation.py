"""Samples and images in torch's default collation, without importing torch."""

from __future__ import annotations

import json
import sys
from typing import Any

from fastshard._core.dataset.shard import SampleBase
from fastshard._core.io.source import View
from fastshard.dataset.sequence.batch import (
    image_array,
    is_image,
    is_typed,
    typed_fields,
    typed_value,
)
from fastshard.errors import FastshardError, RaggedError
from fastshard.formats.decoders import DECODERS

__all__ = ["guard_collation"]

COLLATE = "torch.utils.data._utils.collate"
ADVICE = (
    "torch's default collation cannot batch {}: use "
    "DataLoader(..., collate_fn=fastshard.collate) (or that of "
    "fastshard.adapters.torch, for tensors){}"
)
COLLATED = tuple(DECODERS[name] for name in ("npy", "cls", "txt", "jpg"))
MAX_FIELDS = 4  # in a hint


class _ImageType(type):
    """Metaclass of `Image`: `isinstance` is true for Pillow images."""

    def __instancecheck__(cls, value: object) -> bool:
        return is_image(value)


class Image(metaclass=_ImageType):
    """Stand-in for ``PIL.Image.Image`` in the map of torch's default collation."""


class _TypedType(type):
    """Metaclass of `TypedItem`: `isinstance` is true for samples of types."""

    def __instancecheck__(cls, value: object) -> bool:
        return is_typed(value)


class TypedItem(metaclass=_TypedType):
    """Stand-in for typed samples in the map of torch's default collation."""


def guard_collation() -> None:
    """Register images, arrays, samples and views with torch's default collation.

    Images become tensors, and so do read-only arrays, of which torch warns. Typed
    samples become a dict: arrays and numbers are tensors, other values lists. Samples
    and views raise: the collation takes a view for a sequence of ints, and would make
    one tensor of each byte.
    """
    collation: Any = sys.modules.get(COLLATE)
    kinds = getattr(collation, "default_collate_fn_map", None)
    if kinds is None or SampleBase in kinds:
        return

    def refuse_samples(batch: Any, **options: Any) -> Any:
        raise FastshardError(ADVICE.format("raw samples", decode_hint(batch[0])))

    def refuse_views(batch: Any, **options: Any) -> Any:
        if any(isinstance(item, memoryview) and may_be_view(item) for item in batch):
            hint = ", or decode the samples first: ds.decode(...)"
            raise FastshardError(ADVICE.format("raw bytes, views of a shard", hint))
        return [
            collation.default_collate(list(items)) for items in zip(*batch, strict=True)
        ]

    def stack_images(batch: Any, **options: Any) -> Any:
        if not all(map(is_image, batch)):
            raise TypeError("expected a batch of images, got other values too")
        arrays = list(map(image_array, batch))
        found = {f"{array.dtype} {array.shape}" for array in arrays}
        if len(found) > 1:
            raise RaggedError(
                "the images of a batch differ: "
                f"{', '.join(sorted(found)[:4])}; resize them in map: "
                'ds.decode("jpg").map(lambda s: s | {"jpg": s["jpg"].resize((w, h))})'
            )
        return collation.default_collate(arrays)

    torch: Any = sys.modules["torch"]
    array_type: Any = getattr(sys.modules.get("numpy"), "ndarray", None)
    stack_any = kinds.get(array_type)

    def stack_arrays(batch: Any, **options: Any) -> Any:
        if not any(isinstance(a, array_type) and not a.flags.writeable for a in batch):
            return stack_any(batch, **options)
        try:  # tensors on the same memory, which the collation copies
            tensors = list(map(torch.from_dlpack, batch))
        except (AttributeError, BufferError, TypeError, ValueError, RuntimeError):
            return stack_any(batch, **options)
        return collation.collate(tensors, **options)

    def collate_typed(batch: Any, **options: Any) -> Any:
        found = {}
        for name in typed_fields(batch[0]):
            values = [typed_value(sample, name) for sample in batch]
            types = set(map(type, values))
            plain = types <= {array_type} or types <= {int, float, bool}
            found[name] = collation.default_collate(values) if plain else values
        return found

    if stack_any is not None:
        kinds[array_type] = stack_arrays
    kinds[memoryview] = refuse_views
    kinds[Image] = stack_images
    kinds[TypedItem] = collate_typed
    kinds[SampleBase] = (
        refuse_samples  # last: its presence means that all are registered
    )


def decode_hint(sample: Any) -> str:
    """Return a hint to decode the fields that torch can collate, or ""."""
    fields = [field for field in sample if sample.decoder_of(field) in COLLATED]
    if not fields:
        return ""
    names = ", ".join(map(json.dumps, fields[:MAX_FIELDS]))
    return f", or decode the samples first: ds.decode({names})"


def may_be_view(view: memoryview) -> bool:
    """Return whether a memoryview may be of a shard: on a mapped file, or on bytes."""
    return isinstance(view.obj, View | bytes)
