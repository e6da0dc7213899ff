"""Names of samples, fields and shards that ShardWriter accepts."""

import pytest

from fastshard.formats.writer import ShardWriter
from support.writing import names_in, numbered, read_back, refused, write, write_one


@pytest.fixture
def one(tmp_path):
    """Write samples to one shard."""

    def write_shard(*samples, name="shard.tar", **options):
        return write_one(tmp_path / name, *samples, **options)

    return write_shard


@pytest.mark.parametrize(
    ("key", "match"),
    [
        ("", "empty"),
        ("a.b", "first dot of its last part, after 'a'"),
        ("a/b.c", "first dot"),
        (".hidden", "readers ignore"),
        ("a/.hidden", "readers ignore"),
        ("/abs", "slash"),
        ("a/", "empty"),
        ("a//b", "empty"),
        ("..", r"empty or \"..\""),
        ("../a", r"empty or \"..\""),
        ("a/../b", r"empty or \"..\""),
        ("a\0b", "control"),
        ("a\nb", "control"),
        ("a\x7f", "control"),
        ("a\ud800", "surrogate"),
        ("__x__/a", "readers ignore"),
        ("____/a", "readers ignore"),
        ("k" * 4097, "4,096 bytes"),
    ],
)
def test_keys_that_would_not_read_back(tmp_path, key, match):
    refused(tmp_path, {"__key__": key, "txt": b""}, ValueError, match)


def test_a_name_that_is_metadata_only_with_its_field(tmp_path):
    sample = {"__key__": "__a", "b__": b""}
    refused(tmp_path, sample, ValueError, r"readers ignore the name '__a.b__'")


@pytest.mark.parametrize(
    ("field", "match"),
    [
        ("", "empty"),
        ("JPG", "read as 'jpg'; see lower="),
        ("seg.PNG", "read as 'seg.png'"),
        ("É", "read as 'é'"),
        ("a/b", "last slash"),
        ("a\0", "control"),
        ("a\n", "control"),
        ("a\udcff", "surrogate"),
    ],
)
def test_fields_that_would_not_read_back(tmp_path, field, match):
    refused(tmp_path, {"__key__": "k", field: b""}, ValueError, match)


def test_case_is_kept_when_asked_for(one):
    path = one({"__key__": "k", "JPG": b"1", "jpg": b"2"}, lower=False)
    assert read_back(path, lower=False) == [("k", {"JPG": b"1", "jpg": b"2"})]


@pytest.mark.parametrize(
    ("sample", "error", "match"),
    [
        ({}, ValueError, "__key__"),
        ({"txt": b""}, ValueError, "__key__"),
        ({"__key__": 5, "txt": b""}, TypeError, "int"),
        ({"__key__": b"k", "txt": b""}, TypeError, "bytes"),
        ({"__key__": "k"}, ValueError, "no field"),
        ({"__key__": "k", "__url__": "x"}, ValueError, "no field"),
        ({"__key__": "k", 5: b""}, TypeError, "a field must be a str"),
        ([("__key__", "k")], TypeError, "mapping"),
        (numbered(1), ValueError, "'000001' is in .* already"),
    ],
)
def test_invalid_samples(tmp_path, sample, error, match):
    refused(tmp_path, sample, error, match)


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("t-{:06d}.tar", ["t-000000.tar", "t-000001.tar"]),
        ("t-{}.tar", ["t-0.tar", "t-1.tar"]),
        ("t-{0:02d}.tar", ["t-00.tar", "t-01.tar"]),
        ("t-%06d.tar", ["t-000000.tar", "t-000001.tar"]),
        ("t-%d.tar", ["t-0.tar", "t-1.tar"]),
        ("100%-{}.tar", ["100%-0.tar", "100%-1.tar"]),
        ("100%-%d.tar", ["100%-0.tar", "100%-1.tar"]),
        ("{{x}}-{}.tar", ["{x}-0.tar", "{x}-1.tar"]),
    ],
)
def test_patterns(tmp_path, monkeypatch, pattern, names):
    monkeypatch.chdir(tmp_path)
    write(pattern, numbered(0), numbered(1), max_count=1)
    assert names_in(tmp_path) == names


@pytest.mark.parametrize(
    "pattern",
    [
        *("{}-{}.tar", "%d-%d.tar", "{name}.tar", "{0.real}.tar", "{1}.tar"),
        *("{:{}}.tar", "{.tar", "}.tar", "{:.0s}.tar", "{:%Y}.tar", "{!q}.tar"),
    ],
)
def test_invalid_patterns(pattern):
    with pytest.raises(ValueError):  # noqa: PT011
        ShardWriter(pattern)
