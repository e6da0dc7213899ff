"""Manifests that atdata wrote: true ones answer queries, false ones are passed over."""

import json
import warnings

import pytest

import fastshard
from fastshard import typed
from support.typed.classes import Tagged, Vec

pytest.importorskip("msgspec")
pytest.importorskip("pyarrow")

F = typed.query_fields(Tagged)
PREDICATES = {
    "F.idx >= 13": F.idx >= 13,
    "(F.label == 'dog') & F.ok": (F.label == "dog") & F.ok,
    "F.score.between(5, 7)": F.score.between(5, 7),
    "F.grade.isin([0, 2])": F.grade.isin([0, 2]),
    "~(F.score > 1)": ~(F.score > 1),
    "(F.idx == 3) | (F.idx == 24)": (F.idx == 3) | (F.idx == 24),
    "F.idx > 100": F.idx > 100,
    "F.score != 1.0": F.score != 1.0,
}
TAGGED = [f"tagged-{i:06}" for i in range(3)]


def dataset(typed_data, stem):
    return typed.Dataset(
        f"{typed_data.root}/extra/{stem}-{{000000..000002}}.tar", Tagged
    )


def locations(found, known_names=TAGGED):
    """Return atdata's form: the shard without its folder and its ending."""
    return [
        [at.shard.rpartition("/")[2].removesuffix(".tar"), at.key, at.offset]
        for at in found
    ]


@pytest.mark.parametrize("text", PREDICATES)
def test_queries_of_datasets(typed_data, text):
    ds = dataset(typed_data, "tagged")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = ds.query(PREDICATES[text])
    assert locations(found) == typed_data.extra["queries"][text]


@pytest.mark.parametrize("text", PREDICATES)
def test_queries_of_manifests(typed_data, text):
    manifests = [
        typed.ShardManifest.from_files(
            typed_data.root / f"extra/{stem}.manifest.json",
            typed_data.root / f"extra/{stem}.manifest.parquet",
        )
        for stem in TAGGED
    ]
    found = typed.QueryExecutor(manifests).query(PREDICATES[text])
    assert locations(found) == typed_data.extra["queries"][text]


def test_queries_by_functions(typed_data):
    pytest.importorskip("pandas")
    ds = dataset(typed_data, "tagged")
    wanted = typed_data.extra["queries"]["callable: 's1' in tags"]
    found = ds.query(lambda df: df["tags"].map(lambda tags: "s1" in tags))
    assert locations(found) == wanted


@pytest.mark.parametrize("text", PREDICATES)
def test_selections(typed_data, text):
    found = dataset(typed_data, "tagged").where(PREDICATES[text])
    wanted = [key for _, key, _ in typed_data.extra["queries"][text]]
    assert len(found) == len(wanted)
    keys = {
        sample.fields["idx"]["v"]: sample.key
        for stem in TAGGED
        for sample in typed_data.shards[f"extra/{stem}.tar"]
    }
    assert [keys[str(sample.idx)] for sample in found.ordered()] == wanted


@pytest.mark.parametrize("text", PREDICATES)
def test_false_manifests_are_passed_over(typed_data, text):
    """Those of atdata's writer: the same samples, so the same answers."""
    ds = dataset(typed_data, "byatdata")
    with pytest.warns(fastshard.StaleIndexWarning):
        found = ds.query(PREDICATES[text])
    by_idx = {
        sample.key: sample.fields["idx"]["v"]
        for stem in ("tagged", "byatdata")
        for i in range(3)
        for sample in typed_data.shards[f"extra/{stem}-{i:06}.tar"]
    }
    wanted = [by_idx[key] for _, key, _ in typed_data.extra["queries"][text]]
    assert [by_idx[at.key] for at in found] == wanted


def test_offsets_are_those_of_the_members(typed_data):
    """`__offset__` of atdata's manifests is a sum of sizes; it is not used."""
    ds = typed.Dataset(f"{typed_data.root}/vec-{{000000..000002}}.tar", Vec)
    with pytest.warns(fastshard.StaleIndexWarning):
        found = ds.query(typed.query_fields(Vec).idx.isin([3, 25, 49]))
    known = [
        typed_data.shards[f"vec-{i:06}.tar"][at] for i, at in ((0, 3), (1, 5), (2, 9))
    ]
    assert [(at.key, at.offset) for at in found] == [(s.key, s.offset) for s in known]


@pytest.mark.parametrize("stem", [*TAGGED, *(f"byatdata-{i:06}" for i in range(3))])
def test_manifests_are_read_as_written(typed_data, stem):
    root = typed_data.root / "extra"
    header = json.loads((root / f"{stem}.manifest.json").read_bytes())
    found = typed.ShardManifest.from_files(
        root / f"{stem}.manifest.json", root / f"{stem}.manifest.parquet"
    )
    for name in ("shard_id", "schema_type", "schema_version", "num_samples"):
        assert getattr(found, name) == header[name]
    assert found.size_bytes == header["size_bytes"]
    if header["num_samples"]:  # an empty one has Infinity
        assert found.aggregates == header["aggregates"]
    assert (found.provenance or {}) == header.get("provenance", {})
    rows = typed_data.extra["manifests"][stem]["rows"]
    assert found.num_samples == len(rows)
