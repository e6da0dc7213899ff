"""Written files are those that mosaicml-streaming wrote for the same samples."""

import json

import pytest

from fastshard.streaming import (
    CSVWriter,
    JSONWriter,
    MDSWriter,
    TSVWriter,
    XSVWriter,
)
from fastshard.streaming.encodings import mds_decode
from support.streaming.expected import COMPRESSIONS, names
from support.streaming.plain import mds_fields, text_values

pytest.importorskip("PIL")

WRITERS = {
    "mds": MDSWriter,
    "json": JSONWriter,
    "csv": CSVWriter,
    "tsv": TSVWriter,
    "xsv": XSVWriter,
}
GZIP_TIME = slice(4, 8)
# What is made of pictures depends on Pillow's version: they are given as bytes.
AS_BYTES = ("jpeg", "png", "jpeg_array", "jpegarray", "list[jpeg]", "list[png]")


def samples_of(dataset):
    """Yield the samples of a dataset without compression, as they were written."""
    for shard in dataset.index["shards"]:
        path = dataset.folder / shard["raw_data"]["basename"]
        if shard["format"] != "mds":
            yield from text_values(path)
            continue
        for fields in mds_fields(path):
            yield {
                name: data
                if encoding in AS_BYTES or dataset.name == "edge/bytes_passthrough"
                else mds_decode(encoding, data, unsafe=True)
                for name, (encoding, data) in fields.items()
            }


def options_of(dataset):
    """Return the arguments that a dataset was written with."""
    shard = dataset.index["shards"][0]
    options = {key: shard[key] for key in ("compression", "hashes", "size_limit")}
    for key in ("newline", "separator"):
        if key in shard:
            options[key] = shard[key]
    columns = shard.get("columns") or dict(
        zip(shard["column_names"], shard["column_encodings"], strict=True)
    )
    return WRITERS[shard["format"]], {"columns": columns, **options}


def write_all(out, dataset, samples):
    cls, options = options_of(dataset)
    with cls(out=out, **options) as writer:
        for sample in samples:
            writer.write({**sample, "no column": object()})


def assert_same_files(out, known):
    assert sorted(p.name for p in out.iterdir()) == sorted(known.files)
    for name in known.files:
        got, wanted = (out / name).read_bytes(), (known.root / name).read_bytes()
        if name.endswith(".gz"):
            got, wanted = bytearray(got), bytearray(wanted)
            got[GZIP_TIME] = wanted[GZIP_TIME]
        elif name == "index.json" and known.name.endswith("/gz"):
            got, wanted = map(without_gz_hashes, (got, wanted))
        assert got == wanted, name


def without_gz_hashes(index):
    shards = json.loads(index)["shards"]
    for shard in shards:
        for key in ("zip_data", "zip_meta"):
            shard.get(key, {}).pop("hashes", None)
    return shards


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("kind", ["mds", "json", "csv", "tsv"])
def test_datasets_of_every_compression(tmp_path, streaming_data, kind, compression):
    if compression == "br":
        pytest.importorskip("brotli")
    samples = samples_of(streaming_data[f"{kind}/none"])
    known = streaming_data[f"{kind}/{compression}"]
    write_all(tmp_path / "out", known, samples)
    assert_same_files(tmp_path / "out", known)


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_rows_between_separators_of_several_characters(
    tmp_path, streaming_data, compression
):
    samples = samples_of(streaming_data["xsv/none"])
    write_all(tmp_path / "out", streaming_data[f"xsv/{compression}"], samples)
    assert_same_files(tmp_path / "out", streaming_data[f"xsv/{compression}"])


PLAIN_EDGES = [
    "edge/sequence_1000",
    "edge/one_sample",
    "edge/size_limit_str",
    "edge/fixed_only",
    "edge/empty_fields",
    "edge/bytes_passthrough",
    "edge/column_names",
    "edge/pkl",
    "edge/json_bool",
    "edge/mds_bool",
    "edge/good_for_corrupt",
    "json/newline_crlf",
]


@pytest.mark.parametrize("name", PLAIN_EDGES)
def test_edges(tmp_path, streaming_data, name):
    assert name in names()
    known = streaming_data[name]
    write_all(tmp_path / "out", known, samples_of(known))
    assert_same_files(tmp_path / "out", known)


def test_no_samples(tmp_path, streaming_data):
    with MDSWriter(out=tmp_path / "out", columns={"a": "int"}):
        pass
    assert_same_files(tmp_path / "out", streaming_data["edge/no_samples"])
