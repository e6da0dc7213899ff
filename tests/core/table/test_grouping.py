"""Grouping of members into samples."""

import collections.abc
import json
import pickle
import re
import zipfile
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fastshard
from fastshard import (
    FieldNotFoundError,
    FormatError,
    MemberNotFoundError,
    Sample,
    SampleNotFoundError,
)
from support.tars import write_tar


def read_groups(path, **options):
    """Return the keys and fields as fastshard groups them."""
    with fastshard.open_shard(path, **options) as shard:
        return [(sample.key, sample.keys()) for sample in shard.samples]


def test_members_that_share_a_key_make_a_sample(shard_path, members):
    with fastshard.open_shard(shard_path) as shard:
        samples = shard.samples
        assert len(samples) == 3
        assert list(samples.keys()) == ["000", "001", "sub/002"]
        for i, key in enumerate(samples.keys()):
            for sample in (samples[i], samples[key], samples[i - 3]):
                assert isinstance(sample, Sample)
                assert (sample.key, sample.position) == (key, i)
                assert sample.keys() == list(sample) == ["jpg", "json"]
                assert len(sample) == 2
                for field in sample:
                    assert field in sample
                    assert sample[field] == members[f"{key}.{field}"]
                assert {k: bytes(v) for k, v in dict(sample).items()} == {
                    field: members[f"{key}.{field}"] for field in sample
                }


def test_samples_are_a_sequence(shard_path):
    with fastshard.open_shard(shard_path) as shard:
        samples = shard.samples
        assert isinstance(samples, collections.abc.Sequence)
        assert [s.key for s in samples] == [s.key for s in samples[:]]
        assert [s.key for s in samples[::-1]] == [s.key for s in reversed(samples)]
        assert "000" in samples
        assert "README" not in samples
        assert "\ud800" not in samples
        assert samples.position("001") == 1
        assert samples.keys()[-1] == "sub/002"
        assert samples.keys()[1:] == ["001", "sub/002"]
        assert "001" in samples.keys()  # noqa: SIM118
        assert 5 not in samples.keys()  # noqa: SIM118
        assert "'000'" in repr(samples.keys())
        assert "3 samples" in repr(samples)


def test_a_sample_is_not_a_mapping(shard_path):
    """default_collate of torch treats the views of a mapping as lists of numbers."""
    with fastshard.open_shard(shard_path) as shard:
        assert not isinstance(shard.samples[0], collections.abc.Mapping)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["a.b.c"], [("a", ["b.c"])]),
        (["d.e/a.b"], [("d.e/a", ["b"])]),
        (["a.JPG", "a.Seg.PNG"], [("a", ["jpg", "seg.png"])]),
        (["a", "d/b", "d.x/b"], []),
        ([".a", ".a.b", "d/.a.b", "d/..b"], []),
        (["__meta__", "__meta__/a.b", "__m__x__/a.b"], []),
        (["__a__.b", "__.a", "_a__/b.c", "___.a"], None),
        (["a."], [("a", [""])]),
        (["./a.b", "a.c"], [("a", ["b", "c"])]),
        (
            ["././/a.b", "./.a/c.d", "./b/./c.d"],
            [("a", ["b"]), (".a/c", ["d"]), ("b/./c", ["d"])],
        ),
        (["./__m__/a.b", "./.a", "././", "a/./.b"], []),
        (["a.x", "b.x", "a.y", "b.y"], [("a", ["x", "y"]), ("b", ["x", "y"])]),
        (["b.x", "k", "a.x", "b.y"], [("b", ["x", "y"]), ("a", ["x"])]),
        (["ä.É", "ä.ß"], [("ä", ["é", "ß"])]),
        (["a.x", "A.x"], [("a", ["x"]), ("A", ["x"])]),
        (["/.a.b/c.d"], [("/.a.b/c", ["d"])]),
    ],
)
def test_names_split_into_keys_and_fields(make_tar, names, expected):
    if expected is None:
        expected = [("__a__", ["b"]), ("__", ["a"]), ("_a__/b", ["c"]), ("___", ["a"])]
    path = make_tar(dict.fromkeys(names, b"x"))
    assert read_groups(path) == expected


def test_options_set_the_end_of_keys_and_the_case_of_fields(make_tar):
    path = make_tar({"a.seg.PNG": b"1", "a.PNG": b"2", "d.e/f.g": b"3"})
    assert read_groups(path, key="last") == [
        ("a.seg", ["png"]),
        ("a", ["png"]),
        ("d.e/f", ["g"]),
    ]
    assert read_groups(path, lower=False) == [
        ("a", ["seg.PNG", "PNG"]),
        ("d.e/f", ["g"]),
    ]


def test_fields_that_differ_in_case_clash_when_lowered(make_tar):
    path = make_tar({"a.JPG": b"1", "a.jpg": b"2", "b.jpg": b"3"})
    with fastshard.open_shard(path, lower=False) as shard:
        assert shard.samples["a"]["JPG"] == b"1"
        assert shard.samples["a"]["jpg"] == b"2"
    with fastshard.open_shard(path) as shard:
        with pytest.raises(FormatError, match="'jpg' twice") as caught:
            shard.samples["a"]
        assert caught.value.offset == int(shard.offsets[1])
        assert caught.value.member == "a.jpg"
        with pytest.raises(FormatError):
            list(shard.samples)
        assert shard.samples["b"]["jpg"] == b"3"  # other samples stay readable


def test_non_ascii_fields_that_differ_in_case_clash(make_tar):
    path = make_tar({"a.É": b"1", "a.é": b"2", "b.é": b"3", "b.É2": b"4"})
    with fastshard.open_shard(path) as shard:
        with pytest.raises(FormatError, match="twice"):
            shard.samples[0]
        assert shard.samples["b"]["é"] == b"3"
        assert shard.samples["b"]["é2"] == b"4"
        assert "É2" not in shard.samples["b"]


@pytest.mark.parametrize("count", [2, 63, 64, 65, 66, 500])
def test_a_sample_of_many_fields_is_read_and_checked(make_tar, count):
    names = [f"a.f{i}" for i in range(count)]
    with fastshard.open_shard(make_tar(dict.fromkeys(names, b"x"))) as shard:
        assert shard.samples["a"].keys() == [f"f{i}" for i in range(count)]
    path = make_tar(dict.fromkeys([*names, "b.x", "a.F1"], b"x"), "again.tar")
    with fastshard.open_shard(path) as shard, pytest.raises(FormatError, match="f1"):
        shard.samples["a"]


@pytest.mark.parametrize("field", ["", "JPG", "jp", "jpgg", "png", "\ud800", "ä"])
def test_a_missing_field_is_a_key_error_that_lists_the_fields(shard_path, field):
    with fastshard.open_shard(shard_path) as shard:
        sample = shard.samples["000"]
        assert field not in sample
        for call in (sample.__getitem__, sample.text, sample.array, sample.open):
            with pytest.raises(FieldNotFoundError, match="jpg, json") as caught:
                call(field)
            assert isinstance(caught.value, MemberNotFoundError)
            assert "'000'" in str(caught.value)
        with pytest.raises(TypeError):
            sample[0]
        assert 0 not in sample


@pytest.mark.parametrize("key", ["", "00", "000.jpg", "README", "\udcff"])
def test_a_missing_key_is_a_key_error(shard_path, key):
    with fastshard.open_shard(shard_path) as shard:
        assert key not in shard.samples
        with pytest.raises(SampleNotFoundError, match=r"shard\.tar"):
            shard.samples[key]


def test_positions_out_of_range_and_keys_of_other_types_are_refused(shard_path):
    with fastshard.open_shard(shard_path) as shard:
        for i in (3, -4, 2**70):
            with pytest.raises(IndexError):
                shard.samples[i]
        for key in (1.5, None, b"000"):
            with pytest.raises(TypeError):
                shard.samples[key]
            with pytest.raises(TypeError):
                _ = key in shard.samples


def test_fields_decode_to_text_json_and_arrays(make_tar):
    vector = np.arange(6, dtype="<f4").reshape(2, 3)
    path = make_tar({"a.txt": "größe".encode(), "a.json": b'{"n": [1, 2]}'})
    with fastshard.open_shard(path) as shard:
        sample = shard.samples["a"]
        assert sample.text("txt") == "größe"
        assert sample.json("json") == {"n": [1, 2]}
        assert "txt, json" in repr(sample)
    path = make_tar({"a.raw": vector.tobytes()}, "raw.tar")
    with fastshard.open_shard(path) as shard:
        array = shard.samples["a"].array("raw", "<f4", (2, 3))
        assert np.array_equal(array, vector)


@pytest.mark.parametrize(
    ("data", "call", "at"),
    [
        (b"abc\xff", "text", 3),
        (b'{"a": 1, "b": x}', "json", 14),
        ('{"ä": }'.encode(), "json", 7),
        (b"", "json", 0),
        (b'"\xff"', "json", 1),
        (b"[" * 100_000, "json", 0),
    ],
)
def test_a_bad_value_names_shard_member_and_byte(make_tar, data, call, at):
    path = make_tar({"k.a": b"x", "k.b": data})
    with fastshard.open_shard(path) as shard:
        sample = shard.samples["k"]
        with pytest.raises(FormatError) as caught:
            getattr(sample, call)("b")
        assert caught.value.path == str(path)
        assert caught.value.member == "k.b"
        assert caught.value.offset == int(shard.offsets[1]) + at
        with pytest.raises(FormatError) as caught:
            getattr(pickle.loads(pickle.dumps(sample)), call)("b")
        assert caught.value.offset == at


def test_a_field_opens_as_a_file(make_tar, tmp_path):
    inner = tmp_path / "inner.zip"
    with zipfile.ZipFile(inner, "w") as archive:
        archive.writestr("x.txt", "hello " * 100)
    path = make_tar({"a.zip": inner.read_bytes()})
    with fastshard.open_shard(path) as shard:
        file = shard.samples["a"].open("zip")
    with zipfile.ZipFile(file) as archive:  # it is seekable and outlives the shard
        assert archive.read("x.txt") == b"hello " * 100


def test_a_pickled_sample_has_its_own_bytes(make_tar, members):
    array = np.arange(5.0)
    path = make_tar({**members, "000.raw": array.tobytes()})
    with fastshard.open_shard(path) as shard:
        copied = pickle.loads(pickle.dumps(shard.samples["000"]))
    assert isinstance(copied, Sample)
    assert (copied.key, copied.position, len(copied)) == ("000", 0, 3)
    assert copied.keys() == list(copied) == ["jpg", "json", "raw"]
    assert copied["jpg"] == members["000.jpg"]
    assert copied.json("json") == {"caption": "one"}
    assert copied.text("json") == members["000.json"].decode()
    assert copied.open("jpg").read() == members["000.jpg"]
    assert np.array_equal(copied.array("raw", "f8"), array)
    assert "jpg" in copied
    assert "png" not in copied
    assert repr(copied) == "Sample('000'; jpg, json, raw)"
    with pytest.raises(FieldNotFoundError, match="jpg, json"):
        copied["png"]
    assert dict(pickle.loads(pickle.dumps(copied))) == dict(copied)


def test_an_uninitialized_sample_raises_attribute_error():
    with pytest.raises(AttributeError):
        _ = Sample().key
    with pytest.raises(AttributeError):
        Sample()["a"]


# A key ends at the first dot of the last path component; the rest is the field.
RULE = re.compile(r"^((?:.*/|)[^./][^./]*)[.]([^/]*)$", re.S)
META = re.compile(r"__[^/]*__($|/)", re.S)

names = st.lists(
    st.text(st.sampled_from("ab._/É"), min_size=1, max_size=9), unique=True, max_size=30
)


@settings(deadline=None, max_examples=150)
@given(names=names)
def test_same_samples_as_a_plain_grouping(tmp_path_factory, names):
    path = tmp_path_factory.mktemp("h") / "s.tar"
    write_tar(path, {name: name.encode() for name in names})
    expected = {}
    for name in names:
        plain = re.sub(r"\A(\./+)+", "", name)
        match = RULE.match(plain)
        if match and not META.match(plain):
            expected.setdefault(match[1], []).append((match[2].lower(), name))
    with fastshard.open_shard(path) as shard:
        assert list(shard.samples.keys()) == list(expected)
        for i, (key, fields) in enumerate(expected.items()):
            if max(Counter(field for field, _ in fields).values()) > 1:
                with pytest.raises(FormatError):
                    shard.samples[i]
                continue
            sample = shard.samples[key]
            assert sample.position == i
            assert sample.keys() == [field for field, _ in fields]
            for field, name in fields:
                assert sample[field] == name.encode()


def test_a_grouping_counts_fields(shard_path):
    with fastshard.open_shard(shard_path) as shard:
        counts = shard.samples.grouping.field_counts()
    assert json.dumps(counts) == '{"jpg": 3, "json": 3}'
