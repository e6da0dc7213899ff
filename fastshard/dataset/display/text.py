"""Descriptions of datasets in a line: shards, order, mapped functions."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from types import MappingProxyType
from typing import Any, NamedTuple

from fastshard._util.paths.urls import is_url, redact, relative_path
from fastshard._util.terminal import escape_line, join_names
from fastshard.dataset.order.plan import Plan, order_digest

__all__ = [
    "Description",
    "Summary",
    "describe_count",
    "describe_parts",
    "describe_paths",
    "describe_plan",
    "describe_stage",
]

MAX_PARTS = 8  # datasets of a combination shown
MAX_TEXT = 2000  # characters of one of them
MAX_LISTED = 3  # shards named one by one
MAX_NAME = 60  # characters of a function's name
DIGEST = 8  # hexadecimal digits of a selection or a list of paths


class Summary(NamedTuple):
    """Facts about a dataset's shards that local indexes hold.

    Attributes
    ----------
    where : str
        The shards' paths, absolute; URLs without their secrets.
    shards : int or None
        Number of shards; None if samples span several.
    samples : int or None
        None if no index tells.
    fields : tuple of str
        Fields of the first shard with samples; empty if no index tells.
    kind : str
        The format, if it is not tar.
    """

    where: str
    shards: int | None
    samples: int | None = None
    fields: tuple[str, ...] = ()
    kind: str = ""


class Description(NamedTuple):
    """Text of a dataset, part by part; empty parts are not shown.

    Attributes
    ----------
    samples : str
        How many; or the datasets that they are from.
    fields : dict of str to str
        Kinds by name.
    order, stages, shards : str
    """

    samples: str
    fields: Mapping[str, str] = MappingProxyType({})
    order: str = ""
    stages: str = ""
    shards: str = ""

    def join(self, name: str) -> str:
        """Return the text of a dataset of a class, as its `repr`."""
        fields = join_names(list(self.fields))
        parts = (self.samples, fields, self.order, self.stages, self.shards)
        return f"{name}({'; '.join(filter(None, parts))})"


def describe_count(summary: Summary, plan: Plan) -> str:
    """Return ``90 of 100 samples in 2 shards``, as far as known."""
    total = summary.samples
    if plan.base is not None:
        total = plan.base.limit
    kind = f"{summary.kind} " if summary.kind else ""
    shards = "" if summary.shards is None else _count(summary.shards, "shard")
    if total is None:
        return shards or f"{kind}samples"
    count = plan.share_size(total)
    of = "" if count == total else f"{count:,} of "
    samples = f"{of}{_count(total, f'{kind}sample')}"
    return f"{samples} in {shards}" if shards else samples


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def describe_plan(plan: Plan) -> str:
    """Return the selection and order of a plan; empty for all samples in order."""
    parts = []
    if plan.base is not None:
        parts.append(_describe_selection(plan.base))
    if plan.shuffling is not None:
        seed, epoch, block = plan.shuffling
        blocks = "" if block is None else f" in blocks of {block:,}"
        parts.append(f"shuffled seed {seed} epoch {epoch}{blocks}")
    if plan.split is not None:
        rank, world_size, remainder = plan.split
        rest = {"pad": "", True: " drop_last", False: " drop_last=False"}[remainder]
        parts.append(f"rank {rank} of {world_size}{rest}")
    if plan.start:
        parts.append(f"from {plan.start:,} on")
    if plan.worker is not None:
        worker = plan.worker
        taken = f" after {worker.taken:,}" if worker.taken else ""
        chunk = "" if worker.chunk == 1 else f" in chunks of {worker.chunk:,}"
        parts.append(f"worker {worker.id} of {worker.workers}{chunk}{taken}")
    return ", ".join(parts)


def _describe_selection(base: Any) -> str:
    """Return a slice as it was written, or the digest of other positions."""
    _, arguments = base.__reduce__()[:2]
    if type(base).__name__ == "Stride" and not arguments[4]:
        start, step, count, limit, _ = arguments
        stop = start + step * count
        first = "" if start == 0 and step > 0 else str(start)
        last = "" if step > 0 and stop >= limit else str(max(stop, 0))
        if step < 0:
            first = "" if start == limit - 1 else str(start)
            last = "" if stop < 0 else str(stop)
        return f"[{first}:{last}]" if step == 1 else f"[{first}:{last}:{step}]"
    return f"selection {order_digest(base)[:DIGEST]}"


def describe_stage(stage: Callable[[Any], Any]) -> str:
    """Return the name of a mapped function: without addresses, and of one line."""
    try:
        own = getattr(type(stage), "describe", None)
        name = own(stage) if own is not None and _is_ours(stage) else None
        return escape_line(name or f"map {_name_of(stage)}")
    except Exception:  # attributes of the caller's object may raise
        return f"map {escape_line(type(stage).__name__)[:MAX_NAME]}"


def _is_ours(stage: object) -> bool:
    return type(stage).__module__.partition(".")[0] == "fastshard"


def _name_of(function: Any) -> str:
    while isinstance(function, functools.partial):
        function = function.func
    name = getattr(function, "__qualname__", None)
    if not isinstance(name, str):
        name = getattr(function, "__name__", None)
    if not isinstance(name, str):
        name = type(function).__qualname__
    name = name.rpartition("<locals>.")[2]
    return name if len(name) <= MAX_NAME else f"{name[: MAX_NAME - 3]}..."


def describe_parts(datasets: Sequence[object]) -> str:
    """Return the texts of the datasets that another one is made of."""
    texts = [repr(dataset) for dataset in datasets]
    if len(texts) <= MAX_PARTS:
        return ", ".join(map(_cut, texts))
    more = len(texts) - MAX_PARTS // 2
    shown = map(_cut, texts[: MAX_PARTS // 2])
    return ", ".join([*shown, f"... {more:,} more ({_digest(texts)})"])


def _cut(text: str) -> str:
    """Cut the text of a deep combination; a digest stands for the rest."""
    if len(text) <= MAX_TEXT:
        return text
    return f"{text[: MAX_TEXT // 2]}... ({_digest([text])})"


def _digest(texts: Sequence[str]) -> str:
    data = "\n".join(texts).encode("utf-8", "backslashreplace")
    return blake2b(data, digest_size=DIGEST // 2).hexdigest()


def describe_paths(paths: Sequence[str], root: str) -> str:
    """Return a text that tells sets of shards apart.

    A path; a pattern with braces, for numbered shards; or the root and a digest of the
    names below it. Paths are absolute, URLs without user, password and query.
    """
    remote = any(map(is_url, (root, *paths[:1])))
    if remote:
        names = [relative_path(path, root) or redact(path) for path in paths]
        shown, slash = redact(root).rstrip("/"), "/"
    else:
        shown, slash = _absolute(root), os.sep
        start = shown.rstrip(slash) + slash
        found = [_absolute(path) for path in paths]
        names = [
            path[len(start) :] if path.startswith(start) else path for path in found
        ]
    pattern = _describe_names(names)
    if pattern is None:
        return escape_line(f"{shown or names[0]} ({_digest(names)})")
    if not shown or os.path.isabs(pattern) or is_url(pattern):
        return escape_line(pattern)
    return escape_line(shown.rstrip(slash) + slash + pattern)


def _absolute(path: str) -> str:
    try:
        return os.path.abspath(path)
    except OSError:  # the working directory was deleted
        return path


def _describe_names(names: Sequence[str]) -> str | None:
    """Return a pattern of exactly these names; None if there is no short one."""
    if len(names) <= 1:
        return "".join(names)
    numbered = _find_numbers(names)
    if numbered is not None or len(names) > MAX_LISTED:
        return numbered
    return "{" + ",".join(names) + "}"


def _find_numbers(names: Sequence[str]) -> str | None:
    """Return ``a-{000..009}.tar`` for names that count, or None."""
    first, last = names[0], names[-1]
    prefix = os.path.commonprefix([first, last])  # noqa: RUF071 - of names, not parts
    prefix = prefix.rstrip("0123456789")
    end = os.path.commonprefix([first[::-1], last[::-1]])[::-1]  # noqa: RUF071
    end = end.lstrip("0123456789")
    low, high = (text[len(prefix) : len(text) - len(end)] for text in (first, last))
    if not (low.isdecimal() and high.isdecimal() and low.isascii() and high.isascii()):
        return None
    if len(low) > MAX_NAME or int(high) - int(low) + 1 != len(names):
        return None
    width = len(low)
    counted = (f"{prefix}{i:0{width}}{end}" for i in range(int(low), int(high) + 1))
    if any(a != b for a, b in zip(names, counted, strict=True)):
        return None
    return f"{prefix}{{{low}..{high}}}{end}"
