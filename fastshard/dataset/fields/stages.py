"""Mapped functions that decode samples: `Dataset.decode`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fastshard.dataset.fields.alternatives import FieldPicker, stored_names

if TYPE_CHECKING:
    from fastshard.formats.sample import Sample

__all__ = ["ChosenDecodeStage", "DecodeStage"]


class DecodeStage:
    """Mapped function that decodes a sample; a class, so that it pickles."""

    def __init__(self, fields: tuple[str, ...]) -> None:
        self.fields = fields

    def __call__(self, sample: Sample) -> dict[str, Any]:
        return sample.decode(*self.fields)

    def describe(self) -> str:
        """Return the text of the stage in a dataset's repr."""
        return " ".join(("decode", *self.fields))


class ChosenDecodeStage:
    """Mapped function that decodes a sample, of some fields the first alternative."""

    def __init__(
        self, fields: tuple[str, ...], choices: Mapping[str, tuple[str, ...]]
    ) -> None:
        needed = tuple(stored_names((field,), choices) for field in fields)
        self._picker = FieldPicker(needed, choices, fields)

    def __call__(self, sample: Sample) -> dict[str, Any]:
        self._picker.check(sample)
        values: dict[str, Any] = self._picker.choose(sample).decode()
        return values

    def describe(self) -> str:
        """Return the text of the stage in a dataset's repr."""
        return " ".join(("decode", *map(";".join, self._picker.needed)))
