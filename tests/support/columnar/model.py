"""Random operations on a columnar dataset, and the state each should leave.

An operation is a list that JSON can hold. `Work.perform` does it by the writer,
`apply` does it to a `State`. What is there must be the state after one of the
operations: the last acknowledged, or a later.
"""

from __future__ import annotations

import contextlib
import functools
import json
import random
from pathlib import Path
from typing import NamedTuple

import numpy as np

from support.columnar.found import Broken, Found, digest, read_by

NAMES = ["alpha", "beta", "gamma", "Delta", "_e"]
DTYPES = ["<f4", "<f8", ">i2", "|u1", "<c8", "<U3", "<M8[s]", "|b1"]
COMMON = [("<f4", (3,)), ("<i8", ()), ("|u1", (2, 70))]  # layouts of many arrays
OWN_IDS = ["own/{}", "Ünï {}", "x" * 99 + "{}", "a.b/{}.npy", "{}"]


class Row(NamedTuple):
    meta: str
    versions: tuple[tuple[str, int], ...]  # of each field that the sample has

    def but(self, **versions: int | None) -> Row:
        """Return a copy with other versions; None removes a field."""
        found = {**dict(self.versions), **versions}
        kept = ((k, v) for k, v in sorted(found.items()) if v is not None)
        return self._replace(versions=tuple(kept))


class State(NamedTuple):
    fields: tuple[str, ...] = ()
    rows: dict[str, Row] = {}  # noqa: RUF012 - never changed; in order of insertion


@functools.lru_cache(50_000)
def value(field: str, version: int) -> np.ndarray:
    """Return the array of a field in a version; a few are large."""
    rng = random.Random(f"{field}/{version}")
    dtype = np.dtype(rng.choice(DTYPES))
    shape = rng.choice([(), (0,), (3,), (7, 5), (100,), (2, 3, 4)])
    if version % 2:  # most samples of a pack have one layout
        name, shape = COMMON[len(field) % len(COMMON)]
        dtype = np.dtype(name)
    elif rng.random() < 0.04:
        shape = (rng.randrange(60_000),)
    if dtype.kind in "Ub":
        codes = rng.choices(range(2), k=int(np.prod(shape)))
        return np.array(codes, np.int64).reshape(shape).astype(dtype)
    data = rng.randbytes(int(np.prod(shape)) * dtype.itemsize)
    array = np.frombuffer(data, dtype).reshape(shape)
    return np.asfortranarray(array) if rng.random() < 0.2 else array


@functools.lru_cache(50_000)
def expected(field: str, version: int) -> str:
    return digest(value(field, version))


def apply(state: State, op: list) -> State:
    """Return the state that an operation makes."""
    kind, *rest = op
    rows = dict(state.rows)
    if kind == "fields":
        return state._replace(fields=(*state.fields, *rest[0]))
    if kind == "add":
        sample, versions, meta = rest
        rows[sample] = Row(json.dumps(meta or {}), ()).but(**versions)
    elif kind == "update":
        sample, versions, meta = rest
        row = rows[sample].but(**versions)
        rows[sample] = row if meta is None else row._replace(meta=json.dumps(meta))
    elif kind == "delete":
        for sample in rest[0]:
            del rows[sample]
    elif kind == "register":
        for sample, meta in zip(*rest, strict=True):
            rows[sample] = Row(json.dumps(meta), ())
    elif kind in ("shard", "stream"):
        field, _, versions, _, lost = rest
        for sample in lost:
            rows[sample] = rows[sample].but(**{field: None})
        for sample, version in versions.items():
            rows[sample] = rows[sample].but(**{field: version})
    elif kind == "meta":
        rows[rest[0]] = rows[rest[0]]._replace(meta=json.dumps(rest[1]))
    return state._replace(rows=rows)


class Abandoned(Exception):  # noqa: N818
    """Exception that leaves an `open_shard` block."""


class Work:
    """A writer, and random operations for it.

    `pack_share` is the share of writers that pack arrays, and of compactions that
    change their layout. A caller sets it on the class.
    """

    pack_share = 0.0

    def __init__(self, root: Path, rng: random.Random, state: State) -> None:
        self.root, self.rng, self.state = root, rng, state
        self.per = rng.choice([3, 5, 20])
        self.number = rng.randrange(1 << 30)
        self.writer = None
        self.reader = None
        self.seen: Found | None = None  # by the reader, until it is refreshed

    def open(self) -> None:
        from fastshard.columnar import ShardedDatasetWriter

        self.writer = ShardedDatasetWriter(
            self.root,
            samples_per_shard=self.per,
            pack=self.rng.random() < self.pack_share,
        )

    def _new(self) -> int:
        self.number += 1
        return self.number

    def versions(self, some: list[str]) -> dict[str, int]:
        return dict.fromkeys(some, self._new())

    def meta(self) -> dict:
        return {"n": self._new(), "ü": "ü" * self.rng.randrange(20)}

    def some(self, things) -> list:
        things = list(things)
        return self.rng.sample(things, self.rng.randint(1, min(8, len(things))))

    def choose(self) -> list:
        """Return an operation that can be done now."""
        rng, state = self.rng, self.state
        free = [name for name in NAMES if name not in state.fields]
        if not state.fields or (free and rng.random() < 0.05):
            return ["fields", self.some(free)]
        kinds = {"add": 30, "register": 2, "flush": 4, "close_tars": 1, "reopen": 1}
        kinds["look"] = 4
        if state.rows:
            kinds |= {"update": 12, "shard": 3, "stream": 3, "abandon": 1, "bad": 2}
            kinds |= {"meta": 2, "commit": 1, "compact": 3, "rebind": 1}
            kinds["delete"] = 3
        [kind] = rng.choices(list(kinds), kinds.values())
        return getattr(self, f"_{kind}", lambda: [kind])()

    def _add(self) -> list:
        own = self.rng.choice(OWN_IDS).format(self._new())
        sample = None if self.rng.random() < 0.6 else own
        meta = self.rng.choice([None, self.meta()])
        return ["add", sample, self.versions(self.some(self.state.fields)), meta]

    def _update(self) -> list:
        sample = self.rng.choice(list(self.state.rows))
        meta = self.rng.choice([None, self.meta()])
        return ["update", sample, self.versions(self.some(self.state.fields)), meta]

    def _delete(self) -> list:
        return ["delete", self.some(self.state.rows)[:3]]

    def _register(self) -> list:
        first = self._new()
        ids = [f"r{first} {i}" for i in range(self.rng.randint(1, 9))]
        return ["register", ids, [self.meta() for _ in ids]]

    def _shard(self, kind: str = "shard") -> list:
        """Write a new shard, or replace an existing one."""
        field = self.rng.choice(self.state.fields)
        query = f'SELECT id, "{field}_shard" FROM samples WHERE "{field}_shard" >= 0'
        there = list(self.writer.conn.execute(query))
        taken = {shard for _, shard in there}
        folder = self.root / f"{field}_shards"  # some have no current member
        files = {int(path.name[6:-4]) for path in folder.glob("shard_*.tar")}
        # The file of a condemned shard may be gone, and its record still there.
        query = "SELECT shard FROM fastshard_shards WHERE field = ?"
        records = {shard for (shard,) in self.writer.conn.execute(query, (field,))}
        used = taken | files | records
        shard = max(used, default=-1) + self.rng.choice([1, 1, 2])
        if taken and self.rng.random() < 0.5:
            shard = self.rng.choice(sorted(taken))
        over = shard in taken and (kind == "shard" or self.rng.random() < 0.6)
        lost = [sample for sample, number in there if over and number == shard]
        versions = {s: self._new() for s in self.some(self.state.rows)}
        if kind != "shard" and self.rng.random() < 0.3:
            shard, lost, over = None, [], False  # the writer takes the next
        return [kind, field, shard, versions, over, lost]

    def _stream(self) -> list:
        return self._shard("stream")

    def _abandon(self) -> list:
        return self._shard("abandon")

    def _meta(self) -> list:
        return ["meta", self.rng.choice(list(self.state.rows)), self.meta()]

    def _compact(self) -> list:
        if self.rng.random() < self.pack_share:
            return ["compact", self.rng.choice([True, True, False])]
        return ["compact", None]

    def _bad(self) -> list:
        return ["bad", self.rng.choice(list(self.state.rows))]

    def perform(self, op: list) -> tuple[list, bool]:
        """Run an operation; return it with the new id, and whether all is stored."""
        kind, *rest = op
        done = getattr(self, f"_do_{kind}", None)
        if done is None:
            getattr(self.writer, kind)()
            acknowledged = True
        else:
            acknowledged = bool(done(op, *rest))
        self.state = apply(self.state, op)
        return op, acknowledged

    def _arrays(self, versions: dict) -> dict:
        return {f: value(f, v) for f, v in versions.items()}

    def _do_fields(self, op, names) -> bool:
        if len(names) == 1:
            self.writer.add_field(names[0])
        else:
            self.writer.add_fields(names)
        return True

    def _do_add(self, op, sample, versions, meta) -> None:
        arrays = self._arrays(versions)
        if sample is None:
            op[1] = self.writer.add_sample(arrays, metadata=meta)
            assert op[1] not in self.state.rows, f"{op[1]} was there before"
        else:
            assert self.writer.add_sample(arrays, sample, meta) == sample

    def _do_update(self, op, sample, versions, meta) -> None:
        self.writer.update_sample(sample, self._arrays(versions), meta)

    def _do_delete(self, op, samples) -> None:
        self.writer.delete_samples(samples)

    def _do_register(self, op, ids, metas) -> None:
        self.writer.register_samples(ids, metas)

    def _do_shard(self, op, field, shard, versions, over, lost) -> bool:
        arrays = [value(field, v) for v in versions.values()]
        self.writer.write_shard(field, shard, list(versions), arrays, overwrite=over)
        return True

    def _do_stream(self, op, field, shard, versions, over, lost) -> bool:
        with self.writer.open_shard(field, shard, overwrite=over) as stream:
            for sample, version in versions.items():
                stream.add_sample(sample, value(field, version))
        return True

    def _do_abandon(self, op, *rest) -> None:
        with contextlib.suppress(Abandoned):
            self._abandoned(*rest)

    def _abandoned(self, field, shard, versions, over, lost) -> None:
        with self.writer.open_shard(field, shard, overwrite=over) as stream:
            for sample in versions:
                stream.add_sample(sample, value(field, 0))
            raise Abandoned

    def _do_look(self, op) -> None:
        """Read all by an open reader: the same again, until `refresh`."""
        from fastshard.columnar import ShardedDatasetReader

        if self.reader is not None and self.rng.random() < 0.2:
            self.reader.close()
            self.reader = None
        if self.reader is None:
            self.reader, self.seen = ShardedDatasetReader(self.root), None
        elif self.rng.random() < 0.5:
            self.reader.refresh()
            self.seen = None
        found = read_by(self.reader, self.rng.random() < 0.3)
        if self.seen not in (None, found):
            raise Broken(f"a reader saw {self.seen}, and then {found}")
        self.seen = found

    def _do_meta(self, op, sample, meta) -> None:
        query = "UPDATE samples SET meta_json = ? WHERE id = ?"
        self.writer.conn.execute(query, (json.dumps(meta), sample))

    def _do_compact(self, op, pack) -> bool:
        self.writer.compact(pack)
        return True

    def _do_commit(self, op) -> bool:
        self.writer.conn.commit()
        return True

    def _do_bad(self, op, sample) -> None:
        """Try operations that must be refused, and check that nothing changed."""
        field = self.state.fields[0]
        for given in (sample, "another"):
            arrays = {field: np.arange(3)}
            if given != sample:
                arrays["none such"] = np.arange(3)
            try:
                self.writer.add_sample(arrays, given)
            except ValueError:
                continue
            raise AssertionError(f"{given} was taken")

    def _do_reopen(self, op) -> bool:
        self.writer.close()
        self.open()
        return True

    def _do_rebind(self, op) -> bool:
        """Open a writer while the old one is open, as the original's README does."""
        old = self.writer
        self.open()
        assert old.closed
        return True


def differences(state: State, found: Found) -> list[str]:
    """Describe the differences of two states; empty if they are equal."""
    said = []
    if state.fields != found.fields:
        said.append(f"fields {found.fields}, not {state.fields}")
    if list(state.rows) != list(found.rows):
        missing = [s for s in state.rows if s not in found.rows]
        more = [s for s in found.rows if s not in state.rows]
        said.append(f"rows: missing {missing}, too many {more}, or another order")
    for sample in state.rows.keys() & found.rows.keys():
        row, (meta, arrays) = state.rows[sample], found.rows[sample]
        if row.meta != meta:
            said.append(f"{sample!r}'s metadata is {meta}, not {row.meta}")
        wanted = {f: expected(f, v) for f, v in row.versions}
        said += [
            f"{sample!r}'s {f} is {arrays.get(f)}, not {wanted.get(f)}"
            for f in wanted.keys() | arrays.keys()
            if wanted.get(f) != arrays.get(f)
        ]
    return said


def which(states: list[State], found: Found) -> State:
    """Return the one of the possible states that is on disk."""
    nearest: list[str] | None = None
    for state in reversed(states):
        said = differences(state, found)
        if not said:
            return state
        if nearest is None or len(said) < len(nearest):
            nearest = said
    raise Broken(f"none of {len(states)} states; the nearest differs in: {nearest[:5]}")
