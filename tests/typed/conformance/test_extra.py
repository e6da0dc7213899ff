"""Two versions of a type, other kinds of fields, members beside the payload."""

import hashlib

import numpy as np
import pytest
from numpy.typing import NDArray

import fastshard
from fastshard import typed
from support.typed.classes import Formats, Item, ItemV1, ItemV2
from support.typed.expected import described, described_array

pytest.importorskip("msgspec")

V1, V2 = "extra/item-v1.tar", "extra/item-v2.tar"
MODES = ("mmap", "private", "pread")


@typed.packable
class Part:
    idx: int
    x: NDArray


def test_one_class_reads_both_versions(typed_data):
    ds = typed.Dataset([typed_data.root / V1, typed_data.root / V2], Item)
    known = [*typed_data.shards[V1], *typed_data.shards[V2]]
    samples = list(ds.ordered())
    assert [sample.idx for sample in samples] == list(range(8))
    for found, sample in zip(samples, known, strict=True):
        names = sample.fields.keys()
        text = "text" if "text" in names else "caption"
        assert described(found.text) == sample.fields[text]
        assert described(found.x) == sample.fields["x"]
        mask = sample.fields.get("mask", {"t": "none"})
        assert described(found.mask) == mask
    assert [sample.score for sample in samples[:4]] == [0.0, 10.0, 20.0, 30.0]
    assert {type(sample.score) for sample in samples} == {float}
    assert [sample.tags for sample in samples[:4]] == [None] * 4
    assert [sample.source for sample in samples] == ["unknown"] * 4 + ["made"] * 4


@pytest.mark.parametrize("name", [V1, V2])
def test_a_part_of_the_fields(typed_data, name):
    """In place of the TypeError of atdata; `as_type` gives the same, as there."""
    known = [sample.fields for sample in typed_data.shards[name]]
    whole = typed.Dataset(typed_data.root / name, ItemV1 if name == V1 else ItemV2)
    for ds in (typed.Dataset(typed_data.root / name, Part), whole.as_type(Part)):
        found = [
            {"idx": described(sample.idx), "x": described(sample.x)}
            for sample in ds.ordered()
        ]
        assert found == [{name: f[name] for name in ("idx", "x")} for f in known]


@pytest.mark.parametrize(
    ("name", "cls", "missing"), [(V1, ItemV2, "text"), (V2, ItemV1, "caption")]
)
def test_the_other_version_lacks_fields(typed_data, name, cls, missing):
    ds = typed.Dataset(typed_data.root / name, cls)
    sample = typed_data.shards[name][0]
    for read in (lambda: ds[0], lambda: list(ds), lambda: ds.head(1)):
        with pytest.raises(typed.SchemaError, match=missing) as caught:
            read()
        assert caught.value.key == sample.key
        assert caught.value.path.endswith(name.rpartition("/")[2])
        assert isinstance(caught.value, TypeError)


@pytest.mark.parametrize("mode", MODES)
def test_other_kinds_of_fields(typed_data, mode):
    scipy = pytest.importorskip("scipy.sparse")
    pytest.importorskip("pyarrow")
    pytest.importorskip("pandas")
    name = "extra/formats.tar"
    raw = [s["fields"] for s in typed_data.extra["shards"]["formats.tar"]["samples"]]
    ds = typed.Dataset(typed_data.root / name, Formats, mode=mode)
    for found, known in zip(ds.ordered(), raw, strict=True):
        assert described(found.name) == {"t": "str", "v": known["name"]["v"]}
        for field in ("csr", "other"):
            matrix, wanted = getattr(found, field), known[field]
            assert scipy.issparse(matrix)
            assert matrix.format == wanted["format"]
            assert matrix.dtype.str == wanted["dtype"]
            assert matrix.toarray().tolist() == wanted["dense"]
        rows = [list(row) for row in found.table.itertuples(index=False)]
        for row in rows:
            row[-1] = str(row[-1])
        assert rows == known["table"]["rows"]
        assert list(found.table.columns) == list(known["table"]["columns"])
        tensor = found.tensor
        assert list(tensor.strides) == known["tensor"]["strides"]
        array = np.ascontiguousarray(tensor.to_numpy())
        wanted = known["tensor"]
        assert described_array(array) == {
            "t": "nd",
            **{key: wanted[key] for key in ("dtype", "shape", "sha256")},
        }
        wanted = known["records"]
        assert described(found.records) == {
            "t": "nd",
            **{key: wanted[key] for key in ("dtype", "shape", "sha256")},
        }
        assert {
            field: described_array(np.asarray(value))
            for field, value in found.pair.items()
        } == known["pair"]["tensors"]


def test_other_kinds_are_bytes_unless_the_class_says_so(typed_data):
    raw = [s["fields"] for s in typed_data.extra["shards"]["formats.tar"]["samples"]]
    kinds = ("csr", "other", "table", "tensor", "pair")
    ds = typed.Dataset(typed_data.root / "extra/formats.tar")
    for found, known in zip(ds.ordered(), raw, strict=True):
        for field in kinds:
            assert type(found[field]) is bytes
            digest = hashlib.sha256(found[field]).hexdigest()
            assert digest == known[field]["field_sha256"]
            assert len(found[field]) == known[field]["field_size"]


class TestMembersBesideThePayload:
    """``fields.tar``: samples of several members, one of them without a payload."""

    @pytest.fixture
    def path(self, typed_data):
        return typed_data.root / "extra/fields.tar"

    def test_other_members_are_reached_by_raw(self, typed_data, path):
        with fastshard.open(path, packed=True) as ds:
            keys = typed_data.extra["fields.tar"]["with_msgpack"]
            positions = [i for i in range(len(ds)) if ds.raw[i].key in keys]
            assert [ds.raw[i].key for i in positions] == keys
            for i in positions:
                assert {"msgpack", "jpg", "a.txt"} == set(ds.raw[i].keys())
                assert len(ds.raw[i]["jpg"]) == 700
                assert ds[i].key == ds.raw[i].key
                assert not {"jpg", "a.txt"} & set(ds[i].keys())

    def test_a_sample_without_a_payload_is_an_error_that_names_it(self, path):
        with fastshard.open(path, packed=True) as ds:
            (i,) = [i for i in range(len(ds)) if ds.raw[i].key == "k2"]
            with pytest.raises(fastshard.FastshardError, match="msgpack") as caught:
                ds[i].decode()
            assert "k2" in str(caught.value)
        with pytest.raises(ValueError, match="k2"):
            list(typed.Dataset(path))
