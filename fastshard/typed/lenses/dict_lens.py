"""The lens from untyped samples to a packable class, without a function."""

from __future__ import annotations

from typing import Any, TypeVar, cast

from fastshard.typed.dict_sample import DictSample
from fastshard.typed.lenses.lens import Lens, make_lens, name_type

__all__ = ["dict_lens", "is_dict_lens"]

V = TypeVar("V")


def dict_lens(view: type[V]) -> Lens[DictSample, V] | None:
    """Return the lens from `DictSample` to a packable class, or None for another.

    The sample's payload is decoded by the rules of `from_bytes`: fields that the class
    has not are passed over, missing ones have their defaults.
    """
    decode = getattr(view, "from_bytes", None)
    if not callable(decode) or not hasattr(view, "from_data"):
        return None

    def get(sample: DictSample) -> V:
        return cast(V, decode(sample.packed))

    return make_lens(
        get,
        None,
        types=(DictSample, view),
        name=f"{name_type(view)}.from_bytes",
        recipe=(dict_lens, (view,)),
    )


def is_dict_lens(lens: Lens[Any, Any]) -> bool:
    """Return whether a lens decodes the payload of a `DictSample`."""
    return lens._recipe is not None and lens._recipe[0] is dict_lens
