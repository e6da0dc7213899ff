"""Raw files of compressed shards: made once, whole, and in their directory."""

import errno
import hashlib
import os
import signal
import stat
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from fastshard._util.processes import locks
from fastshard.codecs import raw_files
from fastshard.codecs.compression import parse_compression
from fastshard.codecs.raw_files import locate, open_raw
from fastshard.errors import FormatError, MissingLibraryError
from support.inside.files import replace_lock
from support.inside.streaming import (
    check_pieces,
    replace_check_pieces,
    replace_write_all,
)

pytest.importorskip("cramjam")

DATA = bytes(range(256)) * 4_000  # 1 MB


class Info(NamedTuple):
    basename: str
    bytes: int
    hashes: dict[str, str]


def describe(name, data, **hashes):
    found = {algo: hashlib.new(algo, data).hexdigest() for algo in ("sha1", "md5")}
    return Info(name, len(data), found | hashes)


class Shard:
    """A compressed shard in a directory of its own."""

    def __init__(self, folder, data=DATA, compression="gz:1", name="shard.00000.mds"):
        self.folder, self.compression = folder, compression
        codec = parse_compression(compression)
        packed = codec.compress(data)
        self.path = folder / name
        self.zip_path = folder / f"{name}.{codec.extension}"
        self.zip_path.parent.mkdir(parents=True, exist_ok=True)
        self.zip_path.write_bytes(packed)
        self.raw = describe(name, data)
        self.zip = describe(f"{name}.{codec.extension}", packed)

    def open(self, **options):
        return open_raw(
            str(self.folder), self.raw, self.zip, self.compression, **options
        )

    def names(self):
        return sorted(os.listdir(self.path.parent))


@pytest.fixture
def shard(tmp_path):
    return Shard(tmp_path / "data")


@pytest.fixture
def decompressions(monkeypatch):
    """Count decompressions of this process."""
    made = []
    parse = raw_files.parse_compression

    def counted(name, path=None):
        codec = parse(name, path)

        class Counted:
            def iter_pieces(self, *args):
                made.append(args[-1])
                return codec.iter_pieces(*args)

        return Counted()

    monkeypatch.setattr(raw_files, "parse_compression", counted)
    return made


@pytest.fixture
def unwritable(monkeypatch):
    """Make folders fail as read-only file systems do; root may write elsewhere."""
    folders = []
    unpatched = os.open

    def guarded(path, flags, *args, **options):
        if flags & os.O_CREAT and os.path.dirname(path) in folders:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)
        return unpatched(path, flags, *args, **options)

    monkeypatch.setattr(os, "open", guarded)
    return lambda folder: folders.append(str(folder))


@pytest.mark.parametrize("compression", ["br:3", "bz2", "gz", "snappy", "zstd"])
def test_the_raw_file_is_written_beside_the_compressed_one(tmp_path, compression):
    shard = Shard(tmp_path / "data", compression=compression)
    assert shard.open() == str(shard.path)
    assert shard.path.read_bytes() == DATA
    assert shard.names() == [shard.path.name, shard.zip_path.name]


def test_names_may_have_folders(tmp_path):
    shard = Shard(tmp_path, name="a/b/shard.00000.mds")
    assert shard.open() == str(shard.path)
    assert shard.path.read_bytes() == DATA


def test_the_raw_file_has_the_permissions_of_new_files(shard):
    expected = shard.folder / "new"
    expected.touch()
    shard.open()
    assert stat.S_IMODE(shard.path.stat().st_mode) == stat.S_IMODE(
        expected.stat().st_mode
    )


def test_a_raw_file_that_exists_is_used(shard, decompressions):
    shard.open()
    before = shard.path.stat()
    assert shard.open() == str(shard.path)
    shard.zip_path.unlink()
    assert shard.open() == str(shard.path)
    assert shard.path.stat().st_mtime_ns == before.st_mtime_ns
    assert len(decompressions) == 1


@pytest.mark.parametrize("has_zip", [False, True])
def test_a_shard_without_files_is_not_found(shard, has_zip):
    shard.zip_path.unlink()
    with pytest.raises(FileNotFoundError) as info:
        open_raw(str(shard.folder), shard.raw, shard.zip if has_zip else None, "gz")
    assert info.value.filename == str(shard.path)
    assert shard.names() == []


@pytest.mark.parametrize("compression", [None, ""])
def test_without_a_compression_nothing_is_decompressed(shard, compression):
    with pytest.raises(FileNotFoundError):
        open_raw(str(shard.folder), shard.raw, shard.zip, compression)


# Damage.


def assert_refused(shard, *reasons, **options):
    with pytest.raises(FormatError, match="|".join(reasons)) as info:
        shard.open(**options)
    assert shard.path.name not in shard.names()
    assert not [name for name in shard.names() if name.endswith(".tmp")]
    return info.value


def test_a_compressed_file_of_another_size_is_refused(shard):
    os.truncate(shard.zip_path, shard.zip.bytes - 1)
    error = assert_refused(shard, "the index states")
    assert (error.path, error.offset) == (str(shard.zip_path), shard.zip.bytes - 1)


def test_a_damaged_compressed_file_is_refused(shard):
    packed = bytearray(shard.zip_path.read_bytes())
    packed[len(packed) // 2] ^= 255
    shard.zip_path.write_bytes(packed)
    assert assert_refused(shard, "gz: ").path == str(shard.zip_path)


@pytest.mark.parametrize("change", [-1, 1, -len(DATA), 1 << 30])
def test_a_raw_size_that_is_wrong_is_refused(shard, change):
    shard.raw = shard.raw._replace(bytes=len(DATA) + change)
    assert_refused(shard, "more than the", "the index states")


def test_a_bomb_fills_no_disk(tmp_path, monkeypatch):
    shard = Shard(tmp_path / "data", bytes(30_000_000))
    shard.raw = shard.raw._replace(bytes=1000)
    written = []
    replace_write_all(monkeypatch, lambda fd, data: written.append(data))
    assert_refused(shard, "more than the 1,000 bytes")
    assert sum(map(len, written)) <= 1000


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../x", "a/../../x", "/etc/passwd", "a/..", "a/", "a\0b"]
)
def test_names_that_leave_the_directory_are_refused(shard, name):
    for one in ("raw", "zip"):
        shard.raw, shard.zip = describe("shard", DATA), describe("shard.gz", b"")
        setattr(shard, one, getattr(shard, one)._replace(basename=name))
        with pytest.raises(FormatError, match="leaves the directory"):
            shard.open()


def test_names_below_the_directory_are_taken():
    for name in ("a", "a/b", "..a", "a..b/c..", "./a"):
        assert locate("data", name) == f"data/{name}"


def test_links_are_not_written_through(shard, tmp_path):
    """A link at the file's name or its temporary name does not redirect the write."""
    outside = tmp_path / "outside"
    shard.path.symlink_to(outside)
    (shard.folder / f".{shard.path.name}.tmp").symlink_to(outside)
    shard.open()
    assert not outside.exists()
    assert not shard.path.is_symlink()
    assert shard.path.read_bytes() == DATA


# Hashes.


def test_hashes_are_checked_before_and_after(shard, decompressions):
    assert shard.open(validate_hash="sha1") == str(shard.path)
    assert shard.open(validate_hash="md5") == str(shard.path)
    assert len(decompressions) == 1


def test_a_compressed_file_of_another_hash_is_not_decompressed(shard, decompressions):
    shard.zip = shard.zip._replace(hashes={"sha1": "0" * 40})
    error = assert_refused(
        shard, "sha1 is .*the index states 0000", validate_hash="sha1"
    )
    assert error.path == str(shard.zip_path)
    assert decompressions == []


def test_a_raw_file_of_another_hash_does_not_appear(shard):
    shard.raw = shard.raw._replace(hashes={"md5": "0" * 32})
    assert_refused(shard, "md5 is .*the index states 0000", validate_hash="md5")


def test_a_local_raw_file_is_checked(shard):
    shard.open()
    with open(shard.path, "r+b") as file:
        file.write(b"x")
    assert shard.open() == str(shard.path)
    with pytest.raises(FormatError, match="sha1 is"):
        shard.open(validate_hash="sha1")


@pytest.mark.parametrize("is_there", [False, True])
def test_a_hash_that_the_index_lacks_is_an_error(shard, is_there):
    if is_there:
        shard.open()
    with pytest.raises(ValueError, match=r"no hash 'sha256' of .*: md5, sha1"):
        shard.open(validate_hash="sha256")
    with pytest.raises(ValueError, match="not a supported hash"):
        shard.open(validate_hash="crc32")
    assert shard.path.exists() == is_there


# Directories that cannot be written to.


def test_a_cache_holds_raw_files_of_other_directories(
    shard, tmp_path, unwritable, decompressions
):
    unwritable(shard.folder)
    cache = tmp_path / "not there" / "cache"
    found = shard.open(cache_dir=str(cache), validate_hash="sha1")
    assert os.path.dirname(found) == str(cache / "decompressed")
    assert Path(found).read_bytes() == DATA
    assert shard.open(cache_dir=str(cache), validate_hash="sha1") == found
    assert len(decompressions) == 1
    assert shard.names() == [shard.zip_path.name]


def test_a_cache_tells_versions_apart(shard, tmp_path, unwritable):
    unwritable(shard.folder)
    cache = str(tmp_path / "cache")
    old = shard.open(cache_dir=cache)
    again = Shard(shard.folder, DATA[::-1])
    os.utime(again.zip_path, ns=(0, 0))
    new = again.open(cache_dir=cache)
    assert new != old
    assert Path(new).read_bytes() == DATA[::-1]
    assert Path(old).read_bytes() == DATA


def test_memory_holds_indexes_that_cannot_be_written(shard, tmp_path, unwritable):
    unwritable(shard.folder)
    unwritable(tmp_path / "cache" / "decompressed")
    for options in ({}, {"cache_dir": str(tmp_path / "cache")}):
        found = shard.open(validate_hash="sha1", max_memory=len(DATA), **options)
        assert found == DATA
    assert shard.names() == [shard.zip_path.name]


def test_memory_is_limited(shard, unwritable, decompressions):
    unwritable(shard.folder)
    with pytest.raises(OSError, match=r"max_memory=1,023,999; pass cache_dir=") as info:
        shard.open(max_memory=len(DATA) - 1)
    assert (info.value.errno, info.value.filename) == (errno.EROFS, str(shard.path))
    assert decompressions == []


def test_data_in_memory_are_checked(shard, unwritable):
    unwritable(shard.folder)
    shard.raw = shard.raw._replace(hashes={"sha1": "0" * 40})
    with pytest.raises(FormatError, match="sha1 is"):
        shard.open(validate_hash="sha1")
    shard.raw = shard.raw._replace(bytes=len(DATA) + 1)
    with pytest.raises(FormatError, match="the index states"):
        shard.open()


def test_a_full_disk_does_not_fail_reading(shard, monkeypatch):
    def full(fd, data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    replace_write_all(monkeypatch, full)
    assert shard.open() == DATA
    assert shard.names() == [shard.zip_path.name]


@pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() == 0,
    reason="this user reads every file",
)
def test_a_directory_without_permission_is_not_written_to(shard):
    shard.folder.chmod(0o555)
    try:
        assert shard.open() == DATA
    finally:
        shard.folder.chmod(0o755)


def test_other_errors_are_passed_on(shard, monkeypatch):
    def broken(fd, data):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    replace_write_all(monkeypatch, broken)
    with pytest.raises(OSError, match="Input/output"):
        shard.open()
    assert shard.names() == [shard.zip_path.name]


def test_a_missing_library_is_named(tmp_path, monkeypatch):
    shard = Shard(tmp_path / "data", compression="snappy")
    monkeypatch.setitem(sys.modules, "cramjam", None)
    with pytest.raises(MissingLibraryError, match=r"fastshard\[mds\]"):
        shard.open()
    assert shard.names() == [shard.zip_path.name]


# Several threads and processes.


def test_threads_decompress_once(shard, monkeypatch):
    made = []

    def slow(*args):
        made.append(args)
        for piece in check_pieces(*args):
            time.sleep(0.01)
            yield piece

    replace_check_pieces(monkeypatch, slow)
    found = []
    threads = [
        threading.Thread(target=lambda: found.append(shard.open())) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [str(shard.path)] * 8
    assert len(made) == 1
    assert shard.path.read_bytes() == DATA
    assert shard.names() == [shard.path.name, shard.zip_path.name]


PROCESS = textwrap.dedent("""
    import hashlib, os, sys, threading, time
    from typing import NamedTuple
    import pytest
    from fastshard.codecs import raw_files
    from support.inside.streaming import check_pieces, replace_check_pieces

    class Info(NamedTuple):
        basename: str
        bytes: int
        hashes: dict

    folder, zip_bytes, raw_bytes, pause = sys.argv[1], *map(float, sys.argv[2:])

    def slow(*args):
        os.write(1, b"made\\n")
        for piece in check_pieces(*args):
            time.sleep(pause)
            yield piece

    replace_check_pieces(pytest.MonkeyPatch(), slow)
    raw = Info("shard.00000.mds", int(raw_bytes), {})
    packed = Info("shard.00000.mds.gz", int(zip_bytes), {})

    def work():
        path = raw_files.open_raw(folder, raw, packed, "gz")
        with open(path, "rb") as file:
            digest = hashlib.sha1(file.read()).hexdigest()
        os.write(1, digest.encode() + b"\\n")  # in one piece

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
""")


def start(shard, pause):
    args = [str(shard.folder), str(shard.zip.bytes), str(shard.raw.bytes), str(pause)]
    return subprocess.Popen(
        [sys.executable, "-c", PROCESS, *args],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )


def test_processes_decompress_once(shard):
    """Two processes of eight threads each."""
    processes = [start(shard, 0.1) for _ in range(2)]
    lines = []
    for process in processes:
        lines += process.communicate(timeout=60)[0].split()
        assert process.returncode == 0
    assert lines.count("made") == 1
    assert lines.count(shard.raw.hashes["sha1"]) == 16
    assert shard.names() == [shard.path.name, shard.zip_path.name]


def test_a_killed_process_leaves_no_shard(shard):
    temporary = shard.folder / f".{shard.path.name}.tmp"
    process = start(shard, 1)
    try:
        assert process.stdout.readline() == "made\n"
        for _ in range(1000):
            if temporary.exists() and temporary.stat().st_size:
                break
            time.sleep(0.01)
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    assert 0 < temporary.stat().st_size < len(DATA)
    assert not shard.path.exists()
    assert shard.open() == str(shard.path)
    assert shard.path.read_bytes() == DATA
    assert shard.names() == [shard.path.name, shard.zip_path.name]


def test_file_systems_without_locks(shard, monkeypatch):
    def unsupported(fd):
        raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))

    replace_lock(monkeypatch, unsupported)
    shard.open()
    assert shard.path.read_bytes() == DATA
    assert shard.names() == [shard.path.name, shard.zip_path.name]


def test_a_stuck_holder_is_not_waited_for(shard, monkeypatch):
    """As a child that was forked meanwhile, and outlives its killed parent."""
    monkeypatch.setattr(raw_files, "PATIENCE", 0.05)
    temporary = shard.folder / f".{shard.path.name}.tmp"
    with open(temporary, "wb") as file:
        assert locks.try_lock(file.fileno())
        shard.open()
        assert shard.path.read_bytes() == DATA
        assert temporary.stat().st_size == 0  # is the holder's


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes")
def test_a_pipe_in_the_place_of_the_temporary_file_is_left(shard):
    temporary = shard.folder / f".{shard.path.name}.tmp"
    os.mkfifo(temporary)
    shard.open()
    assert shard.path.read_bytes() == DATA
    assert stat.S_ISFIFO(temporary.stat().st_mode)


def test_a_failure_does_not_keep_others_out(shard):
    good = shard.raw
    shard.raw = good._replace(bytes=5)
    for _ in range(2):
        assert_refused(shard, "more than the 5 bytes")
    shard.raw = good
    shard.open()
    assert shard.path.read_bytes() == DATA
