"""Written shards, read back by fastshard, tarfile, WebDataset and tar programs."""

import gc
import os
import subprocess
import sys
import tarfile
import time
import warnings

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import fastshard
import fastshard.formats.writer
from fastshard.formats.tar_writer import HeaderEncoder
from fastshard.formats.writer import ShardWriter
from support.marks import needs
from support.tars import listed, listed_by_tarfile
from support.writing import read_back, write_one

END = 1024  # bytes of zeros at the end of a shard


@pytest.fixture
def one(tmp_path):
    """Write samples to one shard."""

    def write_shard(*samples, name="shard.tar", **options):
        return write_one(tmp_path / name, *samples, **options)

    return write_shard


LONG = "directory/" * 12 + "z" * 60  # fits ustar's prefix and name
LONGER = "d" * 160 + "/" + "k" * 90  # does not fit
NAMES = [
    "000",
    "a/b/c",
    "dots.in.dirs/k",
    "k" * 96,  # exactly 100 with .txt
    "k" * 97,
    LONG,
    LONGER,
    "q" * 240,
    "Grüße/日本語",
    "é" * 60,
    "with space",
    "a..b/k",
    "_x",
    "__x__",  # __x__.txt is not metadata
    "-dash",
]


@pytest.fixture
def read_by_webdataset():
    """Read samples with WebDataset, which leaves its file to the garbage collector."""
    wds = pytest.importorskip("webdataset")

    def read(path, decode=False):
        with warnings.catch_warnings(action="ignore", category=ResourceWarning):
            dataset = wds.WebDataset(str(path), shardshuffle=False)
            samples = list(dataset.decode() if decode else dataset)
            del dataset
            gc.collect()
        return samples

    return read


@pytest.fixture
def varied(one):
    """Return a shard with every kind of name and size, and its samples."""
    sizes = [0, 1, 511, 512, 513, 1024, 100_000]
    members = {}
    samples = []
    for i, key in enumerate(NAMES):
        data = bytes([i]) * sizes[i % len(sizes)]
        samples.append({"__key__": key, "txt": data, "seg.png": b"\x89PNG"})
        members |= {f"{key}.txt": data, f"{key}.seg.png": b"\x89PNG"}
    return one(*samples), members


def test_fastshard_reads_written_shards(varied):
    path, members = varied
    with fastshard.open_shard(path, index="none") as shard:
        assert {name: bytes(shard[name]) for name in shard.names} == members
        assert list(shard.names) == list(members)


def test_the_standard_library_reads_it(varied):
    path, members = varied
    with tarfile.open(path, "r:") as tar:
        assert {m.name: tar.extractfile(m).read() for m in tar} == members
        tar.fileobj.seek(0)
    assert listed(path, index="none") == listed_by_tarfile(path)


@pytest.mark.parametrize("program", ["tar", "bsdtar", "busybox"])
def test_programs_list_and_extract_it(varied, tmp_path, program):
    path, members = varied
    command = [needs(program)] + ["tar"] * (program == "busybox")
    if program == "busybox":  # without pax, such names differ
        members = {n: d for n, d in members.items() if n.isascii() and len(n) < 200}
    env = os.environ | {"LC_ALL": "C.UTF-8"}
    out = tmp_path / "out"
    out.mkdir()

    for flags in ("-tvf", "-tf"):
        done = subprocess.run(
            [*command, flags, path], capture_output=True, check=True, env=env
        )
        assert done.stderr == b""
    lines = done.stdout.decode().splitlines()
    if program == "bsdtar":
        assert lines == list(members)
    subprocess.run([*command, "-xf", path, "-C", out], check=True, env=env)

    for name, data in members.items():
        assert (out / name).read_bytes() == data


def test_webdataset_reads_the_same_samples(varied, read_by_webdataset):
    path, members = varied
    samples = read_by_webdataset(path)
    read = {f"{s['__key__']}.{f}": s[f] for s in samples for f in ("txt", "seg.png")}
    assert read == members


def test_values_are_decoded_by_webdataset(one, read_by_webdataset):
    array = np.arange(6, dtype="f4").reshape(2, 3)
    path = one(
        {
            "__key__": "k",
            "cls": 7,
            "txt": "Grüße",
            "json": {"a": [1, "é", None]},
            "npy": array,
            "npz": {"x": array},
        }
    )
    (sample,) = read_by_webdataset(path, decode=True)
    assert sample["cls"] == 7
    assert sample["txt"] == "Grüße"
    assert sample["json"] == {"a": [1, "é", None]}
    assert (sample["npy"] == array).all()
    assert (sample["npz"]["x"] == array).all()


def test_headers_are_plain(one):
    path = one({"__key__": "k", "b": b"1", "a": b"22"}, mtime=1_700_000_000, mode=0o600)
    blocks = path.read_bytes()
    assert len(blocks) == 4 * 512 + END
    assert blocks[-END:] == bytes(END)
    with tarfile.open(path) as tar:
        members = tar.getmembers()
    assert [m.name for m in members] == ["k.b", "k.a"]  # the given order
    for member in members:
        assert (member.mode, member.mtime) == (0o600, 1_700_000_000)
        assert (member.uid, member.gid, member.uname, member.gname) == (0, 0, "", "")
        assert (member.type, member.pax_headers) == (b"0", {})


def test_the_same_samples_give_the_same_bytes(one):
    array = np.arange(5.0)
    sample = {
        "__key__": "ö",
        "json": {"b": 1, "a": 2},
        "npy": array,
        "npz": {"x": array},
    }
    first = one(sample, name="a.tar").read_bytes()
    time.sleep(
        2.1 if sys.version_info >= (3, 14) else 0
    )  # zip times have a resolution of 2 s
    assert one(sample, name="b.tar").read_bytes() == first


@pytest.mark.parametrize("size", [8**11 - 1, 8**11, 10 * 2**30 + 1])
@pytest.mark.parametrize("name", ["big.bin", "é.bin", LONG + ".bin"])
def test_sizes_from_8_gib(tmp_path, name, size):
    path = tmp_path / "big.tar"
    header = HeaderEncoder(0o644, 0).member(name.encode(), size)
    with open(path, "wb") as file:
        file.write(header)
        file.truncate(len(header) + size + -size % 512 + END)  # a hole
    expected = [(name, len(header), size)]
    assert listed(path, index="none") == listed_by_tarfile(path) == expected
    done = subprocess.run(
        [needs("tar"), "-tvf", path, "--quoting-style=literal"],
        capture_output=True,
        check=True,
        text=True,
        env=os.environ | {"LC_ALL": "C.UTF-8"},
    )
    assert str(size) in done.stdout
    assert done.stdout.rstrip().endswith(name)


text = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="/.", min_codepoint=32),
    min_size=1,
    max_size=30,
)
keys = st.lists(text, min_size=1, max_size=4).map("/".join)
fields = st.lists(text.map(str.lower), min_size=1, max_size=3).map(".".join)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.dictionaries(
        keys, st.dictionaries(fields, st.binary(max_size=1500), min_size=1), min_size=1
    )
)
def test_written_values_read_back_equal(tmp_path, samples):
    path = tmp_path / "shard.tar"
    path.unlink(missing_ok=True)
    expected = []
    with ShardWriter(path, index=None) as writer:
        for key, sample in samples.items():
            try:
                writer.write({**sample, "__key__": key})
            except ValueError as error:  # a name that readers would not parse back
                assert repr(key) in str(error)
            else:
                expected.append((key, {f: d for f, d in sample.items() if keeps(f)}))
    if expected:
        assert read_back(path) == expected
        assert listed(path) == listed_by_tarfile(path)


def keeps(field):
    return not (len(field) > 4 and field[:2] == field[-2:] == "__")
