"""Queries over datasets: by manifests that are true, else by the samples."""

import datetime
import json
import math
import os
import shutil
import warnings
from typing import Annotated

import numpy as np
import pytest
from numpy.typing import NDArray

from fastshard import StaleIndexWarning, build_index, typed
from fastshard.typed.manifest import proofs, shard_manifest
from fastshard.where.predicate import F
from support.inside.datasets import opened_shards
from support.inside.typed import packed_of
from support.servers.http import Server

pytest.importorskip("pyarrow")


@typed.packable
class Tagged:
    idx: int
    label: str
    ok: bool
    score: float | None
    tags: list[str]
    colours: Annotated[list[str], typed.ManifestField("set")]
    grade: Annotated[int, typed.ManifestField("categorical")]
    hidden: Annotated[str, typed.ManifestField("categorical", exclude=True)]
    x: NDArray
    raw: bytes


@typed.packable
class Item:
    i: int
    label: str
    x: NDArray[np.float32]
    tags: list[str]
    maybe: float | None = None


CONDITIONS = {  # by their names in expected.json
    "F.idx >= 13": F.idx >= 13,
    "(F.label == 'dog') & F.ok": (F.label == "dog") & F.ok,
    "F.score.between(5, 7)": F.score.between(5, 7),
    "F.grade.isin([0, 2])": F.grade.isin([0, 2]),
    "~(F.score > 1)": ~(F.score > 1),
    "(F.idx == 3) | (F.idx == 24)": (F.idx == 3) | (F.idx == 24),
    "F.idx > 100": F.idx > 100,
    "F.score != 1.0": F.score != 1.0,
    "callable: 's1' in tags": F.tags.contains("s1"),
}


@pytest.fixture
def queries(typed_data):
    known = json.loads((typed_data.root / "extra" / "expected.json").read_text())
    assert known["queries"].keys() == CONDITIONS.keys()
    return {
        name: [tuple(place) for place in places]
        for name, places in known["queries"].items()
    }


def tagged(data, name="tagged"):
    return [str(data.root / "extra" / f"{name}-{k:06d}.tar") for k in range(3)]


@pytest.mark.parametrize("kind", [Tagged, None])
@pytest.mark.parametrize("name", CONDITIONS)
def test_the_places_that_atdata_finds(typed_data, queries, kind, name):
    ds = typed.Dataset(tagged(typed_data), kind)
    assert ds.query(CONDITIONS[name]) == queries[name]
    assert list(ds.where(CONDITIONS[name]).keys()) == [
        key for _, key, _ in queries[name]
    ]


@pytest.mark.parametrize(
    "name", [n for n in CONDITIONS if n.startswith(("F", "~", "("))]
)
def test_functions_of_data_frames(typed_data, queries, name):
    pytest.importorskip("pandas")
    condition = CONDITIONS[name]
    ds = typed.Dataset(tagged(typed_data), Tagged)
    assert ds.query(lambda frame: condition(frame)) == queries[name]
    executor = typed.QueryExecutor.from_shard_urls(tagged(typed_data))
    assert executor.query(condition) == queries[name]
    assert executor.query(lambda frame: condition(frame)) == queries[name]


def test_false_manifests_are_passed_over(typed_data, queries):
    """atdata's own are of the shard before, or empty: fault 4."""
    ds = typed.Dataset(tagged(typed_data, "byatdata"), Tagged)
    for name, condition in CONDITIONS.items():
        with pytest.warns(StaleIndexWarning, match="stale.*byatdata-000002") as caught:
            found = ds.query(condition)
        assert len(caught) == 1
        assert [place.shard for place in found] == [
            place[0].replace("tagged", "byatdata") for place in queries[name]
        ]
        keys = list(ds.keys())
        offsets = [1536 + 2048 * (keys.index(place.key) % 5) for place in found]
        assert [place.offset for place in found] == offsets


def test_functions_see_the_samples_of_false_manifests(typed_data, queries):
    pytest.importorskip("pandas")
    ds = typed.Dataset(tagged(typed_data, "byatdata"), Tagged)
    with pytest.warns(StaleIndexWarning):
        assert len(ds.query(lambda frame: frame["idx"] >= 13)) == 7
    untyped = typed.Dataset(tagged(typed_data, "byatdata"))
    with pytest.warns(StaleIndexWarning):
        assert len(untyped.query(lambda frame: frame["idx"] >= 13)) == 7


def make(path, n=30, **options):
    samples = (
        Item(i, "ab"[i % 2], np.full(3, i, "f4"), [f"t{i % 3}"], i if i % 5 else None)
        for i in range(n)
    )
    return typed.write_samples(samples, path / "a.tar", maxcount=10, **options)


@pytest.fixture
def data(tmp_path):
    return make(tmp_path, manifest=True)


QUERIES = [
    (F.i >= 25, [25, 26, 27, 28, 29]),
    (F.maybe == None, [0, 5, 10, 15, 20, 25]),  # noqa: E711
    ((F.label == "b") & F.tags.contains("t0"), [3, 9, 15, 21, 27]),
    (F.i.isin([3, 17]), [3, 17]),
    (F.i < 0, []),
]


@pytest.mark.parametrize(
    ("condition", "expected"), QUERIES, ids=[str(q[0]) for q in QUERIES]
)
def test_with_manifests_and_without(tmp_path, condition, expected):
    (tmp_path / "without").mkdir()
    (tmp_path / "with").mkdir()
    found = []
    for ds in (make(tmp_path / "without"), make(tmp_path / "with", manifest=True)):
        assert [s.i for s in ds.where(condition)] == expected
        found.append(ds.query(condition))
        assert [int(place.key) for place in found[-1]] == expected
        for place in found[-1]:
            with open(tmp_path / "with" / f"{place.shard}.tar", "rb") as file:
                file.seek(place.offset)
                assert file.read(1)[0] == 0x85  # a map of five
    assert found[0] == found[1]


def test_payloads_of_shards_that_are_ruled_out_are_not_read(tmp_path, data):
    for k in range(2):  # the payloads become invalid msgpack
        path = tmp_path / f"a-{k:06d}.tar"
        whole = bytearray(path.read_bytes())
        for i in range(10):
            whole[i * 1024 + 512 : i * 1024 + 1024] = b"\xc1" * 512
        path.write_bytes(whole)
    ds = typed.Dataset[Item](data.list_shards(), index="none")
    assert [int(place.key) for place in ds.query(F.i >= 28)] == [28, 29]
    assert [int(place.key) for place in ds.query(F.i == 3)] == [3]  # by the table
    with pytest.raises(typed.ShardError):
        ds[3]


def test_selections_and_orders_are_kept(data):
    condition = F.i >= 25
    assert [int(p.key) for p in data[26:].query(condition)] == [26, 27, 28, 29]
    assert data[:10].query(condition) == []
    mixed = data.shuffle(7)
    expected = [s.i for s in mixed if s.i >= 25]
    assert [int(p.key) for p in mixed.query(condition)] == expected
    assert [s.i for s in mixed.where(condition)] == expected
    odd = data.filter(lambda s: s.i % 2)
    assert [s.i for s in odd.where(condition)] == [25, 27, 29]
    assert [int(p.key) for p in odd.query(condition)] == [25, 27, 29]


def test_conditions_apply_after_lenses_and_functions(data):
    @typed.packable
    class Halved:
        half: float

    halved = data.map(lambda s: Halved(s.i / 2))
    assert [int(p.key) for p in halved.query(F.half > 14)] == [29]
    assert [s.half for s in halved.where(F.half > 14)] == [14.5]
    dicts = data.map(lambda s: {"half": s.i / 2})
    assert [int(p.key) for p in dicts.query(F.half > 14)] == [29]
    with pytest.raises(KeyError, match="no sample has a field 'i'"):
        halved.query(F.i > 14)

    @typed.lens
    def halve(item: Item) -> Halved:
        return Halved(item.i / 2)

    ds = data.as_type(Halved)
    assert [int(p.key) for p in ds.query(ds.fields.half > 14)] == [29]
    with pytest.raises(KeyError, match="Halved has no field 'i'"):
        ds.query(F.i > 14)
    pytest.importorskip("pandas")
    for mapped in (halved, dicts, ds):
        assert [int(p.key) for p in mapped.query(lambda df: df["half"] > 14)] == [29]


def test_fields_that_are_in_no_manifest_are_read_from_samples(typed_data, data):
    ds = typed.Dataset(tagged(typed_data), Tagged)
    assert len(ds.query(F.hidden != "")) == 15
    assert len(ds.query((F.hidden != "") & (F.idx > 100))) == 0
    with pytest.raises(KeyError, match="nope"):
        ds.query(F.nope == 1)
    with pytest.raises(KeyError, match="nope"):
        typed.Dataset(tagged(typed_data)).query(F.nope == 1)
    with pytest.raises(AttributeError, match="idx, label"):
        ds.fields.nope  # noqa: B018
    assert typed.Dataset(tagged(typed_data)).fields.anything is not None


def test_a_manifest_in_another_order(tmp_path, data):
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "a-000001.manifest.parquet"
    table = pq.read_table(path)
    pq.write_table(table.take(pa.array(range(9, -1, -1))), path)
    drop_extras(tmp_path / "a-000001.manifest.json")
    assert [int(p.key) for p in data.query(F.i.between(11, 13))] == [11, 12, 13]


def drop_extras(path):
    header = json.loads(path.read_text())
    del header["fastshard"]
    path.write_text(json.dumps(header, indent=2))
    return header


def change(path, **changes):
    header = drop_extras(path)
    header.update(changes)
    path.write_text(json.dumps(header))


def reorder(path):
    pa, pq = (
        pytest.importorskip("pyarrow"),
        pytest.importorskip("pyarrow.parquet"),
    )
    table = pq.read_table(path)
    keys = pa.array([f"other{i}" for i in range(table.num_rows)])
    pq.write_table(table.set_column(0, "__key__", keys), path)


def cut(path, size):
    path.write_bytes(path.read_bytes()[:size])


def write_table(path, columns):
    pa, pq = (
        pytest.importorskip("pyarrow"),
        pytest.importorskip("pyarrow.parquet"),
    )
    pq.write_table(pa.table(columns), path)


KEYS = [f"{i:012d}" for i in range(10, 20)]
DAMAGES = {
    "no JSON": lambda j, p: j.write_text("{"),
    "empty": lambda j, p: j.write_text(""),
    "a list": lambda j, p: j.write_text("[]"),
    "deep": lambda j, p: j.write_text("[" * 100_000),
    "no UTF-8": lambda j, p: j.write_bytes(b'{"shard_id": "\xff"}'),
    "samples": lambda j, p: change(j, num_samples=9),
    "negative": lambda j, p: change(j, num_samples=-1),
    "a text": lambda j, p: change(j, num_samples="10"),
    "true": lambda j, p: change(j, num_samples=True),
    "version": lambda j, p: change(j, manifest_version="2.0.0"),
    "time": lambda j, p: change(j, created_at="yesterday"),
    "no time": lambda j, p: change(j, created_at=None),
    "aggregates": lambda j, p: change(j, aggregates=[1]),
    "aggregate": lambda j, p: change(j, aggregates={"i": 3}),
    "type": lambda j, p: change(j, aggregates={"i": {"type": 3}}),
    "counts": lambda j, p: change(
        j, aggregates={"i": {"type": "categorical", "value_counts": [1]}}
    ),
    "a count": lambda j, p: change(
        j, aggregates={"i": {"type": "categorical", "value_counts": {"1": "x"}}}
    ),
    "minimum": lambda j, p: change(
        j, aggregates={"i": {"type": "numeric", "min": "0", "max": 1, "count": 10}}
    ),
    "huge": lambda j, p: change(
        j, aggregates={"i": {"type": "numeric", "min": 10**400, "max": 1, "count": 1}}
    ),
    "values": lambda j, p: change(
        j, aggregates={"i": {"type": "set", "all_values": [1]}}
    ),
    "size": lambda j, p: change(j, fastshard={"shard_bytes": 3}),
    "header": lambda j, p: j.write_text(j.read_text().replace(" 19.0", " 13.0")),
    "digest": lambda j, p: change(j, fastshard={"key_digest": "0"}),
    "digest of another type": lambda j, p: change(j, fastshard={"key_digest": [1]}),
    "no table": lambda j, p: (drop_extras(j), p.unlink()),
    "an empty table": lambda j, p: (drop_extras(j), p.write_bytes(b"")),
    "half a table": lambda j, p: (drop_extras(j), cut(p, 700)),
    "no Parquet": lambda j, p: (drop_extras(j), p.write_bytes(b"PAR1" * 300)),
    "other keys": lambda j, p: (drop_extras(j), reorder(p)),
    "no keys": lambda j, p: (drop_extras(j), write_table(p, {"i": list(range(10))})),
    "no columns": lambda j, p: (drop_extras(j), write_table(p, {})),
    "keys that are numbers": lambda j, p: (
        drop_extras(j),
        write_table(p, {"__key__": list(range(10)), "i": list(range(10))}),
    ),
    "a key twice": lambda j, p: (
        drop_extras(j),
        write_table(p, {"__key__": [KEYS[0], *KEYS[:9]], "i": list(range(10))}),
    ),
    "numbers that are text": lambda j, p: (
        drop_extras(j),
        write_table(p, {"__key__": KEYS, "i": list("0123456789")}),
    ),
    "numbers that are times": lambda j, p: write_table(
        p, {"__key__": KEYS, "i": [datetime.datetime(2000, 1, 1)] * 10}
    ),
    "fewer rows": lambda j, p: (
        drop_extras(j),
        write_table(p, {"__key__": KEYS[:9], "i": list(range(9))}),
    ),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_broken_manifests_are_passed_over_with_a_warning(tmp_path, data, name):
    base = tmp_path / "a-000001.manifest"
    DAMAGES[name](
        base.with_suffix(".manifest.json"), base.with_suffix(".manifest.parquet")
    )
    with pytest.warns(StaleIndexWarning, match="a-000001.manifest"):
        found = data.query(F.i.between(12, 21))
    assert [int(place.key) for place in found] == list(range(12, 22))


def test_bounds_of_no_value_rule_nothing_out(tmp_path, data):
    bounds = {"type": "numeric", "min": math.inf, "max": -math.inf, "count": 10}
    change(tmp_path / "a-000001.manifest.json", aggregates={"i": bounds})
    assert len(data.query(F.i.between(12, 21))) == 10


def test_infinity_is_read(tmp_path, data):
    path = tmp_path / "a-000001.manifest.json"
    drop_extras(path)
    text = path.read_text()
    path.write_text(text.replace('"max": 19.0', '"max": Infinity', 1))
    assert "Infinity" in path.read_text()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [int(p.key) for p in data.query(F.i > 17)][:2] == [18, 19]


def test_no_damage_gives_another_answer(tmp_path, data):
    rng = np.random.default_rng(0)
    kept = {path: path.read_bytes() for path in tmp_path.glob("*.manifest.*")}
    paths = sorted(kept)
    for turn in range(120):
        path = paths[turn % len(paths)]
        whole = bytearray(kept[path])
        if turn % 4 == 3:
            del whole[rng.integers(len(whole)) :]
        else:
            whole[rng.integers(len(whole))] ^= 1 << int(rng.integers(8))
        path.write_bytes(whole)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", StaleIndexWarning)
            try:
                assert len(data.query((F.i >= 0) & (F.label != "c"))) == 30
                assert len(data.query(F.tags.contains("t1"))) == 10
                assert len(data.query(F.i > 24)) == 5
            except TypeError as error:  # a column of another type
                assert "field" in str(error)
        path.write_bytes(kept[path])


def test_manifests_over_http(tmp_path, data):
    files = {f"/{path.name}": path.read_bytes() for path in tmp_path.iterdir()}
    with Server(files) as server:
        ds = typed.Dataset[Item]([f"{server.url}/a-{k:06d}.tar" for k in range(3)])
        assert [int(place.key) for place in ds.query(F.i >= 28)] == [28, 29]
        asked = [request.path for request in server.requests]
        assert any(path.endswith("a-000002.manifest.parquet") for path in asked)


def test_shards_of_one_name_in_two_folders(tmp_path):
    for name in "ab":
        (tmp_path / name).mkdir()
        typed.write_samples(
            [Item(1, name, np.zeros(1, "f4"), [])], tmp_path / name / "s.tar"
        )
    ds = typed.Dataset[Item]([str(tmp_path / name / "s.tar") for name in "ab"])
    assert [place.shard for place in ds.query(F.i == 1)] == [
        str(tmp_path / name / "s") for name in "ab"
    ]


def test_non_conditions(data):
    with pytest.raises(TypeError, match="expected a condition"):
        data.query("i > 1")
    pytest.importorskip("pandas")
    with pytest.raises(ValueError, match="10 bools"):
        data.query(lambda frame: [True])
    with pytest.raises(ValueError, match="bools"):
        data.query(lambda frame: frame["i"])
    with pytest.raises(TypeError, match="field 'label'"):
        data.query(F.label > 3)


@pytest.fixture
def settled(tmp_path, data, monkeypatch):
    """Return a dataset of three shards whose manifests are kept once compared."""
    monkeypatch.setattr(proofs, "SETTLED", 0)
    monkeypatch.setattr(proofs, "PROOFS", proofs.Proofs())
    return data


def read_headers(monkeypatch):
    """Return a list to which the paths of headers are added as they are read."""
    paths = []
    parse = shard_manifest.parse_header

    def parse_header(data, path):
        paths.append(path)
        return parse(data, path)

    monkeypatch.setattr(shard_manifest, "parse_header", parse_header)
    return paths


@pytest.mark.parametrize("again", [False, True], ids=["same dataset", "opened again"])
def test_manifests_are_compared_once(settled, monkeypatch, again):
    expected = settled.query(F.i < 5)
    paths = read_headers(monkeypatch)
    ds = typed.Dataset(settled.list_shards(), Item) if again else settled
    assert ds.query(F.i < 5) == expected
    assert len(paths) == 1  # of the shard that is left
    assert ds.query(F.i < 0) == []
    assert len(paths) == 1


@pytest.mark.parametrize("kind", ["manifest.json", "manifest.parquet", "tar"])
def test_manifests_are_compared_again_once_a_file_changes(settled, monkeypatch, kind):
    assert settled.query(F.i < 0) == []
    shards = settled.list_shards()
    base = shards[0].removesuffix(".tar")
    shutil.copy(f"{base}.{kind}", f"{base}.copy")
    os.replace(f"{base}.copy", f"{base}.{kind}")
    paths = read_headers(monkeypatch)
    assert typed.Dataset(shards, Item).query(F.i < 0) == []
    assert paths == [f"{base}.manifest.json"]


def test_a_replaced_shard_loses_no_samples(settled, tmp_path):
    assert settled.query(F.i < 0) == []
    shards = settled.list_shards()
    found = [Item(-i, "z", np.zeros(3, "f4"), []) for i in range(10)]
    typed.write_samples(found, tmp_path / "z.tar", key=lambda s: f"z{s.i}")
    for suffix in ("tar", "fsi"):
        os.replace(
            tmp_path / f"z.{suffix}", f"{shards[0].removesuffix('.tar')}.{suffix}"
        )
    with pytest.warns(StaleIndexWarning, match="manifest"):
        assert len(typed.Dataset(shards, Item).query(F.i < 0)) == 9


def test_manifests_of_files_just_written_are_compared_again(data, monkeypatch):
    monkeypatch.setattr(proofs, "PROOFS", proofs.Proofs())
    data.query(F.i < 0)
    paths = read_headers(monkeypatch)
    data.query(F.i < 0)
    assert len(paths) == 3


def test_kept_manifests_are_bounded(settled, monkeypatch):
    monkeypatch.setattr(proofs, "MAX_KEPT", 3000)
    settled.query(F.i < 0)
    assert 1 <= len(proofs.PROOFS.known) < 3


def opened(ds):
    return opened_shards(packed_of(ds))


@pytest.mark.parametrize("whole", [False, True], ids=["fsi", "dataset.fsi"])
def test_shards_that_are_ruled_out_are_not_opened(tmp_path, data, whole):
    if whole:
        build_index(tmp_path)
    ds = typed.Dataset(data.list_shards(), Item)
    assert [place.key for place in ds.query(F.i >= 29)] == ["000000000029"]
    assert opened(ds) == [False, False, True]


@pytest.mark.parametrize("damage", ["copied", "no index", "broken index"])
def test_shards_without_a_fresh_index_are_opened(data, damage):
    shards = data.list_shards()
    for path in shards:
        index = f"{path.removesuffix('.tar')}.fsi"
        if damage == "copied":  # the index has the identity of another file
            shutil.copy(path, f"{path}.copy")
            os.replace(f"{path}.copy", path)
        elif damage == "no index":
            os.remove(index)
        else:
            with open(index, "r+b") as file:
                file.truncate(200)
    ds = typed.Dataset(shards, Item)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", StaleIndexWarning)
        assert [place.key for place in ds.query(F.i >= 29)] == ["000000000029"]
    assert opened(ds) == [True, True, True]
