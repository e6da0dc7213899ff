"""Writers: arguments, limits, atomic files, subclasses."""

import json
import math
import os

import pytest

from fastshard.errors import ClosedError
from fastshard.streaming import (
    CSVWriter,
    JointWriter,
    JSONWriter,
    MDSWriter,
    SplitWriter,
    TSVWriter,
    XSVWriter,
)
from fastshard.streaming.write import base
from support.inside.streaming import rows_of, uncounted_bytes
from support.streaming.plain import mds_fields, text_values

COLUMNS = {"id": "str", "sample": "int"}


def sample(i):
    return {"id": f"{i:06}", "sample": 3 * i}


def make_json(**options):
    return JSONWriter(columns=COLUMNS, **options)


def make_csv(**options):
    return CSVWriter(columns=COLUMNS, **options)


def make_tsv(**options):
    return TSVWriter(columns=COLUMNS, **options)


def make_xsv(**options):
    return XSVWriter(columns=COLUMNS, separator="||", **options)


def make_mds(**options):
    return MDSWriter(columns=COLUMNS, **options)


@pytest.fixture(params=[make_mds, make_json, make_csv, make_tsv, make_xsv])
def make(request):
    return request.param


def files_in(folder):
    return sorted(os.listdir(folder))


def index_of(folder):
    return json.loads((folder / "index.json").read_bytes())


def ids_of(folder):
    ids = []
    for shard in index_of(folder)["shards"]:
        path = folder / shard["raw_data"]["basename"]
        if shard["format"] == "mds":
            ids += [row["id"][1].decode() for row in mds_fields(path)]
        else:
            ids += [row["id"] for row in text_values(path)]
    return ids


# Arguments


def test_unknown_arguments(make, tmp_path):
    with pytest.raises(ValueError, match=r"Invalid Writer argument\(s\): \['min_work"):
        make(out=tmp_path / "out", min_workers=1)
    assert not (tmp_path / "out").exists()


def test_arguments_of_uploads_are_accepted(make, tmp_path):
    options = {"progress_bar": True, "max_workers": 3, "retry": 5, "keep_local": True}
    with make(out=str(tmp_path / "out"), **options) as writer:
        writer.write(sample(0))
    assert ids_of(tmp_path / "out") == ["000000"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"compression": "zip"}, "Invalid compression: zip"),
        ({"compression": "zstd:23"}, "Invalid compression: zstd:23"),
        ({"hashes": ["xxh64", "sha1"]}, "unique and in sorted order"),
        ({"hashes": ["sha1", "sha1"]}, "unique and in sorted order"),
        ({"hashes": ["sha0"]}, "Invalid hash: sha0"),
        ({"size_limit": -1}, "`size_limit` must be greater than zero"),
        ({"size_limit": 2**32}, r"`size_limit` must be less than 2\*\*32"),
        ({"size_limit": "5gb"}, r"`size_limit` must be less than 2\*\*32"),
        ({"size_limit": "12kbb"}, "size"),
    ],
)
def test_invalid_arguments(make, tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        make(out=tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "out", ["s3://bucket/a", "gs://bucket", "hf://a/b", "dbfs:/Volumes/a", "oci://b"]
)
def test_a_remote_directory_is_refused_by_name(make, out, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=out):
        make(out=out)
    with pytest.raises(ValueError, match=out):
        make(out=(str(tmp_path / "out"), out))
    assert files_in(tmp_path) == []


@pytest.mark.parametrize(
    ("limit", "stored"),
    [
        ("1kb", 1024),
        ("100kb", 102_400),
        (" 1 KB", 1024),
        (50.5, 50),
        (0, None),
        ("50", 50),
    ],
)
def test_limits_are_stored_in_bytes(tmp_path, limit, stored):
    assert make_mds(out=tmp_path / "out", size_limit=limit).size_limit == stored


def test_unknown_encodings(tmp_path):
    with pytest.raises(TypeError, match="`a` with encoding `no` is unsupported"):
        MDSWriter(columns={"a": "no"}, out=tmp_path / "out")
    for cls in (JSONWriter, CSVWriter, TSVWriter):
        with pytest.raises(AssertionError):
            cls(columns={"a": "bytes"}, out=tmp_path / "out")
    with pytest.raises(AssertionError):
        CSVWriter(columns={"a,b": "str"}, out=tmp_path / "out")
    with pytest.raises(AssertionError):
        CSVWriter(columns={"a\nb": "str"}, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_nonempty_directory(make, tmp_path):
    out = tmp_path / "out"
    (out / "sub").mkdir(parents=True)
    (out / "sub" / "old").write_text("old")
    with pytest.raises(FileExistsError, match="Directory is not empty"):
        make(out=out)
    assert (out / "sub" / "old").exists()
    with make(out=out, exist_ok=True) as writer:
        writer.write(sample(1))
    assert "sub" not in files_in(out)
    assert ids_of(out) == ["000001"]


def test_an_empty_directory_is_taken(make, tmp_path):
    (tmp_path / "out").mkdir()
    with make(out=tmp_path / "out") as writer:
        writer.write(sample(1))
    assert ids_of(tmp_path / "out") == ["000001"]


def test_a_home_directory(make, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    with make(out="~/data") as writer:
        writer.write(sample(1))
    assert ids_of(tmp_path / "data") == ["000001"]


def test_the_directory_stays_the_same_after_chdir(make, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with make(out="data") as writer:
        writer.write(sample(1))
        (tmp_path / "other").mkdir()
        monkeypatch.chdir(tmp_path / "other")
    assert ids_of(tmp_path / "data") == ["000001"]


# Samples


def test_missing_columns_and_wrong_types(make, tmp_path):
    with make(out=tmp_path / "out") as writer:
        writer.write(sample(0))
        with pytest.raises(KeyError, match="sample"):
            writer.write({"id": "1"})
        with pytest.raises(AttributeError, match="data should be of type") as caught:
            writer.write({"id": 1, "sample": 2})
        notes = ["encoding column 'id'", f"sample 1 of {tmp_path / 'out'}"]
        assert caught.value.__notes__ == notes
        with pytest.raises(AttributeError):
            writer.write({"id": "1", "sample": 2.0})
        writer.write(sample(1))
    assert ids_of(tmp_path / "out") == ["000000", "000001"]


@pytest.mark.parametrize("text", ["a||b", "a\nb"])
def test_values_that_contain_separators(tmp_path, text):
    with make_xsv(out=tmp_path / "out") as writer:
        with pytest.raises(AssertionError, match="'id'"):
            writer.write({"id": text, "sample": 1})
        writer.write({"id": 'a|b,"\t\r', "sample": 1})
    assert ids_of(tmp_path / "out") == ['a|b,"\t\r']


def test_a_value_of_another_size_than_its_column(tmp_path):
    with MDSWriter(columns={"a": "int"}, out=tmp_path / "out") as writer:
        with pytest.raises(KeyError, match=r"correct encoding \(int\).*'a'"):
            writer.write({"a": b"1234567"})
        with pytest.raises(KeyError, match="Unexpected data size"):
            MDSWriter(columns={"a": "uint8"}, out=tmp_path / "o").write({"a": [1, 2]})


def test_mappings_other_than_dict(tmp_path):
    class Sample:
        def __getitem__(self, name):
            return {"id": "x", "sample": 5}[name]

    with make_mds(out=tmp_path / "out") as writer:
        writer.write(Sample())
    assert ids_of(tmp_path / "out") == ["x"]


# Shards


def test_shards_are_full_but_not_larger_than_the_limit(make, tmp_path):
    out = tmp_path / "out"
    with make(out=out, size_limit=1000) as writer:
        extra = writer.extra_bytes_per_shard
        for i in range(200):
            writer.write(sample(i))
        row = len(writer.encode_sample(sample(10)))
    index = index_of(out)
    assert ids_of(out) == [f"{i:06}" for i in range(200)]
    assert len(index["shards"]) > 2
    if make is make_mds:  # other rows differ in length
        full = (1000 - extra) // (row + 4)
        assert {s["samples"] for s in index["shards"][:-1]} == {full}
    for shard in index["shards"]:
        assert (out / shard["raw_data"]["basename"]).stat().st_size == shard[
            "raw_data"
        ]["bytes"]


def test_everything_in_one_shard(make, tmp_path):
    with make(out=tmp_path / "out", size_limit=None) as writer:
        for i in range(100):
            writer.write(sample(i))
    (shard,) = index_of(tmp_path / "out")["shards"]
    assert (shard["samples"], shard["size_limit"]) == (100, None)


def test_a_shard_of_4_gib_is_an_error_before_offsets_wrap(make, tmp_path, monkeypatch):
    writer = make(out=tmp_path / "out", size_limit=None)
    writer.write(sample(0))
    fixed = writer.new_shard_size + uncounted_bytes(writer)
    size = len(writer.encode_sample(sample(0))) + writer.extra_bytes_per_sample
    monkeypatch.setattr(type(writer), "max_shard_bytes", fixed + 2 * size)
    writer.write(sample(0))
    writer.write(sample(0))
    with pytest.raises(ValueError, match="less than 4 GiB; set size_limit"):
        writer.write(sample(0))
    writer.finish()
    (shard,) = index_of(tmp_path / "out")["shards"]
    assert shard["samples"] == 3
    assert shard["raw_data"]["bytes"] == fixed + 2 * size
    assert base.MAX_OFFSET == 2**32 - 1


def test_offsets_that_would_wrap_are_refused():
    class Long(bytes):
        def __len__(self):
            return 2**31

    assert base.offsets_of([Long()], 2**31 - 1).tolist() == [2**31 - 1, 2**32 - 1]
    with pytest.raises(ValueError, match="4 GiB"):
        base.offsets_of([Long()], 2**31)


def test_hashes_and_compression_are_in_the_index(make, tmp_path):
    out = tmp_path / "out"
    with make(out=out, compression="gz:1", hashes=["md5"]) as writer:
        writer.write(sample(0))
    (shard,) = index_of(out)["shards"]
    for key in ("data", "meta"):
        if f"raw_{key}" not in shard:
            continue
        raw, packed = shard[f"raw_{key}"], shard[f"zip_{key}"]
        assert packed["basename"] == raw["basename"] + ".gz"
        assert not (out / raw["basename"]).exists()
        assert (out / packed["basename"]).stat().st_size == packed["bytes"]
        assert len(packed["hashes"]["md5"]) == len(raw["hashes"]["md5"]) == 32
    assert shard["compression"] == "gz:1"


# Errors in the body


def test_a_body_that_raises_leaves_no_index(make, tmp_path):
    out = tmp_path / "out"
    writer = make(out=out, size_limit=500)

    def write():
        with writer:
            for i in range(100):
                writer.write(sample(i))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write()
    assert len(writer.shards) > 1
    assert "index.json" not in files_in(out)
    assert not [name for name in files_in(out) if name.startswith(".")]
    assert len([n for n in files_in(out) if not n.endswith("meta")]) == len(
        writer.shards
    )
    with pytest.raises(ClosedError):
        writer.write(sample(0))
    writer.finish()
    assert "index.json" not in files_in(out)


def test_finish_before_the_error_writes_the_index(make, tmp_path):
    def write():
        with make(out=tmp_path / "out") as writer:
            writer.write(sample(0))
            writer.finish()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write()
    assert ids_of(tmp_path / "out") == ["000000"]


def test_finish_twice(make, tmp_path):
    with make(out=tmp_path / "out") as writer:
        writer.write(sample(0))
        writer.finish()
        before = (tmp_path / "out" / "index.json").stat().st_mtime_ns
    assert (tmp_path / "out" / "index.json").stat().st_mtime_ns == before
    with pytest.raises(ClosedError):
        writer.write(sample(1))


def test_files_appear_whole_and_the_index_last(make, tmp_path, monkeypatch):
    out = tmp_path / "out"
    seen = []
    replace = os.replace

    def watched(source, target):
        assert os.path.dirname(source) == str(out)
        assert os.path.basename(source).startswith(".")
        seen.append((os.path.basename(target), os.path.getsize(source)))
        replace(source, target)

    monkeypatch.setattr(os, "replace", watched)
    with make(out=out, size_limit=500) as writer:
        for i in range(40):
            writer.write(sample(i))
    assert [name for name, _ in seen][-1] == "index.json"
    assert sorted(name for name, _ in seen) == files_in(out)
    assert all((out / name).stat().st_size == size for name, size in seen)


def test_a_shard_that_cannot_be_written(make, tmp_path, monkeypatch):
    def fail(source, target):
        raise OSError(28, "No space left on device")

    with make(out=tmp_path / "out") as writer:
        writer.write(sample(0))
        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", fail)
            with pytest.raises(OSError, match="No space"):
                writer.finish()
        assert files_in(tmp_path / "out") == []
    assert ids_of(tmp_path / "out") == ["000000"]  # it was written at the second time


def test_rows_that_are_held_can_be_seen_and_replaced(tmp_path):
    with make_mds(out=tmp_path / "a", size_limit=500) as writer:
        for i in range(3):
            writer.write(sample(i))
        rows = writer.new_samples
        assert rows == [writer.encode_sample(sample(i)) for i in range(3)]
        assert writer.encode_joint_shard().endswith(b"".join(rows))
        rows.reverse()
        for i in range(3, 100):
            writer.write(sample(i))
        writer.new_samples = writer.new_samples[:1]
    ids = ids_of(tmp_path / "a")
    assert ids[:5] == ["000002", "000001", "000000", "000003", "000004"]
    assert len(ids) < 100


def test_memory_of_rows_is_reused_and_freed(tmp_path):
    with make_mds(out=tmp_path / "a", size_limit=500) as writer:
        rows = rows_of(writer)
        for i in range(100):
            writer.write(sample(i))
        assert rows_of(writer) is rows
        assert len(writer.shards) > 2
    assert rows_of(writer).nbytes == 0
    assert rows_of(writer) is not rows


# Configurations and subclasses


def test_configurations(tmp_path):
    common = {"version": 2, "compression": None, "hashes": [], "size_limit": 32}
    names = {"column_names": ["id", "sample"], "column_encodings": ["str", "int"]}
    options = {"size_limit": 32}
    writers = {
        make: make(out=tmp_path / make.__name__, **options)
        for make in (make_mds, make_json, make_csv, make_tsv, make_xsv)
    }
    configs = {make: writer.get_config() for make, writer in writers.items()}
    assert configs == {
        make_mds: {**common, "format": "mds", **names, "column_sizes": [None, 8]},
        make_json: {**common, "format": "json", "columns": COLUMNS, "newline": "\n"},
        make_csv: {**common, "format": "csv", **names, "newline": "\n"},
        make_tsv: {**common, "format": "tsv", **names, "newline": "\n"},
        make_xsv: {
            **common,
            "format": "xsv",
            **names,
            "newline": "\n",
            "separator": "||",
        },
    }


def test_a_format_of_ones_own_in_one_file(tmp_path):
    class LineWriter(JointWriter):
        format = "line"

        def encode_sample(self, sample):
            return sample["text"].encode()

        def encode_joint_shard(self):
            return b"\n".join(self.new_samples)

    with LineWriter(out=tmp_path, size_limit=10, extra_bytes_per_shard=4) as writer:
        assert writer.new_shard_size == 4
        for i in range(5):
            writer.write({"text": f"{i}{i}"})
            assert writer.new_shard_size == 4 + 2 * len(writer.new_samples)
    assert (tmp_path / "shard.00000.line").read_bytes() == b"00\n11\n22"
    assert (tmp_path / "shard.00001.line").read_bytes() == b"33\n44"
    assert [s["samples"] for s in index_of(tmp_path)["shards"]] == [3, 2]


def test_a_format_of_ones_own_in_two_files(tmp_path):
    class PairWriter(SplitWriter):
        format = "pair"

        def encode_sample(self, sample):
            return sample["text"].encode()

        def encode_split_shard(self):
            return b"".join(self.new_samples), bytes([len(self.new_samples)])

    with PairWriter(out=tmp_path, compression="bz2") as writer:
        writer.write({"text": "a"})
    assert files_in(tmp_path) == [
        "index.json",
        "shard.00000.pair.bz2",
        "shard.00000.pair.meta.bz2",
    ]
    (shard,) = index_of(tmp_path)["shards"]
    assert shard["raw_meta"]["bytes"] == 1


def test_a_subclass_that_encodes_samples_itself(tmp_path):
    class UpperWriter(MDSWriter):
        def encode_sample(self, sample):
            return super().encode_sample({**sample, "id": sample["id"].upper()})

    with UpperWriter(columns=COLUMNS, out=tmp_path) as writer:
        writer.write({"id": "abc", "sample": 1})
    assert ids_of(tmp_path) == ["ABC"]


class Count(int):
    def __repr__(self):
        return "no number"

    __str__ = __repr__


class Share(float):
    def __repr__(self):
        return "no number"

    __str__ = __repr__


def test_lines_of_json_are_those_of_the_standard_library(tmp_path):
    columns = {"f": "float", "i": "int", 't"\u00fc': "str"}
    texts = ["", "a", '"\\\n\x7f\u2028', "\u00fc\U0001f600\ud800"]
    numbers = [0, -1, True, False, 10**40, Count(7)]
    floats = [0.0, -0.0, 1e16, 1e-320, math.nan, math.inf, -math.inf, Share(0.5)]
    writer = JSONWriter(columns=columns, out=tmp_path)
    for text in texts:
        for number in numbers:
            for share in floats:
                row = {"f": share, "i": number, 't"\u00fc': text}
                wanted = json.dumps(row, sort_keys=True) + "\n"
                assert writer.encode_sample(row) == wanted.encode()


@pytest.mark.parametrize(
    ("separator", "newline", "values", "good"),
    [
        (",", "\n", ["a", "b"], True),
        (",", "\n", ["a,", "b"], False),
        (",", "\n", ["a", "b\n"], False),
        ("aa", "\n", ["xa", "ay"], True),  # more than one "aa" in the line
        ("aba", "\n", ["xab", "aba"], False),
        ("|", "||", ["a", "b"], True),
        ("|", "ab", ["a", "b"], True),
        ("|", "a|b", ["a", "b"], True),  # a newline in the line, but in no value
        ("\u2028", "\r\n", ["\r", "\n"], True),
    ],
)
def test_values_are_checked_one_by_one(tmp_path, separator, newline, values, good):
    writer = XSVWriter(
        columns={"x": "str", "y": "str"},
        separator=separator,
        newline=newline,
        out=tmp_path,
    )
    row = dict(zip("xy", values, strict=True))
    if good:
        line = (separator.join(values) + newline).encode()
        assert writer.encode_sample(row) == line
    else:
        with pytest.raises(AssertionError):
            writer.encode_sample(row)
