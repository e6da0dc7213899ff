"""Round trips between all formats, and of files by mosaicml-streaming."""

import itertools
import json
import math
from decimal import Decimal

import numpy as np
import pytest

import fastshard
from conversion.conftest import contents, make_samples, write_tar
from fastshard import ConversionError, convert
from fastshard.streaming.write.jsonl import JSONWriter
from fastshard.streaming.write.mds import MDSWriter
from support.inside.streaming import begin_shard
from support.marks import not_sanitized
from support.servers.http import Server
from support.streaming.expected import described, names

pytestmark = not_sanitized  # tests Python code

FORMATS = ("tar", "mds", "json", "csv", "tsv", "xsv", "columnar")
COLUMNS = {"__key__": "str", "text": "str", "n": "int", "x": "float64"}
ROWS = [
    {"__key__": "a", "text": "", "n": 0, "x": 0.1},
    {"__key__": "b", "text": 'ä \u2028 "a" \\ \U0001f600', "n": -(2**63), "x": -0.0},
    {"__key__": "part/c", "text": "x" * 70_000, "n": 2**63 - 1, "x": math.inf},
    {"__key__": "d", "text": " \r\0", "n": 1, "x": 5e-324},
    {"__key__": "e", "text": "last", "n": 7, "x": math.nan},
]  # fmt: skip


def values(folder):
    """All samples of a dataset, decoded."""
    with fastshard.open(folder) as ds:
        return [sample.decode() for sample in ds]


def same(one, other):
    """Return whether values are equal; NaN equals itself."""
    return repr(np.asarray(one).tolist()) == repr(np.asarray(other).tolist())


@pytest.fixture(scope="session")
def plain(tmp_path_factory):
    """The rows in every format."""
    folder = tmp_path_factory.mktemp("plain")
    with MDSWriter(columns=COLUMNS, out=folder / "mds", size_limit=None) as writer:
        for i, row in enumerate(ROWS):
            if i == 3:
                writer.flush_shard()
                begin_shard(writer)
            writer.write(row)
    for to in FORMATS:
        if to != "mds":
            convert(folder / "mds", folder / to, to=to, workers=1)
    return folder


@pytest.mark.parametrize(("start", "to"), [*itertools.product(FORMATS, FORMATS)])
def test_every_format_to_every_other(plain, tmp_path, start, to):
    done = convert(plain / start, tmp_path / "out", to=to, workers=1)
    assert done.samples == len(ROWS)
    convert(tmp_path / "out", tmp_path / "back", to="mds", workers=1)
    found = values(tmp_path / "back")
    assert [set(row) for row in found] == [set(row) for row in ROWS]
    for row, expected in zip(found, ROWS, strict=True):
        assert all(same(row[name], expected[name]) for name in expected)
    index = json.loads((tmp_path / "back/index.json").read_bytes())
    [encodings] = {tuple(shard["column_encodings"]) for shard in index["shards"]}
    assert encodings == ("str", "int", "str", "float64")
    if "columnar" not in (start, to):
        assert [shard["samples"] for shard in index["shards"]] == [3, 2]


@pytest.mark.parametrize("start", FORMATS)
def test_every_format_to_packed_tars_and_back(plain, tmp_path, start):
    pytest.importorskip("msgspec")
    done = convert(plain / start, tmp_path / "out", to="packed", workers=1)
    assert done.columns["n"] == "int"
    options = {"packed": True, "workers": 1}
    done = convert(tmp_path / "out", tmp_path / "back", to="mds", **options)
    found = values(tmp_path / "back")
    assert done.samples == len(ROWS)
    for row, expected in zip(found, ROWS, strict=True):
        assert all(same(row[name], expected[name]) for name in expected)


@pytest.mark.parametrize("to", FORMATS)
def test_a_conversion_into_the_same_format_gives_the_same_files(plain, tmp_path, to):
    convert(plain / to, tmp_path / "out", to=to, workers=1)
    for path in (tmp_path / "out").iterdir():
        if path.suffix not in (".fsi", ".sqlite") and path.is_file():
            assert path.read_bytes() == (plain / to / path.name).read_bytes()


@pytest.mark.parametrize("workers", [1, 2])
def test_tar_to_mds_and_back(tmp_path, workers):
    tars = write_tar(tmp_path / "in", make_samples())
    options = {"compression": "gz:1", "hashes": ["sha1"], "workers": workers}
    convert(tars, tmp_path / "mds", to="mds", **options)
    convert(tmp_path / "mds", tmp_path / "back", to="tar", workers=workers)
    assert [(key, sorted(fields.items())) for key, fields in contents(tars)] == [
        (key, sorted(fields.items())) for key, fields in contents(tmp_path / "back")
    ]
    assert fastshard.open(tmp_path / "mds").verify(hashes=True) == []


@pytest.mark.parametrize("name", [*names(), *names("corrupt")])
def test_datasets_of_the_original(copy_streaming, tmp_path, name):
    expected = copy_streaming(name)  # compressed shards are decompressed beside them
    left = set(tmp_path.iterdir())
    if not expected.samples:
        if name.startswith("corrupt") and "bitflip" not in name:
            with pytest.raises((fastshard.FormatError, FileNotFoundError)):
                convert(expected.folder, tmp_path / "out", to="mds", workers=1)
            assert set(tmp_path.iterdir()) == left
        return
    formats = {shard["format"] for shard in expected.index["shards"]}
    compression = "zstd" if len(name) % 2 else None
    for to in sorted(formats if len(formats) == 1 else {"json"}):
        separator = "\t" if to == "xsv" else None
        out = tmp_path / to
        options = {"compression": compression, "separator": separator}
        if to == "xsv":
            options["separator"] = expected.index["shards"][0]["separator"]
        if to in ("csv", "tsv", "xsv"):
            options["newline"] = expected.index["shards"][0]["newline"]
        convert(expected.folder, out, to=to, workers=1, **options)
        with fastshard.open(out, allow_unsafe_types=True) as ds:
            assert len(ds) == len(expected.samples)
            for sample, told in zip(ds, expected.samples, strict=True):
                decoded = sample.decode()
                for field, fact in told["fields"].items():
                    kind, digest = described(decoded[field])
                    assert (kind, digest) == (fact["type"], fact["sha256"]), field


def test_tar_holds_the_fields_of_the_original(copy_streaming, tmp_path):
    root = copy_streaming("mds/none").folder
    with pytest.raises(ConversionError) as caught:
        convert(root, tmp_path / "out", to="tar")
    message = str(caught.value)
    assert "column 'jpeg_array' of encoding jpeg_array" in message
    assert "column 'str_decimal' of encoding str_decimal" in message
    with fastshard.open(root) as ds:
        known = ds[0].codec.encodings
    columns = {
        name: None
        for name, encoding in known.items()
        if not encoding.startswith(("list", "jpeg_a", "jpega", "pil", "str_decimal"))
    }
    convert(root, tmp_path / "tar", to="tar", columns=columns, workers=1)
    convert(tmp_path / "tar", tmp_path / "back", to="mds", workers=1)
    for row, expected in zip(values(tmp_path / "back"), values(root), strict=True):
        for name in columns:
            one, other = row[name], expected[name]
            if hasattr(other, "mode"):  # of Pillow
                assert one.tobytes() == other.tobytes()
            elif isinstance(other, np.ndarray):
                np.testing.assert_array_equal(one, other)
            else:
                assert one == other or one != one


def test_pickles_are_never_converted(copy_streaming, tmp_path):
    root = copy_streaming("edge/pkl").folder
    for to in ("tar", "json", "csv", "columnar"):
        with pytest.raises(ConversionError, match="'p' of encoding pkl"):
            convert(root, tmp_path / to, to=to)
    done = convert(root, tmp_path / "mds", to="mds")  # copied
    assert "pkl" in done.columns.values()
    convert(root, tmp_path / "bytes", to="mds", columns="p:bytes")
    with fastshard.open(root) as ds, fastshard.open(tmp_path / "bytes") as copied:
        assert [bytes(s["p"]) for s in ds] == [s.decode()["p"] for s in copied]


def test_shards_of_several_formats(copy_streaming, tmp_path):
    expected = copy_streaming("edge/merged")
    done = convert(expected.folder, tmp_path / "out", to="mds")
    assert done.samples == len(expected.samples)
    assert values(tmp_path / "out") == values(expected.folder)


def test_encodings_that_differ_between_shards(tmp_path):
    for k, (encoding, value) in enumerate([("int", 1), ("str", "1")]):
        with MDSWriter(columns={"a": encoding}, out=tmp_path / "in" / str(k)) as writer:
            writer.write({"a": value})
    from fastshard.streaming import merge_index

    merge_index(str(tmp_path / "in"))
    with pytest.raises(ConversionError, match="column 'a' of encodings int and str"):
        convert(tmp_path / "in", tmp_path / "out", to="mds")
    convert(tmp_path / "in", tmp_path / "out", to="mds", columns="a:int16")
    assert values(tmp_path / "out") == [
        {"__key__": "0", "a": 1},
        {"__key__": "1", "a": 1},
    ]


def test_rows_of_json_with_values_of_other_types(tmp_path):
    with JSONWriter(columns={"n": "int", "t": "str"}, out=tmp_path / "in") as writer:
        for n in (1234, 5678):
            writer.write({"n": n, "t": "x"})
    path = tmp_path / "in/shard.00000.json"
    path.write_bytes(path.read_bytes().replace(b"5678", b"null"))
    convert(tmp_path / "in", tmp_path / "json", to="json")
    assert values(tmp_path / "json") == values(tmp_path / "in")
    for to in ("mds", "csv", "tar", "columnar"):
        with pytest.raises(
            ConversionError, match="sample 1, column 'n': None does not fit"
        ):
            convert(tmp_path / "in", tmp_path / "out", to=to)
    done = convert(tmp_path / "in", tmp_path / "mds", to="mds", columns="n:json,t")
    assert done.columns == {"n": "json", "t": "str"}
    assert [row["n"] for row in values(tmp_path / "mds")] == [1234, None]


def test_decimals_and_pictures_stay_in_mds(tmp_path):
    columns = {"d": "str_decimal", "s": "str_int", "f": "str_float"}
    with MDSWriter(columns=columns, out=tmp_path / "in") as writer:
        writer.write({"d": Decimal("1.10"), "s": 10**30, "f": 0.1})
    convert(tmp_path / "in", tmp_path / "mds", to="mds", hashes=["md5"])
    assert values(tmp_path / "mds") == values(tmp_path / "in")
    done = convert(tmp_path / "in", tmp_path / "csv", to="csv", columns="d:str,s,f")
    assert done.columns == {"d": "str", "s": "int", "f": "float"}
    assert values(tmp_path / "csv")[0] == {
        "__key__": "0", "d": "1.10", "s": 10**30, "f": 0.1,
    }  # fmt: skip
    convert(tmp_path / "csv", tmp_path / "columns", to="columnar")
    convert(tmp_path / "columns", tmp_path / "back", to="mds")
    assert values(tmp_path / "back") == values(tmp_path / "csv")


def test_samples_without_keys_get_positions(copy_streaming, tmp_path):
    root = copy_streaming("edge/fixed_only").folder
    done = convert(root, tmp_path / "tar", to="tar")
    assert "__key__" not in done.columns
    keys = [key for key, _ in contents(tmp_path / "tar")]
    assert keys == [str(i) for i in range(len(keys))]
    columns = ",".join(done.columns)
    done = convert(tmp_path / "tar", tmp_path / "mds", to="mds", columns=columns)
    assert "__key__" not in done.columns
    assert values(tmp_path / "mds") == values(root)


def test_urls_of_streaming_datasets(tmp_path):
    tars = write_tar(tmp_path / "in", make_samples(), 12)
    convert(tars, tmp_path / "mds", to="mds")
    files = {f"/d/{p.name}": p.read_bytes() for p in (tmp_path / "mds").iterdir()}
    with Server(files) as server:
        convert(f"{server.url}/d", tmp_path / "out", to="tar", workers=1)
        convert(f"{server.url}/d", tmp_path / "json", to="json", columns="txt,cls")
    assert sorted(contents(tmp_path / "out")) == [
        (key, dict(sorted(fields.items()))) for key, fields in sorted(contents(tars))
    ]
    assert [row["cls"] for row in values(tmp_path / "json")] == list(range(-5, 18))
