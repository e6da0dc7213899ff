"""A function over the shards of a typed dataset, one after the other, resumable."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from fastshard._util.files import replace_file
from fastshard._util.json import parse_value
from fastshard.dataset.order.plan import Plan
from fastshard.errors import FormatError, PartialFailureError
from fastshard.typed.reading.origin import FilteredOrigin

__all__ = ["Checkpoint", "process_shards", "shard_samples"]


def process_shards(
    fn: Callable[[list[Any]], Any],
    samples_of: Callable[[int], list[Any]],
    shards: Sequence[tuple[str, int]],
    checkpoint: Checkpoint | None,
    on_error: Callable[[str, Exception], object] | None,
) -> dict[str, Any]:
    """Call a function with the samples of each shard; see `Dataset.process_shards`."""
    done = {} if checkpoint is None else checkpoint.read([name for name, _ in shards])
    results: dict[str, Any] = {}
    succeeded: list[str] = []
    errors: dict[str, Exception] = {}
    for name, k in shards:
        if name in done:
            succeeded.append(name)
            if done[name] is not Checkpoint.UNKNOWN:
                results[name] = done[name]
            continue
        try:
            results[name] = fn(samples_of(k))
        except Exception as error:
            errors[name] = error
            if on_error is not None:
                on_error(name, error)
            continue
        succeeded.append(name)
        if checkpoint is not None:
            checkpoint.add(name, results[name])
    if errors:
        raise PartialFailureError(succeeded, list(errors), errors, results)
    if checkpoint is not None:
        checkpoint.remove()
    return results


class Checkpoint:
    """JSON file of the processed shards with their results.

    Results that JSON cannot hold are left out; their shards are processed again. A
    file with the names of shards in lines is read too, without results.
    """

    UNKNOWN: Any = object()  # the result of a finished shard

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        self._done: dict[str, Any] = {}

    def read(self, shards: Iterable[str]) -> dict[str, Any]:
        """Return the results of the shards in the file."""
        try:
            with open(self.path, encoding="utf-8") as file:
                text = file.read()
        except FileNotFoundError:
            return {}
        except UnicodeDecodeError as error:
            raise self._broken(f"it is not UTF-8 text: {error}", error.start) from None
        lines = text.splitlines()
        if not text.startswith("{") and set(lines) & set(shards):
            found = dict.fromkeys(lines, self.UNKNOWN)
        else:
            try:
                found = parse_value(text, self.path)
            except FormatError as error:
                raise self._broken(error.reason, error.offset) from None
            if not isinstance(found, dict):
                raise self._broken("expected a JSON object", 0)
        self._done = {name: found[name] for name in found}
        return {name: found[name] for name in shards if name in found}

    def _broken(self, reason: str, offset: int) -> FormatError:
        return FormatError(
            f"the checkpoint cannot be read: {reason}", self.path, offset
        )

    def add(self, shard: str, result: Any) -> None:
        """Rewrite the file with another shard, atomically."""
        value = python_number(result)
        if not is_json(value):
            warnings.warn(
                f"the checkpoint {self.path} cannot hold the results, of type "
                f"{type(result).__name__}: after a stop their shards are processed "
                "again; return JSON values, or write them from the function",
                RuntimeWarning,
                stacklevel=5,
            )
            return
        self._done[shard] = value
        lines = ",\n".join(
            f"{json.dumps(name)}: {json.dumps(value)}"
            for name, value in self._done.items()
            if value is not self.UNKNOWN
        )
        with replace_file(self.path) as file:
            file.write(f"{{{lines}}}\n".encode())

    def remove(self) -> None:
        """Remove the file."""
        if os.path.exists(self.path):
            os.unlink(self.path)


def python_number(value: Any) -> Any:
    """Return a NumPy number as one of Python; other values as they are."""
    item = getattr(value, "item", None)
    if type(value).__module__ == "numpy" and getattr(value, "ndim", 1) == 0 and item:
        return item()
    return value


def is_json(value: Any) -> bool:
    """Return whether JSON restores an equal value of the same types."""
    if value is None or type(value) in (bool, int, float, str):
        return True
    if type(value) is list:
        return all(map(is_json, value))
    if type(value) is dict:
        return all(type(key) is str and is_json(value[key]) for key in value)
    return False


def shard_samples(dataset: Any, k: int) -> list[Any]:
    """Return the samples of a typed dataset in one shard, in its order.

    Opens no other shard, unless the dataset is selected or shuffled.
    """
    pending = dataset._pending_filter()
    if pending is not None:
        after = dataset._later[len(pending.dataset._later) :]
        items = [item for item in shard_samples(pending.dataset, k) if pending.fn(item)]
        for stage in after:
            items = [stage(item) for item in items]
        return items
    packed = dataset._packed
    if packed._plan == Plan() and not isinstance(dataset._origin, FilteredOrigin):
        iterator = dataset._mapped()._shard_iterator(k)
        try:
            return list(iterator)
        finally:
            iterator.close()
    start, end = packed._set.starts()[k : k + 2]
    order = packed._order()
    if order is None:
        return dataset.get_many(range(start, end))  # type: ignore[no-any-return]
    places = order.positions(0, len(order))
    return dataset.get_many(((places >= start) & (places < end)).nonzero()[0])  # type: ignore[no-any-return]
