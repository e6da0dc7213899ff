"""Binary indexes that are damaged, hostile, or modified while in use."""

import os
import random
import re
import struct
import threading
import warnings
from contextlib import suppress

import pytest

import fastshard
from fastshard.dataset.verify import verify_shard
from fastshard.index.binary import HEADER as FSI_HEADER
from fastshard.index.dataset_file import HEADER as DATASET_HEADER
from fastshard.index.dataset_file import DatasetIndex
from support.index.binary import (
    MEMBERS,
    iterate_damaged,
    use_shard,
    with_right_checksums,
)
from support.marks import thin
from support.tars import write_tar


@pytest.fixture
def tar(tmp_path):
    path = write_tar(tmp_path / "t.tar", MEMBERS)
    with fastshard.open_shard(path) as shard:
        shard.save_index(hashes=True)
    return path


@pytest.mark.filterwarnings("ignore::fastshard.StaleIndexWarning")
def test_a_damaged_index_reads_nothing_outside_the_shard(tar):
    index = tar.with_suffix(".fsi")
    raw = index.read_bytes()
    for changed in iterate_damaged(raw, FSI_HEADER, 1, 2000):
        index.write_bytes(changed)
        use_shard(tar)


@pytest.mark.filterwarnings("ignore::fastshard.StaleIndexWarning")
def test_verify_finds_every_flipped_byte(tar):
    index = tar.with_suffix(".fsi")
    raw = index.read_bytes()
    assert verify_shard(tar)[1] == []
    for i in thin(range(len(raw)), 3):
        changed = raw[:i] + bytes([raw[i] ^ 0x10]) + raw[i + 1 :]
        index.write_bytes(changed)
        _, faults = verify_shard(tar)
        assert faults, i
        assert all(str(index) in fault.path for fault in faults)


def test_absurd_counts_allocate_nothing(tmp_path, tar):
    index = tar.with_suffix(".fsi")
    raw = index.read_bytes()
    for at in range(16, 104, 8):
        for value in (2**32, 2**40, 2**61, 2**64 - 1):
            changed = raw[:at] + struct.pack("<Q", value) + raw[at + 8 :]
            index.write_bytes(with_right_checksums(changed, FSI_HEADER))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", fastshard.StaleIndexWarning)
                use_shard(tar)


def test_a_broken_named_index_raises(tar, tmp_path):
    index = tmp_path / "x.fsi"
    raw = tar.with_suffix(".fsi").read_bytes()
    for changed in (b"", raw[:100], raw[:-1], raw + b"x", b"x" + raw[1:]):
        index.write_bytes(changed)
        with pytest.raises(fastshard.FormatError) as caught:
            fastshard.open_shard(tar, index=index)
        assert caught.value.path == str(index)
    index.write_bytes(raw[:8] + b"\x03" + raw[9:])
    with pytest.raises(fastshard.FormatError, match="version 3"):
        fastshard.open_shard(tar, index=index)


@pytest.mark.parametrize("kind", ["shard", "dataset"])
def test_the_expected_size_of_an_index_is_another_one(tmp_path, kind):
    tar = write_tar(tmp_path / "t.tar", MEMBERS)
    fastshard.build_index(tmp_path)
    header = FSI_HEADER if kind == "shard" else DATASET_HEADER
    path = tmp_path / ("t.fsi" if kind == "shard" else "dataset.fsi")
    raw = path.read_bytes()
    sizes = []
    for at in range(16, 96, 8):
        (value,) = struct.unpack_from("<Q", raw, at)
        changed = raw[:at] + struct.pack("<Q", (value + 9) % 2**64) + raw[at + 8 :]
        path.write_bytes(with_right_checksums(changed, header))
        try:
            if kind == "shard":
                fastshard.open_shard(tar, index=path)
            else:
                DatasetIndex(str(path))
        except fastshard.FormatError as error:
            sizes += re.findall(r"expected (\S+) bytes .*, got (\S+)", error.reason)
    assert len(sizes) > 2
    assert all(expected != found for expected, found in sizes)


def test_a_broken_index_is_ignored_with_a_warning(tar):
    index = tar.with_suffix(".fsi")
    index.write_bytes(index.read_bytes()[:-1])
    with pytest.warns(fastshard.StaleIndexWarning, match="broken index"):
        shard = fastshard.open_shard(tar)
    assert shard.index is None
    assert list(shard.names) == list(MEMBERS)


def test_an_index_that_is_not_a_file_is_ignored(tmp_path):
    path = write_tar(tmp_path / "t.tar", MEMBERS)
    (tmp_path / "t.fsi").mkdir()
    os.mkfifo(tmp_path / "t.json")
    with pytest.warns(fastshard.StaleIndexWarning):
        assert len(fastshard.open_shard(path)) == len(MEMBERS)


def use_while_it_changes(shard):
    for i in range(len(shard)):
        with suppress(fastshard.FormatError):
            bytes(shard[i])
        shard.names[i]
        "a.jpg" in shard  # noqa: B015
    for i in range(len(shard.samples)):
        try:
            sample = shard.samples[i]
            [sample[field] for field in sample]
        except (fastshard.FormatError, fastshard.FieldNotFoundError):
            pass
    "a" in shard.samples  # noqa: B015
    shard.samples.grouping.field_counts()


def test_an_index_may_change_while_it_is_mapped(tar):
    """Writing into a mapped index gives wrong names or errors, and no crash."""
    index = tar.with_suffix(".fsi")
    raw = index.read_bytes()
    stop = threading.Event()

    def scribble():
        numbers = random.Random(5)
        with open(index, "r+b", buffering=0) as file:
            while not stop.is_set():
                at = numbers.randrange(FSI_HEADER.size, len(raw) - 8)
                file.seek(at)
                file.write(numbers.randbytes(8))
                if numbers.random() < 0.3:
                    file.seek(FSI_HEADER.size)
                    file.write(raw[FSI_HEADER.size :])

    writer = threading.Thread(target=scribble)
    shard = fastshard.open_shard(tar)
    assert shard.index is not None
    list(shard.names), shard.offsets, shard.samples.grouping.field_counts()  # checked
    writer.start()
    try:
        for _ in range(300):
            opened = [shard]
            with suppress(fastshard.FormatError):  # the sums are overwritten
                opened.append(fastshard.open_shard(tar, index=index))
            for one in opened:
                with suppress(fastshard.FormatError):
                    use_while_it_changes(one)
    finally:
        stop.set()
        writer.join()


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    for shard in range(3):
        members = {f"{shard}{k}.txt": b"1" for k in "abc"}
        write_tar(folder / f"t-{shard}.tar", members)
    fastshard.build_index(folder)
    return folder


@pytest.mark.filterwarnings("ignore::fastshard.StaleIndexWarning")
def test_a_damaged_dataset_index_gives_right_samples_or_errors(folder):
    index = folder / "dataset.fsi"
    raw = index.read_bytes()
    keys = [f"{shard}{k}" for shard in range(3) for k in "abc"]
    for changed in thin([*iterate_damaged(raw, DATASET_HEADER, 2, 1000)], 4):
        index.write_bytes(changed)
        ds = fastshard.open(folder)
        try:
            count = len(ds)
            for i in range(min(count, 20)):
                assert ds[i].key == keys[i]
            for key in (keys[0], keys[-1], "none"):
                if key in ds:
                    assert ds[key].key == key
        except (fastshard.FormatError, fastshard.AmbiguousKeyError):
            pass


def test_verify_finds_every_flipped_byte_of_a_dataset_index(folder):
    index = folder / "dataset.fsi"
    raw = index.read_bytes()
    from fastshard.dataset.verify import verify_dataset_index

    paths = [str(path) for path in sorted(folder.glob("*.tar"))]
    assert verify_dataset_index(str(index), paths) == []
    for i in thin(range(len(raw)), 3):
        index.write_bytes(raw[:i] + bytes([raw[i] ^ 0x04]) + raw[i + 1 :])
        faults = verify_dataset_index(str(index), paths)
        assert faults, i


@pytest.mark.parametrize("name", ["../t-0.tar", "/etc/passwd", "a/../../b.tar", ""])
def test_a_dataset_index_names_nothing_outside_its_directory(folder, name):
    from fastshard.index.dataset_file import ShardRecord, write_dataset_index

    facts = DatasetIndex(str(folder / "dataset.fsi")).shards[0]
    facts = ShardRecord(name, *facts[1:])
    write_dataset_index(
        folder / "dataset.fsi", [facts], last_dot=False, seed=bytes(16), rows=None
    )
    with pytest.raises(fastshard.FormatError, match="not below"):
        DatasetIndex(str(folder / "dataset.fsi"))
