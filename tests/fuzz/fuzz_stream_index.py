"""Fuzzer of the parser of ``index.json``, compared with the standard library's.

Not part of the suite. From the root; a seed reproduces its texts::

    python tests/fuzz/fuzz_stream_index.py 0 100000

Damaged indexes are refused at a byte of their text, or read as `json` reads them. It
stops at the first difference and writes that text to ``wrong.json``.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

from fastshard import FormatError
from fastshard.streaming.index import read_index

FILE = {"basename": "a/b.mds", "bytes": 12, "hashes": {"sha1": "ab"}}
SHARD = {
    "version": 2,
    "format": "mds",
    "compression": "zstd:7",
    "hashes": ["sha1"],
    "size_limit": 100,
    "samples": 3,
    "raw_data": FILE,
    "zip_data": FILE | {"basename": "a/é.mds.zstd"},
    "column_names": ["x", "y"],
    "column_encodings": ["str", "int"],
    "column_sizes": [None, 8],
}
OTHER = SHARD | {"raw_data": FILE | {"basename": "c"}, "zip_data": None}
TEXT = json.dumps({"version": 2, "shards": [SHARD, OTHER], "x": [1.5, {}]}).encode()


def damage(maker: random.Random) -> bytes:
    """Return the index with bytes changed, or parts moved."""
    text = bytearray(TEXT)
    for _ in range(maker.randrange(1, 5)):
        at, size = maker.randrange(len(text)), maker.randrange(30)
        start = maker.randrange(len(TEXT))
        if maker.random() < 0.5:
            text[at] = maker.randrange(256)
        else:
            text[at : at + maker.randrange(30)] = TEXT[start : start + size]
    return bytes(text)


def check(text: bytes) -> bool:
    """Return whether a text is an index; raise AssertionError if it is read wrong."""
    try:
        index = read_index(text, "fuzz")
        found = [index[k].to_json() for k in range(len(index))]
    except FormatError as error:
        assert 0 <= error.offset <= len(text), error
        return False
    expected = json.loads(text)["shards"]
    for one, other in zip(found, expected, strict=True):
        for key in ("format", "compression", "samples", "hashes", "column_names"):
            assert one[key] == other[key], key
        for key in ("raw_data", "zip_data"):
            if one[key] is not None:
                assert one[key].items() <= other[key].items(), key
    return True


def main(first: int, last: int) -> None:
    assert check(TEXT)
    good = 0
    for seed in range(first, last):
        text = damage(random.Random(seed))
        try:
            good += check(text)
        except BaseException:
            Path("wrong.json").write_bytes(text)
            print(f"seed {seed}")
            raise
    print(f"{last - first:,} texts, {good:,} of them indexes")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
