"""Processes that read a columnar dataset while another writes it."""

from __future__ import annotations

import faulthandler
import os
import random
import signal
import time
import traceback
from collections import Counter
from pathlib import Path

import numpy as np

from support.columnar.found import need

READERS = 8
SECONDS = 3  # of reading, and until a reader has seen this many states:
STATES = 4
LATEST = 100  # seconds later
HANGS = 150  # seconds after which a child is aborted
DONE = "done"
FIELDS = ["a", "b", "c"]


def arrays(number: int, version: int) -> dict[str, np.ndarray]:
    """Return a sample's arrays: all hold its number and its version."""
    sizes = {"a": 1, "b": 60, "c": 400}
    return {
        field: np.full((size, 2), (number, version)) for field, size in sizes.items()
    }


def write(root: Path, rng: random.Random) -> None:
    """Add and update samples until the readers are done."""
    from fastshard.columnar import ShardedDatasetWriter

    packs = rng.random() < 0.5
    writer = ShardedDatasetWriter(root, samples_per_shard=20, pack=packs)
    versions = writer.conn.execute("SELECT count(*) FROM samples").fetchone()[0] * [0]
    while not (root.parent / DONE).exists():
        for _ in range(rng.randrange(1, 20)):
            number = rng.randrange(len(versions) + 3)
            if number < len(versions):
                versions[number] += 1
                data = arrays(number, versions[number])
                writer.update_sample(f"{number}", data, {"version": versions[number]})
            else:
                number = len(versions)
                versions.append(0)
                writer.add_sample(arrays(number, 0), f"{number}", {"version": 0})
        writer.flush()
        if rng.random() < 0.1:
            writer.compact(rng.choice([None, True, False]) if packs else None)
        if rng.random() < 0.05:
            writer.close()
            writer = ShardedDatasetWriter(root, samples_per_shard=20, pack=packs)
    writer.close()


def look(reader, rng: random.Random) -> dict[int, int]:
    """Read all samples in one of the ways; return the version of each number."""
    ids = reader.query_ids()
    need(len(ids) == len(reader), f"{len(reader)} is the length of {len(ids)} samples")
    way = rng.randrange(4)
    if way == 0:
        found = [(a, meta["version"]) for a, meta in reader.get_many(ids)]
    elif way == 1:
        rng.shuffle(ids)
        columns = reader.columns(ids)
        versions = [reader.get_sample(sample, [])[1]["version"] for sample in ids]
        rows = [
            dict(zip(columns, row, strict=True))
            for row in zip(*columns.values(), strict=True)
        ]
        found = list(zip(rows, versions, strict=True))
    elif way == 2:
        found = [({f: s[f] for f in FIELDS}, None) for s in reader.scan()]
    else:
        found = [(reader.samples[i], None) for i in range(len(reader))]
    seen = {}
    for sample, version in found:
        need(sorted(sample) == FIELDS, f"fields {list(sample)}")
        number, own = sample["a"][0].tolist()
        need(
            version in (None, own), f"{number}: metadata of {version}, arrays of {own}"
        )
        for field, array in arrays(number, own).items():
            need(
                np.array_equal(sample[field], array), f"{number} {field}, not of {own}"
            )
        need(number not in seen, f"{number} twice")
        seen[number] = own
    need(sorted(seen) == list(range(len(ids))), "numbers are missing")
    return seen


def read(root: Path, rng: random.Random) -> None:
    """Read until the time is over and the dataset has changed."""
    from fastshard.columnar import ShardedDatasetReader

    last: dict[int, int] = {}
    states = 0
    until = time.monotonic() + SECONDS
    while time.monotonic() < until or states < STATES:
        need(time.monotonic() < until + LATEST, f"{states} states are too few")
        with ShardedDatasetReader(root) as reader:
            for _ in range(rng.randrange(1, 10)):
                seen = look(reader, rng)
                need(look(reader, rng) == seen, "it changed without refresh()")
                need(
                    all(seen.get(number, -1) >= own for number, own in last.items()),
                    f"it went back, from {last} to {seen}",
                )
                states += seen != last
                last = seen
                reader.refresh()


def forked(work, *args) -> int:
    """Start a child process for a task; return its id."""
    child = os.fork()
    if child == 0:
        code = 1
        faulthandler.enable()  # `code_of` aborts it if it hangs
        try:
            work(*args)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return child


def code_of(child: int) -> int:
    """Wait for a child; return its exit code, negative for a signal.

    After `HANGS` seconds the child is aborted, and prints where it was.
    """
    until = time.monotonic() + HANGS
    while time.monotonic() < until:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(child, signal.SIGABRT)
    os.kill(child, signal.SIGCONT)  # it may be stopped
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def reading(rng: random.Random, folder: Path, done: Counter[str]) -> None:
    """Read in eight processes while one writes."""
    from fastshard.columnar import ShardedDatasetWriter

    root = folder / "data"
    with ShardedDatasetWriter(root, samples_per_shard=20) as writer:
        writer.add_fields(FIELDS)
        writer.add_sample(arrays(0, 0), "0", {"version": 0})
    writer_id = forked(write, root, random.Random(rng.random()))
    readers = [forked(read, root, random.Random(rng.random())) for _ in range(READERS)]
    codes = [code_of(child) for child in readers]
    (folder / DONE).touch()
    codes.append(code_of(writer_id))
    need(not any(codes), f"exit codes {codes}, of the writer the last")
    done["readers"] += READERS
