"""Files of manifests: built, written, read, and as other libraries read them."""

import datetime
import json
import math
from typing import Annotated, Any, Literal

import numpy as np
import pytest
from numpy.typing import NDArray

from fastshard import FormatError, typed
from fastshard.typed.manifest import create_aggregate, resolve_manifest_fields

pq = pytest.importorskip("pyarrow.parquet")


@typed.packable
class Scene:
    image: NDArray[np.uint8]
    label: str
    score: float | None
    count: "int"
    night: bool
    tags: list[str]
    kind: Literal["a", "b"]
    grade: Annotated[int, typed.ManifestField("categorical")]
    marked: Annotated[float, typed.ManifestField("numeric")] | None
    secret: Annotated[str, typed.ManifestField("categorical", exclude=True)]
    raw: bytes
    more: dict[str, int]
    either: int | str


def scene(i, **changes):
    values = {
        "image": np.zeros(3, "u1"), "label": "cat", "score": i / 2, "count": i,
        "night": i > 1, "tags": ["x", f"t{i}"], "kind": "a", "grade": i, "marked": 1.0,
        "secret": "s", "raw": b"", "more": {}, "either": 1,
    }  # fmt: skip
    return Scene(**values | changes)


def test_fields_that_a_manifest_has():
    found = {k: v.aggregate for k, v in resolve_manifest_fields(Scene).items()}
    assert found == {
        "label": "categorical",
        "score": "numeric",
        "count": "numeric",
        "night": "categorical",
        "tags": "set",
        "kind": "categorical",
        "grade": "categorical",
        "marked": "numeric",
    }
    assert list(typed.query_fields(Scene)) == list(found)
    with pytest.raises(TypeError, match="packable class"):
        resolve_manifest_fields(int)
    with pytest.raises(ValueError, match="aggregate must be"):
        typed.ManifestField("histogram")
    with pytest.raises(ValueError, match="Unknown aggregate kind"):
        create_aggregate("histogram")


@pytest.fixture
def written(tmp_path):
    samples = [scene(0), scene(1, score=None), scene(2, label="dog", tags=[])]
    ds = typed.write_samples(samples, tmp_path / "a-1.5.tar", manifest=True)
    return ds, tmp_path / "a-1.5.manifest.json", tmp_path / "a-1.5.manifest.parquet"


def test_the_header(written):
    ds, path, _ = written
    header = json.loads(path.read_text(), parse_constant=pytest.fail)
    assert header["manifest_version"] == "1.0.0"
    assert header["shard_id"] == "a-1.5"
    assert (header["schema_type"], header["schema_version"]) == ("Scene", "1.0.0")
    assert header["num_samples"] == 3
    created = datetime.datetime.fromisoformat(header["created_at"])
    assert created.tzinfo is not None
    found = header["aggregates"]
    assert found["label"] == {
        "type": "categorical",
        "cardinality": 2,
        "value_counts": {"cat": 2, "dog": 1},
    }
    assert found["score"] == {
        "type": "numeric", "min": 0.0, "max": 1.0, "mean": 0.5, "count": 2,
    }  # fmt: skip
    assert found["night"]["value_counts"] == {"False": 2, "True": 1}
    assert found["grade"]["value_counts"] == {"0": 1, "1": 1, "2": 1}
    assert found["tags"] == {"type": "set", "all_values": ["t0", "t1", "x"]}
    assert header["fastshard"]["fingerprint"] == typed.fingerprint(Scene)
    assert header["fastshard"]["schema"] == json.loads(typed.schema_of(Scene))
    sizes = [len(member) for member in ds_members(ds)]
    assert header["size_bytes"] == sum(sizes)


def ds_members(ds):
    from fastshard import open_shard

    return list(open_shard(ds.list_shards()[0]))


def test_the_table(written):
    from fastshard import open_shard

    ds, _, path = written
    rows = pq.read_table(path).to_pylist()
    shard = open_shard(ds.list_shards()[0])
    assert [row["__key__"] for row in rows] == list(ds.keys())
    assert [row["__offset__"] for row in rows] == shard.offsets.tolist()
    assert [row["__size__"] for row in rows] == shard.sizes.tolist()
    assert [row["score"] for row in rows] == [0.0, None, 1.0]
    assert [json.loads(row["tags"]) for row in rows] == [["x", "t0"], ["x", "t1"], []]
    assert "secret" not in rows[0]
    assert "raw" not in rows[0]


def test_manifests_are_read_back(written):
    _, json_path, parquet_path = written
    found = typed.ShardManifest.from_files(json_path, parquet_path)
    assert found.rows.column("tags") == [["x", "t0"], ["x", "t1"], []]
    assert found.rows.column("score") == [0.0, None, 1.0]
    assert len(found.samples) == 3
    assert found == typed.ShardManifest.from_files(json_path, parquet_path)
    header = typed.ShardManifest.from_json_only(json_path)
    assert header.num_samples == 3
    assert len(header.rows) == 0
    assert header != found


def build(samples, **options):
    builder = typed.ManifestBuilder(Scene, "s", **options)
    for i, sample in enumerate(samples):
        builder.add_sample(key=f"k{i}", offset=i, size=10, sample=sample)
    return builder.build()


@pytest.mark.parametrize(
    "counts",
    [[0, 2**63 - 1, -(2**63)], [2**64 - 1, 0], [-1, 2**64 - 1], [1, 2.5], [2**53 + 1]],
    ids=repr,
)
def test_numbers_are_exact_in_tables(tmp_path, counts):
    manifest = build([scene(0, count=count) for count in counts])
    paths = typed.ManifestWriter(tmp_path / "s").write(manifest)
    assert typed.ShardManifest.from_files(*paths).rows.column("count") == counts


class Loose(typed.PackableSample):
    value: Annotated[Any, typed.ManifestField("categorical")]


@pytest.mark.parametrize(
    "values",
    [[2**64 - 1, 0.5, -(2**63)], [1, True, "1", None], [2**53, 0.5], [2**53 + 1, 0.5]],
    ids=repr,
)
def test_columns_of_several_types_are_exact(tmp_path, values):
    builder = typed.ManifestBuilder(Loose, "s")
    for i, value in enumerate(values):
        builder.add_sample(key=f"k{i}", offset=i, size=10, sample=Loose(value))
    paths = typed.ManifestWriter(tmp_path / "s").write(builder.build())
    found = typed.ShardManifest.from_files(*paths)
    assert found.rows.column("value") == values


def test_large_numbers_of_both_signs_are_compared_with_nan(tmp_path):
    manifest = build([scene(0, count=2**64 - 1), scene(0, count=-1)])
    paths = typed.ManifestWriter(tmp_path / "s").write(manifest)
    executor = typed.QueryExecutor([typed.ShardManifest.from_files(*paths)])
    fields = typed.query_fields(Scene)
    assert len(executor.query(fields.count >= math.nan)) == 0
    assert len(executor.query(fields.count >= 0.5)) == 1


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_numbers_that_json_has_not_are_null(tmp_path, value):
    manifest = build([scene(0, score=value), scene(1)])
    paths = typed.ManifestWriter(tmp_path / "s").write(manifest)
    json.loads(paths[0].read_text(), parse_constant=pytest.fail)
    found = typed.ShardManifest.from_files(*paths)
    assert str(found.rows.column("score")) == str([value, 0.5])
    fields = typed.query_fields(Scene)
    executor = typed.QueryExecutor([found])
    assert len(executor.query(fields.score > 0)) == 1 + (value == math.inf)
    assert len(executor.query(fields.score != 0.5)) == 1


def test_a_manifest_without_samples(tmp_path):
    manifest = build([])
    paths = typed.ManifestWriter(tmp_path / "new" / "s").write(manifest)
    header = json.loads(paths[0].read_text(), parse_constant=pytest.fail)
    assert header["aggregates"]["score"]["min"] is None
    found = typed.ShardManifest.from_files(*paths)
    assert (found.num_samples, len(found.rows)) == (0, 0)
    assert (
        typed.QueryExecutor([found]).query(typed.query_fields(Scene).count == 1) == []
    )


def test_provenance(tmp_path):
    manifest = build([scene(0)], source_job_id="j", parent_shards=["a", "b"])
    paths = typed.ManifestWriter(tmp_path / "s").write(manifest)
    found = typed.ShardManifest.from_files(*paths)
    assert found.provenance == {"source_job_id": "j", "parent_shards": ["a", "b"]}


def test_values_that_an_aggregate_does_not_take():
    with pytest.raises(TypeError, match="field 'count'"):
        build([scene(0, count="many")])


def test_rows_and_header_that_disagree(written):
    _, json_path, parquet_path = written
    header = json.loads(json_path.read_text())
    json_path.write_text(json.dumps(header | {"num_samples": 2}))
    with pytest.raises(FormatError, match=r"expected 2 rows, got 3.*parquet"):
        typed.ShardManifest.from_files(json_path, parquet_path)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", '{"shard_id": 1}', "[" * 10**5]
)
def test_headers_that_are_none(tmp_path, text):
    (tmp_path / "a.manifest.json").write_text(text)
    with pytest.raises(FormatError, match=r"a\.manifest\.json"):
        typed.ShardManifest.from_json_only(tmp_path / "a.manifest.json")
    with pytest.raises(FormatError):
        typed.QueryExecutor.from_directory(tmp_path)


def test_files_that_are_missing(tmp_path):
    with pytest.raises(FileNotFoundError):
        typed.ShardManifest.from_json_only(tmp_path / "a.manifest.json")
    with pytest.raises(FileNotFoundError):
        typed.QueryExecutor.from_directory(tmp_path / "none")
    assert (
        typed.QueryExecutor.from_shard_urls([str(tmp_path / "a.tar")]).query(
            typed.query_fields(Scene).count == 1
        )
        == []
    )


def test_untyped_samples_have_no_manifest(tmp_path):
    with pytest.raises(TypeError, match="DictSample declares none"):
        typed.write_samples([typed.DictSample(a=1)], tmp_path / "a.tar", manifest=True)
    assert not list(tmp_path.iterdir())
