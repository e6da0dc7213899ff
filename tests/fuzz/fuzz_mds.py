"""Fuzzer of rows of streaming shards: damaged MDS files, meta files, JSON and XSV rows.

Not part of the suite. With atheris (``pip install atheris``), from the root::

    python tests/fuzz/fuzz_mds.py [FOLDER OF EXAMPLES] [-max_total_time=3600]

Without atheris, or with ``--seeds FIRST LAST``, shards are made and damaged instead; a
seed reproduces its shard::

    python tests/fuzz/fuzz_mds.py --seeds 0 100000

A build with sanitizers (see ``tests/sanitize.sh``) finds more. A shard is read, or
refused by a FormatError that names a byte of it; JSON is read as by ``json.loads``.
"""

from __future__ import annotations

import importlib.util
import json
import random
import struct
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from fastshard import FormatError
from fastshard._core.streaming.plan import MdsRows, RowPlan, RowTable
from fastshard._core.streaming.text_rows import (
    JsonRows,
    JsonSchema,
    XsvRows,
    XsvSchema,
)
from fastshard.streaming.encodings import mds_decoder

COLUMNS = {
    "a": ("int", 8),
    "b": ("str", None),
    "c": ("bytes", None),
    "d": ("float32", 4),
    "e": ("ndarray", None),
    "f": ("ndarray:uint8:2,2", 4),
    "g": ("str_int", None),
    "h": ("str_float", None),
    "i": ("ndarray:int16", None),
    "j": ("json", None),
    "k": ("str_decimal", None),
}
PLAN = RowPlan(
    list(COLUMNS),
    [encoding for encoding, _ in COLUMNS.values()],
    [size for _, size in COLUMNS.values()],
    mds_decoder,
)
XSV = XsvSchema(["a", "b", "c"], ["int", "str", "float"], "\n", ",")
JSON = JsonSchema(["a", "b", "c"], ["int", "str", "float"], "\n")
SPECIAL = b'\x00\x01\x04\x08\x7f\x80\xff"\\{}[],:\n-0.eE'
MAX_ROWS = 4


def make_field(chance: random.Random, encoding: str) -> bytes:
    """Return the bytes of a valid field."""
    n = chance.randint(0, 9)
    return {
        "int": lambda: chance.randbytes(8),
        "str": lambda: "aé😀"[: n % 4].encode() * n,
        "bytes": lambda: chance.randbytes(n),
        "float32": lambda: chance.randbytes(4),
        "ndarray": lambda: b"\x10\x08\x02" + bytes([n + 1]) + bytes(4 * (n + 1)),
        "ndarray:uint8:2,2": lambda: chance.randbytes(4),
        "str_int": lambda: str(10**n * chance.choice([1, -1])).encode(),
        "str_float": lambda: repr(chance.uniform(-1, 1) * 10**n).encode(),
        "ndarray:int16": lambda: b"\x04" + bytes([n + 1]) + bytes(2 * (n + 1)),
        "json": lambda: json.dumps({"x": [n, None, "é"]}).encode(),
        "str_decimal": lambda: f"{n}.5E-{n}".encode(),
    }[encoding]()


def make_table(rows: list[bytes], first: int) -> bytes:
    offsets = [first]
    for row in rows:
        offsets.append(offsets[-1] + len(row))
    return struct.pack(f"<I{len(offsets)}I", len(rows), *offsets)


def make_shard(chance: random.Random) -> bytes:
    """Return a valid MDS shard."""
    rows = []
    for _ in range(chance.randint(0, MAX_ROWS)):
        fields = [make_field(chance, encoding) for encoding, _ in COLUMNS.values()]
        sizes = [
            struct.pack("<I", len(field))
            for field, (_, size) in zip(fields, COLUMNS.values(), strict=True)
            if size is None
        ]
        rows.append(b"".join([*sizes, *fields]))
    config = json.dumps({"column_names": list(COLUMNS)}).encode()
    head = make_table(rows, 4 + 4 * (len(rows) + 1) + len(config))
    return b"".join([head, config, *rows])


def damage(chance: random.Random, data: bytes) -> bytes:
    """Return data with a few bytes changed, cut, or repeated."""
    damaged = bytearray(data)
    for _ in range(chance.randint(0, 4)):
        at = chance.randrange(len(damaged) + 1)
        kind = chance.randrange(5)
        if kind == 0:
            damaged[at : at + 1] = bytes([chance.choice(SPECIAL)])
        elif kind == 1:
            damaged[at : at + 4] = struct.pack(
                "<I", chance.choice([0, 1, 2**31, 2**32 - 1])
            )
        elif kind == 2:
            del damaged[at:]
        elif kind == 3:
            damaged[at:at] = damaged[at : at + chance.randint(1, 9)]
        elif damaged:
            damaged[at % len(damaged)] ^= 1 << chance.randrange(8)
    return bytes(damaged)


def read_rows(rows: RowTable, data: bytes) -> None:
    """Read all that a shard has, in each way."""
    for i in range(len(rows)):
        offset, size = rows.row(i)
        assert offset + size <= len(data)
        row = data[offset : offset + size]
        for start, length in try_to(rows.fields, i, row) or ():
            assert start + length <= size
        for copy in (True, False):
            try_to(rows.decode, row, i, None, copy)


def try_to(call, *args):
    """Return the result of a call, None if it raises a FormatError of the file."""
    try:
        return call(*args)
    except FormatError as error:
        assert error.path == "fuzz", error
        assert error.offset >= 0
    return None


def check(data: bytes) -> None:
    """Read bytes as a shard of each format."""
    samples = int.from_bytes(data[:4], "little")
    rows = try_to(MdsRows, "fuzz", PLAN, data, len(data), samples)
    if rows is not None:
        read_rows(rows, data)
    text = data[-200:]
    table = make_table([text + b"\n"], 0) + b"{}"
    check_json(JsonRows("fuzz", JSON, "fuzz", table, len(text) + 1, 1), text + b"\n")
    table = make_table([text + b"\n"], 6) + b"{}"
    xsv = XsvRows("fuzz", XSV, "fuzz", table, len(text) + 7, 1)
    read_rows(xsv, b"a,b,c\n" + text + b"\n")
    for kind, schema in ((JsonRows, JSON), (XsvRows, XSV)):
        try_to(kind, "fuzz", schema, "fuzz", data, len(data), samples)


def check_json(rows: RowTable, line: bytes) -> None:
    """Compare a JSON row with ``json.loads``."""
    try:
        expected = json.loads(line.decode())
    except (ValueError, RecursionError):
        expected = None
    found = try_to(rows.decode, line, 0)
    assert repr(found) == repr(expected if isinstance(expected, dict) else None)
    try_to(rows.fields, 0, line)


def make_case(seed: int) -> bytes:
    """Return the damaged shard of a seed."""
    chance = random.Random(seed)
    row = json.dumps({"a": [1, {"x": "é"}], "b": "\\u", "c": -1.5e3}).encode()
    made = chance.choice([make_shard(chance), row, b"12,text,-1.5e3"])
    return damage(chance, made)


def main() -> None:
    arguments = sys.argv[1:]
    if "--seeds" in arguments or importlib.util.find_spec("atheris") is None:
        at = arguments.index("--seeds") if "--seeds" in arguments else None
        first, last = (
            (0, 100_000) if at is None else map(int, arguments[at + 1 : at + 3])
        )
        for seed in range(first, last):
            try:
                check(make_case(seed))
            except BaseException:
                print(f"seed {seed}", file=sys.stderr)
                raise
        print(f"seeds {first} to {last}: read or refused")
        return
    import atheris

    atheris.Setup(sys.argv, check)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
