"""Files that change while they are read: each case in a process of its own.

Replaced, renamed, deleted and appended shards keep their old bytes. A file that was
truncated or overwritten gives an error with ``mode="pread"``; a mapped one gives an
error if the kernel can be asked before the read. No signal may end the process.
"""

import os

import pytest

import fastshard
from support.memory import evict
from support.servers.forks import run_forked
from support.tars import write_tar

IMPORTS = "shutil", "tarfile", "numpy", "fastshard.dataset.open"
SIZE, COUNT = 50_000, 40


def payload(i):
    return bytes([i % 251 + 1]) * SIZE


@pytest.fixture
def path(tmp_path):
    members = {f"{i:03d}.bin": payload(i) for i in range(COUNT)}
    data = write_tar(tmp_path / "changing.tar", members).read_bytes()
    path = tmp_path / "changing.tar"
    # By pages: a large folio of the page cache would reach beyond a truncation.
    with path.open("wb", buffering=0) as file:
        for at in range(0, len(data), 4096):
            file.write(data[at : at + 4096])
    fastshard.build_index(path)
    return path


SETUP = """
import os, shutil, sys, tarfile, io, time
import fastshard
path, mode = sys.argv[1], sys.argv[2]
SIZE, COUNT = 50_000, 40
def payload(i): return bytes([i % 251 + 1]) * SIZE
def expect_old(ds):
    assert [bytes(s["bin"]) for s in ds] == [payload(i) for i in range(COUNT)]
    assert [bytes(s["bin"]) for s in ds.get_many(range(COUNT))] == [
        payload(i) for i in range(COUNT)]
    assert bytes(ds[COUNT - 1]["bin"]) == payload(COUNT - 1)
    out = bytearray(COUNT * SIZE)
    ds.read_into(range(COUNT), out)
    assert out == b"".join(map(payload, range(COUNT)))
def expect_error(read):
    try:
        read()
    except (fastshard.FormatError, OSError) as error:
        assert "changing.tar" in str(error), error
        assert "bin" in str(error), error
        print(type(error).__name__, error)
    else:
        raise SystemExit("no error")
def reads(ds, i):
    yield lambda: ds[i]["bin"]
    yield lambda: bytes(ds[i]["bin"])
    yield lambda: [bytes(s["bin"]) for s in ds]
    yield lambda: [bytes(s["bin"]) for s in ds.iter(order=[0, i, 1])]
    yield lambda: [bytes(s["bin"]) for s in ds.get_many([0, i])]
    yield lambda: ds.read_into([0, i], bytearray(2 * SIZE))
    yield lambda: ds.columns([0, i], "bin")
    yield lambda: [bytes(view) for view in ds.shards[0].scan()]
    yield lambda: ds.shards[0].read(i)
    yield lambda: ds.shards[0].read_into([i], bytearray(SIZE))
ds = fastshard.open(path, mode=mode, **eval(sys.argv[3]))
assert len(ds) == COUNT and ds.shards[0] is not None
"""


def run(path, mode, code, **options):
    folder = path.parent / "process"
    folder.mkdir()
    words = path, mode, repr(options)
    done = run_forked(folder, SETUP + code, *words, imports=IMPORTS, timeout=120)
    assert done.returncode == 0, (done.returncode, done.stdout + done.stderr)
    return done.stdout


MODES = pytest.mark.parametrize("mode", ["mmap", "private", "pread"])
WARMTH = pytest.mark.parametrize("is_cold", [True, False])


@MODES
@WARMTH
@pytest.mark.parametrize(
    "change",
    [
        "os.unlink(path)",
        "os.rename(path, path + '.old')",
        "os.rename(path, path + '.old'); open(path, 'wb').write(bytes(9999))",
        "new = path + '.new'; open(new, 'wb').write(b'x'); os.replace(new, path)",
        "os.chmod(path, 0o600); os.link(path, path + '.link')",
    ],
)
def test_a_replaced_or_moved_shard_keeps_its_old_bytes(path, mode, is_cold, change):
    if is_cold:
        evict(path)
    run(path, mode, f"{change}\nexpect_old(ds)")


@MODES
@WARMTH
def test_an_appended_shard_keeps_its_old_members(path, mode, is_cold):
    if is_cold:
        evict(path)
    code = (
        "for k in range(2):\n"
        "    with tarfile.open(path, 'a') as tar:\n"
        "        member = tarfile.TarInfo(f'new{k}.bin'); member.size = 9999\n"
        "        tar.addfile(member, io.BytesIO(b'n' * 9999))\n"
        "    expect_old(ds)\n"
    )
    run(path, mode, code)


@WARMTH
@pytest.mark.parametrize("touched_before", [True, False])
@pytest.mark.parametrize(
    "change",
    [
        "os.truncate(path, 60_000)",
        "os.truncate(path, 0)",
        "size = os.path.getsize(path); os.truncate(path, 0); os.truncate(path, size)",
        "open(path, 'r+b').write(b'over' * 400_000)",
        "f = open(path, 'r+b'); f.seek(1_500_000); f.write(b'over' * 4); f.close()",
        "open(path, 'wb').write(b'n' * 9_000_000)",
        "time.sleep(0.01); shutil.copyfile(path, path + '.2'); os.truncate(path, 0); "
        "shutil.copyfile(path + '.2', path)",
    ],
)
def test_pread_detects_every_write(path, is_cold, touched_before, change):
    if is_cold:
        evict(path)
    code = (
        f"if {touched_before}: expect_old(ds)\n"
        f"{change}\n"
        "for read in reads(ds, 30): expect_error(read)\n"
    )
    out = run(path, "pread", code)
    assert out.count("FormatError") == 10


@pytest.mark.parametrize("mode", ["mmap", "private"])
@pytest.mark.parametrize("size", [0, 60_000, 1_000_000])
def test_a_truncated_mapped_file_gives_errors(path, mode, size):
    """No page is in memory yet, so the library asks the kernel before a read."""
    out = run(
        path,
        mode,
        f"os.truncate(path, {size})\nfor read in reads(ds, 30): expect_error(read)\n",
    )
    assert out.count("FormatError") == 10
    assert out.count("was truncated") == 10


@pytest.mark.parametrize("mode", ["mmap", "private"])
def test_check_size_detects_a_truncation_at_every_read(path, mode):
    code = (
        "expect_old(ds)\nos.truncate(path, 60_000)\n"
        "for read in reads(ds, 30): expect_error(read)\n"
    )
    out = run(path, mode, code, check_size=True)
    assert out.count("was truncated") == 10


@pytest.mark.parametrize("mode", ["mmap", "private"])
def test_copies_from_a_truncated_file_are_errors_even_if_it_was_in_memory(path, mode):
    code = (
        "expect_old(ds)\ntime.sleep(0.05)\nos.truncate(path, 60_000)\n"
        "expect_error(lambda: ds.read_into([30], bytearray(SIZE)))\n"
        "expect_error(lambda: ds.shards[0].read(30))\n"
        "expect_error(lambda: ds.shards[0].read_into([30], bytearray(SIZE)))\n"
    )
    assert run(path, mode, code).count("was truncated") == 3


def test_a_truncation_during_a_scan_is_an_error(path):
    """The thread prefetches truncated pages; views of earlier ones stay valid."""
    evict(path)
    code = (  # cut where folios of the page cache end, also those of readahead
        "iteration = ds.iter(window=2)\n"
        "first = next(iteration)['bin']\n"
        "os.truncate(path, 1 << 20)\n"
        "def rest():\n"
        "    for sample in iteration: sample['bin'][0]\n"
        "iteration = ds.iter(order=list(range(COUNT)), window=2)\n"
        "expect_error(rest)\n"
        "assert bytes(first) == payload(0)\n"
    )
    assert "byte" in run(path, "mmap", code)


def test_a_truncation_before_opening_is_detected_by_the_index(path):
    os.truncate(path, 60_000)
    with (
        pytest.warns(fastshard.StaleIndexWarning),
        pytest.raises(fastshard.FormatError),
    ):
        fastshard.open_shard(path)


def test_errors_of_scans_can_be_skipped(path):
    code = (
        "os.truncate(path, 1_000_000)\n"
        "iteration = ds.iter(on_error='skip')\n"
        "n = 0\n"
        "for sample in iteration:\n"
        "    try: n += len(bytes(sample['bin'])) == SIZE\n"
        "    except fastshard.FormatError: n -= 1000\n"
        "print(n, iteration.skipped)\n"
    )
    found, skipped = map(int, run(path, "mmap", code).split())
    assert found >= 15
    assert found + skipped == COUNT


def test_a_changed_mtime_counts_as_a_write(path):
    code = "os.utime(path)\nfor read in reads(ds, 1): expect_error(read)\n"
    assert "written to after it was opened" in run(path, "pread", code)
