"""ViewFile: the same results as io.BytesIO."""

import io
import random

import pytest

from fastshard._util.viewfile import ViewFile

DATA = bytes(range(256)) * 4


@pytest.fixture
def file():
    return ViewFile(memoryview(DATA), "a.bin")


@pytest.mark.parametrize("seed", range(20))
def test_same_answers_as_bytesio(file, seed):
    rng = random.Random(seed)
    oracle = io.BytesIO(DATA)
    for _ in range(200):
        size = rng.choice([None, -1, 0, 1, 7, 100, 5000])
        match rng.randrange(5):
            case 0:
                assert file.read(size) == oracle.read(size)
            case 1:
                assert file.read1(7) == oracle.read1(7)
            case 2:
                mine, theirs = bytearray(9), bytearray(9)
                assert file.readinto(mine) == oracle.readinto(theirs)
                assert mine == theirs
            case 3:
                args = rng.choice([(rng.randrange(2000), 0), (0, 1), (-5, 2), (3, 2)])
                assert file.seek(*args) == oracle.seek(*args)
            case 4:
                assert file.readline() == oracle.readline()
        assert file.tell() == oracle.tell()


def test_it_is_readable_and_seekable_but_not_writable(file):
    assert file.readable()
    assert file.seekable()
    assert not file.writable()
    assert file.name == "a.bin"
    with pytest.raises(io.UnsupportedOperation):
        file.write(b"x")


@pytest.mark.parametrize("args", [(-1,), (-2000, 2), (0, 3)])
def test_an_invalid_seek_is_a_value_error(file, args):
    with pytest.raises(ValueError, match=r"negative|whence"):
        file.seek(*args)


def test_a_closed_file_raises(file):
    with file:
        assert file.getbuffer() == DATA
    for use in (file.read, file.tell, file.readable, file.getbuffer, file.seekable):
        with pytest.raises(ValueError, match="closed"):
            use()


def test_it_reads_as_text(file):
    text = io.TextIOWrapper(ViewFile(memoryview(b"a\nb\n"), "t"), "utf-8")
    assert text.readlines() == ["a\n", "b\n"]
