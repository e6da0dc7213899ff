"""Untrusted bytes reach no reader of Pillow but those of one list, on every path."""

import io
import struct
from contextlib import suppress

import pytest

import fastshard
from fastshard.codecs.images import RARE_READERS, READERS, open_image
from fastshard.errors import FastshardError
from fastshard.streaming.encodings.registry import mds_decode
from support.tars import write_tar

PIL = pytest.importorskip("PIL")
Image = pytest.importorskip("PIL.Image")
EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n"
PATHS = [
    lambda ds: ds[0].decode("jpg"),
    lambda ds: ds.decode("jpg")[0],
    lambda ds: ds[0]._repr_html_(),
    lambda ds: ds.images("jpg", 8)[0],
    lambda ds: ds.images("jpg", 8, decoder="pillow")[0],
    lambda ds: mds_decode("jpeg", ds[0]["jpg"]),
    lambda ds: mds_decode("png", ds[0]["jpg"]),
    lambda ds: mds_decode(
        "list[jpeg]", bytes(4) + struct.pack("<2I", 1, len(EPS)) + ds[0]["jpg"]
    ),
    lambda ds: mds_decode(
        "jpeg_array", struct.pack("<2I", 1, len(EPS)) + bytes(ds[0]["jpg"])
    ),
]


@pytest.fixture
def seen(monkeypatch):
    """Replace each reader that is not allowed; return the names of those asked."""
    Image.init()
    names = []

    def spy(name):
        def accept(head):
            names.append(name)
            return False

        return accept

    for name, (factory, _) in list(Image.OPEN.items()):
        if name not in (*READERS, *RARE_READERS):
            monkeypatch.setitem(Image.OPEN, name, (factory, spy(name)))
    return names


def test_the_spy_sees_readers(seen):
    with pytest.raises(PIL.UnidentifiedImageError):
        Image.open(io.BytesIO(EPS))
    assert "EPS" in seen


@pytest.mark.parametrize("path", PATHS, ids=range(len(PATHS)))
def test_no_other_reader_sees_the_bytes(tmp_path, seen, path):
    write_tar(tmp_path / "a.tar", {"0.jpg": EPS})
    ds = fastshard.open(str(tmp_path / "a.tar"))
    with suppress(FastshardError):
        path(ds)
    assert seen == []


@pytest.mark.parametrize("kind", READERS)
def test_allowed_kinds_are_read(kind):
    file = io.BytesIO()
    Image.new("RGB", (3, 2), (7, 7, 7)).save(file, kind)
    assert open_image(file).size == (3, 2)


def test_rare_kinds_are_read_where_they_are_allowed():
    file = io.BytesIO()
    Image.new("RGB", (16, 16)).save(file, "ICO")
    with pytest.raises(PIL.UnidentifiedImageError):
        open_image(file)
    assert open_image(file, rare=True).size == (16, 16)
