"""Progress and interrupts within one large shard, in child processes."""

import fcntl
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
import threading
import time

import pytest

import fastshard
from fastshard._core.io.source import LocalFile
from fastshard.index.checksums import compute_hashes
from support.marks import not_sanitized, slow
from support.tar_blocks import END, extension, header, padded, record
from support.tars import write_tar

MEMBERS = 12_000
LONGEST = 5.0  # CPU seconds of interrupted work; all of it takes far longer


@pytest.fixture(scope="module")
def slow_to_scan(tmp_path_factory):
    """Return a sparse tar of 12 GiB, almost all of it headers of 1 MiB each."""
    path = tmp_path_factory.mktemp("large") / "scan.tar"
    one = extension(b"x", record(b"comment", b"c") + bytes((1 << 20) - 14))
    assert len(one) == 512 + (1 << 20)
    with open(path, "wb") as file:
        for i in range(MEMBERS):
            at = i * (len(one) + 512)
            file.seek(at)
            file.write(one[:1024])
            file.seek(at + len(one))
            file.write(header(b"%06d.x" % i, size=b""))
        file.write(END)
    return path


@pytest.fixture(scope="module")
def slow_to_hash(tmp_path_factory):
    """Return a sparse tar with one member of 40 GiB."""
    path = tmp_path_factory.mktemp("large") / "hash.tar"
    size = 40 << 30
    with open(path, "wb") as file:
        file.write(header(b"a.x", size=b"\x80" + size.to_bytes(11, "big")))
        file.seek(512 + size)
        file.write(END)
    return path


BUILD = """
import sys, fastshard
print("ready", flush=True)
try:
    fastshard.build_index(sys.argv[1], hashes=sys.argv[2:] == ["--hash"])
except KeyboardInterrupt:
    sys.exit(130)
"""

OPEN = """
import sys, fastshard
print("ready", flush=True)
try:
    fastshard.open_shard(sys.argv[1], index="none")
except KeyboardInterrupt:
    sys.exit(130)
"""

COMMAND = """
import sys
from fastshard.cli import main
print("ready", flush=True)
sys.exit(main(["index", *sys.argv[1:]]))
"""


WORK = {
    "build": (BUILD, "scan", []),
    "build, hashes": (BUILD, "hash", ["--hash"]),
    "open": (OPEN, "scan", []),
    "command": (COMMAND, "scan", []),
    "command, hashes": (COMMAND, "hash", ["--hash"]),
    "command, tar.idx": (COMMAND, "scan", ["--format", "tar.idx"]),
}
QUICK = "build", "open", "command, hashes"  # of which each has another loop


def cpu_of_children():
    """Return the CPU seconds of the children that ended."""
    times = os.times()
    return times.children_user + times.children_system


@not_sanitized
@pytest.mark.parametrize(
    "work",
    [work if work in QUICK else pytest.param(work, marks=slow) for work in WORK],
)
def test_an_interrupt_ends_work_within_a_shard(slow_to_scan, slow_to_hash, work):
    code, slow, arguments = WORK[work]
    path = slow_to_hash if slow == "hash" else slow_to_scan
    files = set(os.listdir(path.parent))
    child = subprocess.Popen(
        [sys.executable, "-c", code, path, *arguments], stdout=subprocess.PIPE
    )
    with child:
        assert child.stdout.readline() == b"ready\n"
        time.sleep(0.5)
        assert child.poll() is None
        before = cpu_of_children()
        child.send_signal(signal.SIGINT)
        assert child.wait(60) == 130
    assert cpu_of_children() - before < LONGEST
    assert set(os.listdir(path.parent)) == files


@not_sanitized
def test_progress_counts_bytes_within_a_shard(slow_to_hash):
    controller, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("4H", 24, 120, 0, 0))
    child = subprocess.Popen(
        [sys.executable, "-c", COMMAND, slow_to_hash, "--hash"],
        stdout=subprocess.DEVNULL,
        stderr=terminal,
    )
    os.close(terminal)
    output = b""
    with child, os.fdopen(controller, "rb", 0) as screen:
        reader = threading.Timer(30, child.send_signal, [signal.SIGINT])
        reader.start()
        try:
            while output.count(b"B/s") < 5:
                output += screen.read(4096)
        finally:
            reader.cancel()
            child.send_signal(signal.SIGINT)
        child.wait(60)
    assert b"indexing" in output
    assert b"/42.9G" in output


def test_hashing_reports_its_progress(tmp_path):
    path = write_tar(
        tmp_path / "s.tar", {"a.x": bytes(3 << 20), "b.x": b"", "c.x": b"c"}
    )
    shard = fastshard.open_shard(path)
    seen = []
    shard.save_index(hashes=True, progress=seen.append)
    assert seen == sorted(seen)
    assert len(seen) > 6
    assert path.stat().st_size // 2 < seen[-1] <= path.stat().st_size

    def stop_after_a_mebibyte(done):
        if done > 1 << 20:
            raise KeyError("stopped")

    with LocalFile(str(path)) as file, pytest.raises(KeyError, match="stopped"):
        compute_hashes(file, shard.parts()[1], stop_after_a_mebibyte)


def test_a_broken_shard_stops_work_on_the_others(tmp_path, slow_to_scan):
    (tmp_path / "0.tar").write_bytes(b"junk" * 1000)
    os.link(slow_to_scan, tmp_path / "1.tar")
    started = time.process_time()
    with pytest.raises(fastshard.FormatError, match=r"0\.tar"):
        fastshard.build_index(tmp_path, threads=2)
    assert time.process_time() - started < LONGEST
    assert sorted(os.listdir(tmp_path)) == ["0.tar", "1.tar"]


def test_every_shard_gets_an_index(tmp_path):
    for i in range(40):
        write_tar(tmp_path / f"{i}.tar", {f"{i}.x": padded(b"x")})
    made = fastshard.build_index(tmp_path, threads=3)
    assert [os.path.basename(path) for path in made] == [
        *(f"{i}.fsi" for i in range(40)),
        "dataset.fsi",
    ]
    assert fastshard.build_index(tmp_path) == made
