"""Commands ``ls``, ``stat`` and ``verify`` for streaming datasets."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fastshard._util.terminal import escape_name
from fastshard.dataset.shardset import ReadOptions
from fastshard.streaming.shardset import StreamSet, split_roots

if TYPE_CHECKING:
    from fastshard.dataset.verify import Fault
    from fastshard.formats.tar import Mode
    from fastshard.remote.options import Settings

__all__ = ["list_lines", "stat", "stat_lines", "verify"]

KINDS = ("raw_data", "raw_meta", "zip_data", "zip_meta")


def open_shards(
    root: str | Sequence[str], remote: Settings | None, mode: Mode
) -> StreamSet:
    """Return the shards of a dataset, or of several."""
    folders = None
    if not isinstance(root, str):
        root, folders = split_roots(root)
    reading = ReadOptions()
    return StreamSet(
        root, mode=mode, limit=None, reading=reading, remote=remote, folders=folders
    )


def list_lines(shards: StreamSet, *, long: bool, as_json: bool) -> Iterator[str]:
    """Yield a line of ``ls`` for each sample: its key, and its columns."""
    try:
        position = 0
        for k in range(len(shards)):
            codec = shards.codec(k)
            name = shards.index.name(shards.numbers[k])
            for key in list_keys(shards, k):
                if as_json:
                    line: dict[str, Any] = {"key": key, "position": position}
                    line["shard"] = name
                    line["fields"] = codec.field_names
                    yield json.dumps(line)
                else:
                    shown = " ".join(map(escape_name, codec.field_names))
                    yield escape_name(key) + (f"  {shown}" if long else "")
                position += 1
    finally:
        shards.close()


def list_keys(shards: StreamSet, k: int) -> Iterable[str]:
    """Return the keys of a shard; without a column of keys it is not opened."""
    if shards.codec(k).key_column < 0:
        starts = shards.starts()
        return map(str, range(starts[k], starts[k + 1]))
    return (sample.key for sample in shards.samples(k))


def stat(shards: StreamSet, *, deep: bool) -> dict[str, Any]:
    """Return the object of ``stat --json``, from the index; deep: sizes of columns."""
    try:
        figures = compute_figures(shards)
        if deep:
            figures["fields"] = measure_fields(shards)
    finally:
        shards.close()
    return figures


def compute_figures(shards: StreamSet) -> dict[str, Any]:
    """Compute the figures of the index, and the number of missing files."""
    formats: Counter[str] = Counter()
    compressions: Counter[str] = Counter()
    columns: dict[str, set[str]] = {}
    nbytes: Counter[str] = Counter()
    missing = []
    index = shards.index
    for entry in map(index.__getitem__, shards.numbers):
        config = entry.config
        formats[config.format] += 1
        compressions[config.compression or "none"] += 1
        for name, encoding in zip(config.names, config.encodings, strict=True):
            columns.setdefault(name, set()).add(encoding)
        present = {}
        for kind in KINDS:
            info = getattr(entry, kind)
            if info is None:
                continue
            nbytes[kind[:3]] += info.bytes
            path = shards.files.path(info.basename)
            present[kind] = shards.remote is not None or os.path.exists(path)
        for data in ("data", "meta"):
            kinds = [kind for kind in present if kind.endswith(data)]
            if kinds and not any(present[kind] for kind in kinds):
                missing.append(getattr(entry, f"raw_{data}").basename)
    return {
        "dataset": shards.describe_root(),
        "samples": shards.starts()[-1],
        "shards": len(shards),
        "formats": dict(formats),
        "compressions": dict(compressions),
        "hashes": sorted({h for config in index.configs for h in config.hashes}),
        "bytes": nbytes["raw"],
        "compressed_bytes": nbytes["zip"],
        "index_bytes": None
        if shards.remote is not None
        else sum(map(os.path.getsize, index.paths)),
        "columns": {name: " or ".join(sorted(one)) for name, one in columns.items()},
        "missing": missing,
    }


def measure_fields(shards: StreamSet) -> dict[str, dict[str, int]]:
    """Return the number of values and bytes of each column, and their extremes."""
    fields: dict[str, dict[str, int]] = {}
    for k in range(len(shards)):
        names = shards.codec(k).config.names
        shard = shards.shard(k)
        for i in range(shard.rows.count):
            for j, name in enumerate(names):
                _, size, *_ = shard.extent_of(i * len(names) + j)
                found = fields.get(name)
                if found is None:
                    found = fields[name] = {
                        "count": 0, "bytes": 0, "smallest": size, "largest": size,
                    }  # fmt: skip
                found["count"] += 1
                found["bytes"] += size
                found["smallest"] = min(found["smallest"], size)
                found["largest"] = max(found["largest"], size)
    return fields


def stat_lines(figures: Mapping[str, Any]) -> Iterator[str]:
    """Yield the output lines of ``stat``."""
    yield figures["dataset"]
    formats = ", ".join(f"{n:,} {name}" for name, n in figures["formats"].items())
    yield f"  shards   {figures['shards']:,}{f': {formats}' if formats else ''}"
    yield f"  samples  {figures['samples']:,}"
    yield f"  bytes    {figures['bytes']:,}"
    if figures["compressed_bytes"]:
        names = ", ".join(name for name in figures["compressions"] if name != "none")
        yield f"  stored   {figures['compressed_bytes']:,} bytes, {names}"
    if figures["hashes"]:
        yield f"  hashes   {', '.join(figures['hashes'])}"
    columns = ", ".join(
        f"{escape_name(name)}: {escape_name(encoding)}"
        for name, encoding in figures["columns"].items()
    )
    yield f"  columns  {columns or 'none'}"
    if figures["missing"]:
        count = len(figures["missing"])
        names = ", ".join(map(escape_name, figures["missing"][:8]))
        yield f"  missing  {count:,} files, as {names}"
    for name, field in figures.get("fields", {}).items():
        sizes = f"{field['smallest']:,} to {field['largest']:,} bytes each"
        yield f"  {escape_name(name)}: {field['bytes']:,} bytes, {sizes}"


def verify(shards: StreamSet, *, hashes: bool) -> list[Fault]:
    """Return the faults of a dataset."""
    try:
        return shards.verify(hashes=hashes)
    finally:
        shards.close()
