"""Rows and shards of a columnar dataset, read with sqlite3, tarfile and NumPy."""

import io
import json
import sqlite3
import tarfile

import numpy as np


def sql(root, text, *params):
    """Query an index over a connection of its own."""
    conn = sqlite3.connect(root / "index.sqlite")
    try:
        return conn.execute(text, params).fetchall()
    finally:
        conn.close()


def read_members(path):
    """Return (name, data offset, data) of a shard's members, by `tarfile`."""
    with tarfile.open(path) as tar:
        return [(m.name, m.offset_data, tar.extractfile(m).read()) for m in tar]


def read_all(root, *, ended=True, whole=True):
    """Read a dataset by its rows, id to (metadata, arrays), and check each of them.

    With `ended` shards must have an end, which is lost when a disk is full; with
    `whole` also nothing that was never acknowledged.
    """
    fields = dict(sql(root, "SELECT name, num_shards FROM fields"))
    for (problem,) in sql(root, "PRAGMA integrity_check"):
        assert problem == "ok"
    found = {
        id_: (json.loads(text), {})
        for id_, text in sql(root, "SELECT id, meta_json FROM samples ORDER BY rowid")
    }
    for field, num_shards in fields.items():
        folder = root / f"{field}_shards"
        shards = {}
        rows = sql(root, f"SELECT id, {field}_offset, {field}_shard FROM samples")
        for id_, offset, shard in rows:
            if offset is None:
                assert shard is None
                continue
            if shard not in shards:
                shards[shard] = read_members(folder / f"shard_{shard:04d}.tar")
            data = {(name, at): data for name, at, data in shards[shard]}
            payload = data[f"{id_}.npy", offset]
            assert offset % 64 == 0
            array = np.load(io.BytesIO(payload), allow_pickle=True)
            assert (len(payload) - array.nbytes) % 64 == 0 or array.dtype.hasobject
            found[id_][1][field] = array
        if not whole:
            continue
        records = sql(
            root,
            "SELECT shard, nbytes, members FROM fastshard_shards WHERE field = ?",
            field,
        )
        for shard, nbytes, count in records:
            path = folder / f"shard_{shard:04d}.tar"
            if nbytes == 0:
                assert not path.exists() or not any(path.read_bytes())
                continue
            assert path.stat().st_size >= nbytes + 1024 * ended
            assert not any(path.read_bytes()[nbytes:])
            assert len(read_members(path)) == count
        assert num_shards == sum(1 for _, _, count in records if count)
    return found


def lengths(root, **options):
    """Return the number of items of each sample's array of the field `a`."""
    found = read_all(root, **options).items()
    return {id_: len(arrays["a"]) for id_, (_, arrays) in found if "a" in arrays}
