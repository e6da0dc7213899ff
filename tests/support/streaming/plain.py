"""Plain readers of shards that are not compressed, by the description of the formats.

They give the stored bytes of fields, and take no care of damage.
"""

from __future__ import annotations

import itertools
import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def mds_fields(path: Path) -> Iterator[dict[str, tuple[str, bytes]]]:
    """Yield the rows of an MDS shard: encoding and stored bytes by column."""
    data = path.read_bytes()
    (count,) = struct.unpack_from("<I", data)
    ends = struct.unpack_from(f"<{count + 1}I", data, 4)
    config = json.loads(data[8 + 4 * count : ends[0]])
    sizes = config["column_sizes"]
    for start, end in itertools.pairwise(ends):
        row, at = data[start:end], 4 * sizes.count(None)
        variable = iter(struct.unpack_from(f"<{at // 4}I", row))
        fields = {}
        for name, encoding, fixed in zip(
            config["column_names"], config["column_encodings"], sizes, strict=True
        ):
            size = next(variable) if fixed is None else fixed
            fields[name] = encoding, row[at : at + size]
            at += size
        assert at == len(row)
        yield fields


def text_rows(path: Path) -> tuple[dict[str, Any], list[str]]:
    """Return the configuration and the rows of a JSON, CSV, TSV or XSV shard."""
    data = path.read_bytes()
    meta = path.with_name(path.name + ".meta").read_bytes()
    (count,) = struct.unpack_from("<I", meta)
    ends = struct.unpack_from(f"<{count + 1}I", meta, 4)
    config = json.loads(meta[8 + 4 * count :])
    rows = [data[a:b].decode() for a, b in itertools.pairwise(ends)]
    return config, [row.removesuffix(config["newline"]) for row in rows]


def text_values(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the values of the rows of a JSON, CSV, TSV or XSV shard."""
    config, rows = text_rows(path)
    if config["format"] == "json":
        yield from map(json.loads, rows)
        return
    separator = config.get("separator") or {"csv": ",", "tsv": "\t"}[config["format"]]
    types = {"str": str, "int": int, "float": float}
    for row in rows:
        columns = zip(
            config["column_names"],
            config["column_encodings"],
            row.split(separator),
            strict=True,
        )
        yield {name: types[encoding](text) for name, encoding, text in columns}
