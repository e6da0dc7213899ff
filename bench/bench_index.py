"""JSON and binary indexes: parsing, opening, look-ups by name, building.

pytest bench/bench_index.py
"""

from __future__ import annotations

import json
import sqlite3
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import orjson
import pytest

import fastshard
from fastshard._core.parse.json import parse_index
from fastshard.index.binary import read_binary
from harness import SCALE, contenders

MEMBERS = max(int(100_000 * SCALE), 100)
MILLION = max(int(1_000_000 * SCALE), 1000)
SHARDS = 100
BLOCK = 512  # bytes


class Extent(msgspec.Struct):
    """Typed struct of an extent: the fast path of msgspec."""

    offset: int
    length: int


class Index(msgspec.Struct):
    """Typed struct of a JSON index."""

    filesize: int
    files: dict[str, Extent]


decoder = msgspec.json.Decoder(Index)


def extents(count: int) -> dict[str, tuple[int, int]]:
    """Return the extents of members of 2,048 bytes, by name."""
    return {
        f"{i:08d}.{'jpg' if i % 2 else 'json'}": (i * 2560 + BLOCK, 2048)
        for i in range(count)
    }


@pytest.fixture(scope="session")
def texts() -> dict[str, bytes]:
    """Return the JSON index of one shard in several layouts."""
    listed = extents(MEMBERS)
    files = {name: {"offset": a, "length": n} for name, (a, n) in listed.items()}
    hashed = {
        name: {"offset": a, "length": n, "sha256": f"{a:064x}"}
        for name, (a, n) in listed.items()
    }
    whole = {"filesize": MEMBERS * 2560 + 1024}
    return {
        "compact": json.dumps(whole | {"files": files}, separators=(",", ":")).encode(),
        "spaced": json.dumps(whole | {"files": files}).encode(),
        "with sha256": json.dumps(whole | {"files": hashed}).encode(),
    }


def parse_fastshard(text: bytes) -> int:
    table, _ = parse_index(text, "index.json")
    return len(table)


def parse_json(text: bytes) -> int:
    return len(json.loads(text)["files"])


def parse_orjson(text: bytes) -> int:
    return len(orjson.loads(text)["files"])


def parse_msgspec(text: bytes) -> int:
    return len(decoder.decode(text).files)


@contenders(
    "JSON index",
    fastshard=parse_fastshard,
    msgspec_typed=parse_msgspec,
    orjson=parse_orjson,
    json=parse_json,
)
@pytest.mark.parametrize("kind", ["compact", "spaced", "with sha256"])
def bench_json(
    benchmark: Any, texts: dict[str, bytes], read: Any, kind: str, turn: int
) -> None:
    text = texts[kind]
    assert read(text) == MEMBERS
    if read is parse_fastshard:
        table, _ = parse_index(text, "index.json")
        found = {table.name_of(i): table.extent(i) for i in range(MEMBERS)}
        assert found == extents(MEMBERS)
    benchmark.group = f"JSON index of {MEMBERS:,} members, {kind}"
    benchmark.extra_info["operations"] = MEMBERS
    benchmark.pedantic(read, (text,), rounds=9)
    seconds = benchmark.stats.stats.median if benchmark.stats else 1
    benchmark.extra_info["GB/s"] = round(len(text) / seconds / 1e9, 2)


def write_empty_members(folder: Path, count: int) -> Path:
    """Return a shard of empty members, with an .fsi and an SQLite table."""
    path = folder / "m.tar"
    with path.open("wb") as file:
        for i in range(count):
            member = tarfile.TarInfo(f"train/{i:08d}.jpg")
            file.write(member.tobuf(tarfile.USTAR_FORMAT))
        file.write(bytes(2 * BLOCK))
    with fastshard.open_shard(path, index="rebuild") as shard:
        rows = zip(
            shard.names, shard.offsets.tolist(), shard.sizes.tolist(), strict=True
        )
        with sqlite3.connect(folder / "m.sqlite") as database:
            database.execute("create table t (name text primary key, o int, n int)")
            database.executemany("insert into t values (?, ?, ?)", rows)
        database.close()
    return path


@pytest.fixture(scope="session")
def million(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a shard of 1,000,000 members, with an .fsi and an SQLite table."""
    return write_empty_members(tmp_path_factory.mktemp("million"), MILLION)


@pytest.fixture(scope="session")
def thousands(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the same of 4,000 members."""
    return write_empty_members(tmp_path_factory.mktemp("thousands"), 4000)


def open_index(path: Path) -> int:
    return len(read_binary(str(path.with_suffix(".fsi"))).contents(False, True).table)


def open_shard(path: Path) -> int:
    with fastshard.open_shard(path) as shard:
        return len(shard)


def open_sqlite(path: Path) -> int:
    database = sqlite3.connect(path.with_suffix(".sqlite"))
    try:
        last = database.execute("select max(rowid) from t").fetchone()[0]
    finally:
        database.close()
    return int(last)


@contenders(
    "binary index opened",
    fsi=open_index,
    fsi_and_its_shard=open_shard,
    sqlite=open_sqlite,
)
@pytest.mark.parametrize("members", [MILLION, 4000])
def bench_open(
    benchmark: Any,
    million: Path,
    thousands: Path,
    read: Any,
    members: int,
    turn: int,
) -> None:
    path = thousands if members == 4000 else million
    assert read(path) == members
    benchmark.group = f"binary index of {members:,} members opened"
    benchmark.pedantic(read, (path,), rounds=200)


def hash_fastshard(shard: fastshard.TarShard) -> bool:
    return "train/00000001.jpg" in shard


def hash_dict(shard: fastshard.TarShard) -> bool:
    names = {name: i for i, name in enumerate(shard.names)}
    return "train/00000001.jpg" in names


@contenders("names hashed", fastshard=hash_fastshard, dict=hash_dict)
def bench_hash(benchmark: Any, million: Path, read: Any, turn: int) -> None:
    benchmark.group = f"{MILLION:,} names of a binary index hashed"

    def open_fresh() -> tuple[tuple[fastshard.TarShard], dict[str, Any]]:
        shard = fastshard.open_shard(million)
        assert shard.names[0]  # page in the names for both contenders
        sum(map(len, shard.names[:: max(1, MILLION // 5000)]))
        return (shard,), {}

    assert read(*open_fresh()[0])
    benchmark.pedantic(read, setup=open_fresh, rounds=5)


def look_up_fastshard(path: Path) -> Callable[[list[str]], int]:
    shard = fastshard.open_shard(path)
    position = shard.position

    def look_up(names: list[str]) -> int:
        for name in names:
            found = position(name)
        return found

    return look_up


def look_up_dict(path: Path) -> Callable[[list[str]], int]:
    names = {name: i for i, name in enumerate(fastshard.open_shard(path).names)}

    def look_up(wanted: list[str]) -> int:
        for name in wanted:
            found = names[name]
        return found

    return look_up


def look_up_sqlite(path: Path) -> Callable[[list[str]], int]:
    database = sqlite3.connect(path.with_suffix(".sqlite"))
    query = "select o, n from t where name = ?"

    def look_up(names: list[str]) -> int:
        for name in names:
            found = database.execute(query, (name,)).fetchone()
        return int(found[0]) // BLOCK - 1

    return look_up


@contenders(
    "look-ups by name", fastshard=look_up_fastshard, dict=look_up_dict,
    sqlite=look_up_sqlite,
)  # fmt: skip
def bench_look_up(benchmark: Any, million: Path, read: Any, turn: int) -> None:
    order = np.random.default_rng(0).permutation(MILLION)[:100_000].tolist()
    names = [f"train/{i:08d}.jpg" for i in order]
    look_up = read(million)
    assert look_up(names) == order[-1]
    benchmark.group = f"{len(names):,} random names of {MILLION:,} looked up"
    benchmark.extra_info["operations"] = len(names)
    benchmark.pedantic(look_up, (names,), rounds=3)


@pytest.fixture(scope="session")
def hundred(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a dataset of 1,000,000 members of 256 bytes in 100 shards."""
    folder = tmp_path_factory.mktemp("hundred")
    for shard in range(SHARDS):
        with (folder / f"train-{shard:04d}.tar").open("wb") as file:
            for i in range(MILLION // SHARDS):
                member = tarfile.TarInfo(f"{shard:04d}{i // 2:06d}.{'ab'[i % 2]}")
                member.size = 256
                file.write(member.tobuf(tarfile.USTAR_FORMAT))
                file.write(b"%0512d" % i)
            file.write(bytes(2 * BLOCK))
    return folder


def build_fastshard(folder: Path) -> int:
    fastshard.build_index(folder, again=True)
    return int(fastshard.open(folder).stats()["members"])


def build_one_thread(folder: Path) -> int:
    fastshard.build_index(folder, again=True, threads=1)
    return int(fastshard.open(folder).stats()["members"])


def list_gnu_tar(folder: Path) -> int:
    count = 0
    for path in sorted(folder.glob("*.tar")):
        listed = subprocess.run(["tar", "-tf", path], capture_output=True, check=True)
        count += listed.stdout.count(b"\n")
    return count


def list_tarfile(folder: Path) -> int:
    count = 0
    for path in sorted(folder.glob("*.tar")):
        with tarfile.open(path, "r:") as tar:
            count += len(tar.getmembers())
    return count


@contenders(
    "index made",
    fastshard=build_fastshard,
    fastshard_in_one_thread=build_one_thread,
    gnu_tar_lists=list_gnu_tar,
    tarfile_lists=list_tarfile,
)
def bench_build(benchmark: Any, hundred: Path, read: Any, turn: int) -> None:
    count = MILLION // SHARDS * SHARDS
    assert read(hundred) == count
    benchmark.group = f"index of {count:,} members in {SHARDS} shards made"
    benchmark.extra_info["operations"] = count
    benchmark.pedantic(read, (hundred,), rounds=1 if read is list_tarfile else 3)
