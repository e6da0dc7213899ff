"""Manifests that atdata wrote: true ones answer queries, false ones are passed over."""

import json

import pytest

from fastshard import typed
from support.typed.classes import Tagged

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
    """Return what atdata says: the shard without its folder and its ending."""
    return [
        [at.shard.rpartition("/")[2].removesuffix(".tar"), at.key, at.offset]
        for at in found
    ]


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
