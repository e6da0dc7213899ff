"""Damage inside indexes, found at opening or at a block's first use."""

import os
import random
import shutil
import subprocess
import sys
import warnings
from contextlib import suppress

import pytest

import fastshard
from fastshard._core.table import checksums as blocks
from fastshard._core.table.checksums import BLOCK_BYTES, block_sums, crc32c
from fastshard.index.binary import read_binary, read_header
from fastshard.index.dataset_file import HEADER as DATASET_HEADER
from fastshard.index.dataset_file import DatasetIndex
from support.index.binary import crc32c_by_bits, with_right_checksums
from support.inside.datasets import forget_warning
from support.marks import thin
from support.paths import DATA
from support.tars import write_tar
from support.threads import in_threads

V1 = DATA / "v1"
MODES = ["mmap", "pread"]


@pytest.mark.parametrize("portable", [False, True])
def test_crc32c_equals_the_vectors_of_rfc_3720(portable):
    for data, crc in [
        (b"", 0),
        (b"123456789", 0xE3069283),
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
    ]:
        assert crc32c(data, portable=portable) == crc
    data = random.Random(1).randbytes(1000)
    for a, b in [(0, 1000), (1, 999), (7, 8), (3, 500), (5, 5)]:
        assert crc32c(data[a:b], portable=portable) == crc32c_by_bits(data[a:b])
        joined = crc32c(data[b:], crc32c(data[:b]), portable=portable)
        assert joined == crc32c(data, portable=portable)


def test_sums_are_of_64_kib():
    data = random.Random(2).randbytes(2 * BLOCK_BYTES + 5)
    parts = [data[i : i + BLOCK_BYTES] for i in range(0, len(data), BLOCK_BYTES)]
    sums = b"".join(crc32c(part).to_bytes(4, "little") for part in parts)
    assert BLOCK_BYTES == 1 << 16
    assert block_sums(data) == sums
    assert block_sums(b"") == b""
    assert blocks.BLOCK_BYTES == BLOCK_BYTES


def read_everything(shard):
    """Return everything that a shard reads from its index."""
    yield "names", list(shard.names)
    yield "extents", [shard.extent_of(i) for i in range(len(shard))]
    yield "offsets", shard.offsets.tolist()
    yield "sizes", shard.sizes.tolist()
    yield "infos", [shard.info(i) for i in range(len(shard))]
    yield "samples", [(s.key, s.keys()) for s in shard.samples]
    yield "keys", [shard.samples.key_at(i) for i in range(len(shard.samples))]
    yield "bytes", [bytes(view) for view in shard]
    yield "more", (shard.end, dict(shard.skipped or {}), len(shard), len(shard.samples))


def read_each_alone(open_one):
    """Yield each read of a shard with its result; an earlier read may check blocks."""
    for what in range(9):
        with open_one() as shard:
            for k, answer in enumerate(read_everything(shard)):
                if k == what:
                    yield answer
                    break


def count_right_reads(shard, expected, names, keys):
    """Check that each read of a shard is right or an error."""
    found = 0
    for i, name in enumerate(names):
        for ask, right in [
            (lambda name=name: bytes(shard[name]), expected["bytes"][i]),
            (lambda i=i: shard.names[i], name),
            (lambda i=i: shard.info(i), expected["infos"][i]),
            (lambda i=i: shard.extent_of(i), expected["extents"][i]),
        ]:
            with suppress(fastshard.FormatError):
                assert ask() == right
                found += 1
    for key in keys:
        with suppress(fastshard.FormatError):
            assert shard.samples[key].key == key
            found += 1
    return found


@pytest.fixture
def tar(tmp_path):
    members = {"a.jpg": b"1" * 700, "a.json": b"{}", "b.jpg": b"", "README": b"r"}
    path = write_tar(tmp_path / "t.tar", members | {"sub/c.d.jpg": b"3"})
    with fastshard.open_shard(path) as shard:
        shard.save_index(hashes=True)
    return path


def flip_bits(raw, seed=None, count=0):
    """Yield the data with single flipped bits, all or some of them."""
    bits = thin(range(8 * len(raw)), 5)
    if seed is not None:
        bits = random.Random(seed).sample(range(8 * len(raw)), count)
    for bit in bits:
        changed = bytearray(raw)
        changed[bit // 8] ^= 1 << bit % 8
        yield bit, bytes(changed)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("same_file", [True, False])
def test_every_flipped_bit_gives_right_reads_or_an_error(tar, mode, same_file):
    """The shard is the indexed file, or a copy for which headers decide."""
    if not same_file:
        os.utime(tar, ns=(3, 3))
    index = tar.with_suffix(".fsi")
    raw = index.read_bytes()
    with fastshard.open_shard(tar, index=index) as shard:
        expected = dict(read_everything(shard))
    for bit, changed in flip_bits(raw) if same_file else flip_bits(raw, 6, 1500):
        index.write_bytes(changed)
        try:
            shard = fastshard.open_shard(tar, index=index, mode=mode)
        except fastshard.FormatError as error:
            assert error.path == str(index), bit
            continue
        with shard:
            try:
                for what, answer in read_everything(shard):
                    assert answer == expected[what], bit
            except fastshard.FormatError as error:
                assert error.path == str(index), bit
            else:
                raise AssertionError(f"bit {bit} is never checked")


@pytest.mark.parametrize("mode", MODES)
def test_each_read_alone_is_right_or_an_error(tar, mode):
    index = tar.with_suffix(".fsi")
    raw = index.read_bytes()
    with fastshard.open_shard(tar, index=index) as shard:
        expected = dict(read_everything(shard))
    names, keys = expected["names"], expected["keys"]
    for bit, changed in flip_bits(raw, 5, 80):
        index.write_bytes(changed)

        def open_one():
            return fastshard.open_shard(tar, index=index, mode=mode)

        with suppress(fastshard.FormatError):
            for what, answer in read_each_alone(open_one):
                assert answer == expected[what], bit
        with suppress(fastshard.FormatError), open_one() as shard:
            count_right_reads(shard, expected, names, keys)


COUNT = 9_000  # members; each column has several blocks


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    folder = tmp_path_factory.mktemp("large")
    rows = {
        f"{i:06d}/{i * 7919:x}.{f}": b"%d" % i for i in range(COUNT // 2) for f in "ab"
    }
    path = write_tar(folder / "t.tar", rows)
    with fastshard.open_shard(path) as shard:
        shard.save_index(hashes=True)
    return path


@pytest.mark.parametrize("mode", MODES)
def test_flipped_bits_of_a_large_index(large, tmp_path, mode):
    index = tmp_path / "t.fsi"
    raw = large.with_suffix(".fsi").read_bytes()
    assert len(raw) > 10 * BLOCK_BYTES
    with fastshard.open_shard(large) as shard:
        expected = dict(read_everything(shard))
    looks = random.Random(3)
    fewer = 0
    for _, changed in flip_bits(raw, 4, 25):
        index.write_bytes(changed)
        try:
            shard = fastshard.open_shard(large, index=index, mode=mode)
        except fastshard.FormatError as error:
            assert error.path == str(index)
            continue
        with shard:
            for i in looks.sample(range(COUNT), 20):
                with suppress(fastshard.FormatError):
                    assert shard.names[i] == expected["names"][i]
                    assert shard[i] == expected["bytes"][i]
                    assert shard.info(i) == expected["infos"][i]
            for i in looks.sample(range(COUNT // 2), 20):
                try:
                    assert shard.samples[i].key == expected["keys"][i]
                    assert dict(shard.samples[i]).keys() == {"a", "b"}
                except fastshard.FormatError:
                    fewer += 1
            with suppress(fastshard.FormatError):
                assert shard[expected["names"][77]] == expected["bytes"][77]
            with suppress(fastshard.FormatError):
                assert shard.samples[expected["keys"][78]].key == expected["keys"][78]
    assert mode == "pread" or fewer > 0


def test_damage_in_other_blocks_does_not_matter(large, tmp_path):
    """Reads check the blocks that they use, and no others."""
    index = tmp_path / "t.fsi"
    raw = bytearray(large.with_suffix(".fsi").read_bytes())
    at, _ = read_binary(str(large.with_suffix(".fsi"))).extents["infos"]
    at += 2 * BLOCK_BYTES
    raw[at] ^= 1
    index.write_bytes(raw)
    block = (at - 256) // BLOCK_BYTES * BLOCK_BYTES + 256
    with fastshard.open_shard(large, index=index) as shard:
        assert len(list(shard.names)) == COUNT
        assert all(len(sample) == 2 for sample in shard.samples)
        assert shard.info(0) != {}
        with pytest.raises(fastshard.FormatError, match="fastshard index") as caught:
            [shard.info(i) for i in range(COUNT)]
        assert (caught.value.path, caught.value.offset) == (str(index), block)
        with pytest.raises(fastshard.FormatError, match="checksum"):
            shard.save_index(tmp_path / "again.fsi")
    faults = fastshard.open(large, index=str(tmp_path)).verify()
    assert (str(index), block) in [(fault.path, fault.offset) for fault in faults]


def test_threads_check_blocks_side_by_side(large):
    with fastshard.open_shard(large) as shard:
        names = list(shard.names)
    for _ in range(5):
        with fastshard.open_shard(large) as shard:

            def use(k, shard=shard):
                order = random.Random(k).sample(range(COUNT), 400)
                assert [shard.names[i] for i in order] == [names[i] for i in order]
                assert names[-1] in shard
                assert sum(1 for name in shard.names if name) == COUNT

            in_threads(use, 4)


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    for shard in range(3):
        write_tar(folder / f"t-{shard}.tar", {f"{shard}{k}.txt": b"1" for k in "abc"})
    fastshard.build_index(folder)
    return folder


KEYS = [f"{shard}{k}" for shard in range(3) for k in "abc"]


def use_dataset(folder):
    """Each read is right or raises an error that names the index."""
    with fastshard.open(folder) as ds:
        try:
            assert len(ds) == len(KEYS)
            assert [ds[i].key for i in range(len(KEYS))] == KEYS
            assert [ds[key].key for key in KEYS] == KEYS
            assert "none" not in ds
        except fastshard.FormatError as error:
            assert error.path == str(folder / "dataset.fsi")


@pytest.mark.filterwarnings("ignore::fastshard.StaleIndexWarning")
def test_every_flipped_bit_of_a_dataset_index(folder):
    index = folder / "dataset.fsi"
    for bit, changed in thin([*flip_bits(index.read_bytes())], 3):
        index.write_bytes(changed)
        try:
            use_dataset(folder)
        except KeyError as error:
            raise AssertionError(f"bit {bit} hides a key") from error


def reseal_header(raw):
    """Return an edited index with a valid checksum of the header alone."""
    import struct
    import zlib

    return raw[:124] + struct.pack("<I", zlib.crc32(raw[:124])) + raw[128:]


@pytest.mark.filterwarnings("ignore::fastshard.StaleIndexWarning")
@pytest.mark.parametrize("version", [1, 2])
def test_a_resealed_header_hides_no_key(folder, version, tmp_path):
    """A wrong seed would hide all keys: opening raises."""
    keys = KEYS
    if version == 1:
        folder = tmp_path / "v1"
        shutil.copytree(V1, folder)
        keys = [f"{k}{i:02d}" for k in range(2) for i in range(6)]
    index = folder / "dataset.fsi"
    raw = index.read_bytes()
    for bit in thin(range(8 * 8, 8 * 84), 3):  # zeros follow
        changed = bytearray(raw)
        changed[bit // 8] ^= 1 << bit % 8
        index.write_bytes(reseal_header(bytes(changed)))
        with fastshard.open(folder) as ds:
            try:
                assert len(ds) == len(keys), bit
                assert [ds[key].key for key in keys] == keys, bit
            except fastshard.FormatError as error:
                assert error.path == str(index), bit


def test_a_resealed_dataset_index_never_reads_outside(folder):
    """Indexes with wrong contents and valid checksums never read outside the shard."""
    index = folder / "dataset.fsi"
    raw = index.read_bytes()
    assert with_right_checksums(raw, DATASET_HEADER) == raw
    assert DatasetIndex(str(index)).version == 2


@pytest.fixture
def old(tmp_path, monkeypatch):
    """Return a dataset with indexes of version 1, as an earlier release wrote them."""
    forget_warning(monkeypatch)
    folder = tmp_path / "old"
    shutil.copytree(V1, folder)
    assert read_header(str(folder / "t-0.fsi")).version == 1
    return folder


def read_v1(path):
    with fastshard.open_shard(path, index="none") as shard:
        return dict(read_everything(shard))


def use_old(old, mode):
    for k in (0, 1, 0, 1):
        path = old / f"t-{k}.tar"
        with fastshard.open_shard(path, mode=mode) as shard:
            assert shard.index is not None
            found = dict(read_everything(shard))
        if k == 1:
            assert all("sha256" in info for info in found.pop("infos"))
        expected = read_v1(path)
        assert all(found[what] == expected[what] for what in found)
        with fastshard.open(old, mode=mode) as ds:
            assert len(ds) == 12
            assert ds["103"].key == "103"


@pytest.mark.parametrize("mode", MODES)
def test_version_1_is_read_with_one_warning(old, mode):
    before = {path: path.stat() for path in old.iterdir()}
    with pytest.warns(fastshard.StaleIndexWarning, match="fastshard index") as told:
        use_old(old, mode)
    assert len(told) == 1
    for path, status in before.items():
        now = path.stat()
        assert (now.st_mtime_ns, now.st_size) == (status.st_mtime_ns, status.st_size)


def test_a_dataset_warns_once_in_a_process(old):
    code = (
        "import sys, fastshard\n"
        "for _ in range(3):\n"
        "    ds = fastshard.open(sys.argv[1]); assert len(ds) == 12; list(ds)\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "always", "-c", code, str(old)],
        check=True,
        capture_output=True,
        text=True,
    )
    assert done.stderr.count("StaleIndexWarning") == 1


@pytest.mark.filterwarnings("ignore::fastshard.StaleIndexWarning")
@pytest.mark.parametrize("mode", MODES)
def test_every_flipped_bit_of_version_1(old, mode):
    """Flip each byte except the padding, which version 1 does not checksum."""
    for k in range(2):
        path, index = old / f"t-{k}.tar", old / f"t-{k}.fsi"
        raw = index.read_bytes()
        with fastshard.open_shard(path, index=index) as shard:
            expected = dict(read_everything(shard))
        for bit, changed in flip_bits(raw, k, 500):
            index.write_bytes(changed)
            with (
                suppress(fastshard.FormatError),
                fastshard.open_shard(path, index=index, mode=mode) as shard,
            ):
                assert dict(read_everything(shard)) == expected, bit


@pytest.mark.filterwarnings("ignore::fastshard.StaleIndexWarning")
def test_version_1_is_checked_by_headers(old):
    path = old / "t-0.tar"
    status = path.stat()
    with fastshard.open_shard(path, index="none") as shard:
        rows = {name: bytes(shard[name]) for name in shard.names}
    rows["000.a"], rows["000.json"] = rows["000.json"], rows["000.a"]
    write_tar(path, dict(reversed(rows.items())))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert path.stat().st_size == status.st_size
    with pytest.raises(fastshard.StaleIndexError):
        fastshard.open_shard(path, index=path.with_suffix(".fsi"))


def test_indexing_renews_version_1(old):
    made = fastshard.build_index(old)
    assert [read_header(path).version for path in made[:-1]] == [2, 2]
    assert DatasetIndex(made[-1]).version == 2
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with fastshard.open(old) as ds:
            assert len(ds) == 12
            assert ds["103"].key == "103"
    stamps = [os.stat(path).st_ino for path in made[:-1]]
    assert [os.stat(p).st_ino for p in fastshard.build_index(old)[:-1]] == stamps


def test_the_command_renews_version_1(old):
    from fastshard.cli import main

    assert main(["index", str(old)]) == 0
    assert read_header(str(old / "t-1.fsi")).version == 2
