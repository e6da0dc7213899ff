"""Keys of samples of one member each, compared with those of a manifest."""

import io
import tarfile
from array import array

import pytest

import fastshard
from fastshard._core.table.grouping import copy_keys, has_keys

SUFFIX = b".msgpack"


def table_of(path, names):
    with tarfile.open(path, "w", tarfile.USTAR_FORMAT) as tar:
        for name in names:
            member = tarfile.TarInfo(name)
            member.size = 1
            tar.addfile(member, io.BytesIO(b"\x80"))
    return fastshard.open_shard(path).parts()[1]


def column(keys):
    """Return keys as a column of text, joined, and where each ends."""
    texts = [key.encode() for key in keys]
    ends = [sum(map(len, texts[:n])) for n in range(len(texts) + 1)]
    return b"".join(texts), array("i", ends)


@pytest.mark.parametrize("keys", [["a"], ["a", "bb", "cc"], ["d/a", "é", "x" * 90]])
def test_names_that_are_a_key_and_the_suffix(tmp_path, keys):
    table = table_of(tmp_path / "a.tar", [f"{key}.msgpack" for key in keys])
    assert copy_keys(table, SUFFIX) == "\n".join(keys).encode()
    assert has_keys(table, SUFFIX, *column(keys))


@pytest.mark.parametrize(
    "names",
    [
        [],
        ["a.msgpack", "b.npy"],
        ["a.b.msgpack"],  # the sample a, without a payload
        ["./a.msgpack"],  # the sample a
        ["__meta__/a.msgpack"],  # no sample
        [".msgpack"],
        ["a.msgpack", "msgpack"],
        ["a\nb.msgpack", "c.msgpack"],
    ],
)
def test_other_names_are_not_compared(tmp_path, names):
    table = table_of(tmp_path / "a.tar", names)
    stems = [name.removesuffix(".msgpack") for name in names]
    assert copy_keys(table, SUFFIX) is None
    assert not has_keys(table, SUFFIX, *column(stems))


@pytest.mark.parametrize(
    "keys",
    [["a", "b"], ["a", "b", "d"], ["a", "bc", ""], ["b", "a", "c"], ["aa", "b", "c"]],
)
def test_other_keys_are_found(tmp_path, keys):
    table = table_of(tmp_path / "a.tar", ["a.msgpack", "b.msgpack", "c.msgpack"])
    assert not has_keys(table, SUFFIX, *column(keys))


def test_broken_columns_are_not_read(tmp_path):
    table = table_of(tmp_path / "a.tar", ["a.msgpack", "b.msgpack"])
    assert has_keys(table, SUFFIX, b"ab", array("i", [0, 1, 2]))
    for text, ends in [
        (b"", [0, 1, 2]),
        (b"a", [0, 1, 2]),
        (b"ab", [0, 1]),
        (b"ab", [1, 1, 2]),
        (b"ab", [0, -1, 2]),
        (b"ab", [0, 1, 2**31 - 1]),
        (b"ab", []),
    ]:
        assert not has_keys(table, SUFFIX, text, array("i", ends))
