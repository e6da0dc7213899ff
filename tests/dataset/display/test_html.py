"""Tables for notebooks: previews of fields, hostile names and bytes."""

import base64
import io
import re
import struct
import zlib
from html.parser import HTMLParser

import numpy as np
import pytest

import fastshard
from fastshard.columnar import ShardedDatasetWriter
from support.builders import npy
from support.inside.datasets import opened_shards
from support.servers.http import Server
from support.tars import write_numbers, write_tar

IMAGE = re.compile('src="data:image/png;base64,([^"]*)"')
ALLOWED = {"div", "b", "table", "tr", "td", "code", "i", "img", "br", "pre"}


class Checker(HTMLParser):
    """Parser that records tags and text, and refuses unknown tags and scripts."""

    def __init__(self):
        super().__init__()
        self.open = []
        self.text = ""

    def handle_starttag(self, tag, attributes):
        assert tag in ALLOWED, tag
        assert {name for name, _ in attributes} <= {"style", "src"}
        if tag not in ("img", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def text_of(html):
    checker = Checker()
    checker.feed(html)
    checker.close()
    assert checker.open == []
    html.encode()
    return checker.text


def html_of(path, members, **options):
    write_tar(path, members)
    with fastshard.open(path, index="none", **options) as ds:
        return ds[0]._repr_html_()


def picture(mode="RGB", size=(400, 200), form="PNG", **options):
    image_module = pytest.importorskip("PIL.Image")
    file = io.BytesIO()
    image_module.new(mode, size, **options).save(file, form)
    return file.getvalue()


def png_header(width, height):
    """A PNG that claims a size, with too few rows."""

    def chunk(kind, data):
        body = kind + data
        return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    rows = zlib.compress(bytes(1000))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows)


def test_a_sample_shows_text_numbers_and_arrays(tmp_path):
    members = {
        "s.txt": "grüße <b>bold</b> & \x1b[31m\n".encode(),
        "s.cls": b"7",
        "s.json": b'{"a": 1}',
        "s.npy": npy(np.arange(6, dtype="f4").reshape(2, 3)),
        "s.raw": bytes(range(100)),
        "s.long.txt": b"x" * 5000,
    }
    html = html_of(tmp_path / "a.tar", members)
    text = text_of(html)
    assert "Sample 's'" in text
    assert "grüße <b>bold</b> & \\x1b[31m\\n" in text
    assert "text, 28 bytes" in text
    assert '{"a": 1}' in text
    assert "int, 1 byte7" in text
    assert "float32 [2, 3], from 0.0 to 5.0" in text
    assert "\\x00\\x01\\x02" in text
    assert text.count("x" * 200 + "...") == 1
    assert len(html) < 5000


@pytest.mark.parametrize("array", [np.zeros(0), np.array(["a"]), np.array([1 + 2j, 3])])
def test_arrays_without_extremes_are_shown(tmp_path, array):
    text = text_of(html_of(tmp_path / "a.tar", {"s.npy": npy(array)}))
    assert f"{array.dtype} [{len(array)}]" in text
    assert "from" not in text


@pytest.mark.parametrize(
    ("mode", "form", "name"),
    [
        ("RGB", "JPEG", "jpg"),
        ("CMYK", "JPEG", "jpg"),
        ("L", "JPEG", "jpg"),
        ("P", "PNG", "png"),
        ("LA", "PNG", "png"),
        ("I;16", "PNG", "png"),
        ("1", "TIFF", "tif"),
        ("F", "TIFF", "tif"),
        ("RGBA", "WEBP", "webp"),
    ],
)
def test_an_image_is_a_thumbnail(tmp_path, mode, form, name):
    data = picture(mode, form=form)
    html = html_of(tmp_path / "a.tar", {f"s.{name}": data})
    assert "400 x 200" in text_of(html)
    import PIL.Image

    (encoded,) = IMAGE.findall(html)
    shown = PIL.Image.open(io.BytesIO(base64.b64decode(encoded)))
    assert shown.format == "PNG"
    assert shown.size == (160, 80)
    assert len(html) < 100_000


def test_bombs_and_broken_images_are_refused(tmp_path):
    whole = picture(form="JPEG")
    members = {
        "s.jpg": b"not an image",
        "s.a.png": png_header(60_000, 60_000),
        "s.b.png": png_header(5_000, 5_000),
        "s.c.png": png_header(100, 100),
        "s.d.jpg": whole[: len(whole) // 2],
        "s.e.jpg": b"",
        "s.f.jpg": picture(size=(9000, 7000), form="JPEG"),
        "s.g.jpg": b"%!PS-Adobe-3.0 EPSF-3.0\n",
    }
    html = html_of(tmp_path / "a.tar", members)
    text = text_of(html)
    assert not IMAGE.search(html)
    assert "decompression bomb" in text
    assert text.count("too large to show") == 2
    assert "not an image of a known kind" in text


def test_every_truncated_image_gives_a_table(tmp_path):
    for form, name in (
        ("JPEG", "jpg"),
        ("PNG", "png"),
        ("WEBP", "webp"),
        ("GIF", "gif"),
    ):
        data = picture("RGB", (40, 30), form)
        members = {f"s.{n:04}.{name}": data[:n] for n in range(0, len(data), 13)}
        write_tar(tmp_path / f"{form}.tar", members)
        with fastshard.open(tmp_path / f"{form}.tar") as ds:
            text_of(ds[0]._repr_html_())


def test_hostile_names_are_escaped(tmp_path):
    name = "<script>alert(1)</script>\"'&\x07\udc80"
    members = {f"k{name}.{name}": b"1", f"k{name}.txt": b"2"}
    path = write_tar(tmp_path / "a.tar", members)
    with fastshard.open(path) as ds:
        for sample in ds:
            html = sample._repr_html_()
            assert "<script>" not in html
            text_of(html)
    moved = tmp_path / "<script>"
    moved.mkdir()
    path.rename(moved / "a.tar")
    with fastshard.open(moved) as ds:
        assert "<script>" in text_of(ds._repr_html_())
        assert "<script>" not in ds._repr_html_()


def test_wide_samples_are_cut(tmp_path):
    html = html_of(tmp_path / "a.tar", {f"s.{i:04}": b"" for i in range(500)})
    assert "... 450 more" in text_of(html)


def test_a_closed_sample_is_shown_and_a_copied_one(tmp_path):
    import pickle

    path = write_tar(tmp_path / "a.tar", {"s.txt": b"hello", "s.npy": npy(np.ones(2))})
    with fastshard.open_shard(path) as shard:
        sample = shard.samples[0]
        copied = pickle.loads(pickle.dumps(sample))
    assert "ClosedError" in text_of(sample._repr_html_())
    assert "hello" in text_of(copied._repr_html_())
    assert "float64 [2], from 1.0 to 1.0" in text_of(copied._repr_html_())


def test_without_pillow_an_image_is_named(tmp_path, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "PIL", None)
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    assert "install Pillow" in text_of(
        html_of(tmp_path / "a.tar", {"s.jpg": b"\xff\xd8"})
    )


def test_decoders_of_the_caller_are_not_called(tmp_path):
    def decode(view):
        raise AssertionError

    html = html_of(tmp_path / "a.tar", {"s.x": b"abc"}, decoders={"x": decode})
    assert "object, 3 bytes" in text_of(html)


def test_columnar_samples_show_arrays(tmp_path):
    with ShardedDatasetWriter(tmp_path / "c") as writer:
        writer.add_fields(["jpg"])
        writer.add_sample({"jpg": np.arange(4)})
    with fastshard.open(tmp_path / "c") as ds:
        assert "int64 [4], from 0 to 3" in text_of(ds[0]._repr_html_())
        assert "jpg (array)" in text_of(ds._repr_html_())


def test_a_notebook_shows_the_repr(tmp_path):
    ds = fastshard.open(write_numbers(tmp_path / "n", 25))
    text = text_of(ds.shuffle(3).decode()._repr_html_())
    for part in (
        "Dataset",
        "25 samples in 3 shards",
        "txt (text), npy (array), cls (int)",
        "shuffled seed 3 epoch 0",
        "decode",
        str(tmp_path),
    ):
        assert part in text
    assert not any(opened_shards(ds))  # no shard was opened
    for one in (ds + ds, fastshard.mix([ds, ds]), fastshard.zip_by_key(ds, ds)):
        assert type(one).__name__ in text_of(one._repr_html_())
    ds.close()
    assert "closed" in text_of(ds._repr_html_())


def test_a_remote_sample_fetches_itself_at_most(tmp_path):
    members = {}
    for i in range(50):
        members[f"{i:02}.txt"] = b"text"
        members[f"{i:02}.bin"] = bytes(100_000)
    path = write_tar(tmp_path / "a.tar", members)
    with Server({"/a.tar": path.read_bytes()}) as server:
        ds = fastshard.open(f"{server.url}/a.tar")
        sample = ds[20]
        before = server.bytes_sent
        assert "text" in text_of(sample._repr_html_())
        assert server.bytes_sent - before < 200_000
