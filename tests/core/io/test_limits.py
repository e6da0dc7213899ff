"""Many shards, large and sparse files, tmpfs and other mounts."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import fastshard
from support.memory import evict
from support.processes import run_on_mount
from support.tars import write_tar

SHARDS = 20_000


def run(code, *arguments, before=()):
    done = subprocess.run(
        [*before, sys.executable, "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_more_shards_than_descriptors_are_read(tmp_path):
    """20,000 shards with 1,024 descriptors; the files are links to a sources."""
    sources = [
        write_tar(tmp_path / f"source-{k}", {f"{k}.x": b"%d" % k * 600})
        for k in range(10)
    ]
    folder = tmp_path / "many"
    folder.mkdir()
    for k in range(SHARDS):
        os.link(sources[k % 10], folder / f"{k:05d}.tar")
    evict(*sources)
    code = (
        "import random, resource, sys, fastshard\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))\n"
        "ds = fastshard.open(sys.argv[1], index='none')\n"
        "n = 0\n"
        "for k, sample in enumerate(ds):\n"
        "    assert sample['x'] == b'%d' % (k % 10) * 600\n"
        "assert k == 19_999\n"
        "order = random.Random(0).choices(range(len(ds)), k=3000)\n"
        "for i, sample in zip(order, ds.iter(order=order), strict=True):\n"
        "    assert sample['x'] == b'%d' % (i % 10) * 600\n"
        "for i, sample in zip(order, ds.get_many(order), strict=True):\n"
        "    assert sample['x'] == b'%d' % (i % 10) * 600\n"
        "limit = int(open('/proc/sys/vm/max_map_count').read())\n"
        "assert sum(1 for _ in open('/proc/self/maps')) < limit / 2\n"
    )
    run(code, folder)


def test_a_sparse_file_of_more_than_4_gib_is_read(tmp_path):
    small = write_tar(tmp_path / "small.tar", {"a.x": b"", "b.y": b"second"}, form=1)
    first, second = small.read_bytes()[:512], small.read_bytes()[512:1536]
    path = tmp_path / "sparse.tar"
    size = (5 << 30) + 123
    header = bytearray(first)
    header[124:136] = b"\x80" + size.to_bytes(11, "big")
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    at = 512 + -(-size // 512) * 512
    with open(path, "wb") as file:
        file.write(header)
        file.seek(512 + size - 4)
        file.write(b"tail")
        file.seek(at)
        file.write(second + bytes(1024))
    for mode in ("mmap", "pread"):
        with fastshard.open_shard(path, mode=mode) as shard:
            assert shard.sizes.tolist() == [size, 6]
            out = bytearray(6)
            assert shard.read_into([1], out).tolist() == [0, 6]
            assert out == b"second"
            if mode == "mmap":
                views = list(shard.scan([1, 0, 1]))
                assert (views[0], len(views[1]), views[1][-4:]) == (
                    b"second",
                    size,
                    b"tail",
                )
                with pytest.raises(ValueError, match="do not fit"):
                    shard.read_into([0], out)


READS = (
    "import os, sys, fastshard\n"
    "data = {f'{i:03d}.x': bytes([i]) * (i * 999) for i in range(60)}\n"
    "bounded = {'max_memory': '1MB', 'keep_cache': False}\n"
    "for options in ({}, {'mode': 'pread'}, bounded):\n"
    "    ds = fastshard.open(sys.argv[1], **options)\n"
    "    for turn in range(2):\n"
    "        assert [bytes(s['x']) for s in ds] == list(data.values())\n"
    "        order = [59, 3, 30]\n"
    "        assert [bytes(s['x']) for s in ds.iter(order=order)] == [\n"
    "            data[f'{i:03d}.x'] for i in order]\n"
    "        out = bytearray(92 * 999)\n"
    "        ds.read_into(order, out)\n"
    "        assert out == b''.join(data[f'{i:03d}.x'] for i in order)\n"
    "print('all right')\n"
)


def write_shard(folder):
    data = {f"{i:03d}.x": bytes([i]) * (i * 999) for i in range(60)}
    path = write_tar(folder / "s.tar", data)
    fastshard.build_index(folder)
    return path


def test_shards_on_tmpfs():
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        write_shard(Path(name))
        assert run(READS, name) == "all right\n"


@pytest.mark.parametrize("kind", ["overlay", "read-only"])
def test_shards_on_overlay_and_read_only_mounts(tmp_path, kind):
    folders = {name: tmp_path / name for name in ("lower", "upper", "work", "merged")}
    for folder in folders.values():
        folder.mkdir()
    evict(write_shard(folders["lower"]))
    options = ",".join(
        f"{name}dir={folders[name]}" for name in ("lower", "upper", "work")
    )
    mount = f"mount -t overlay overlay -o {options} {folders['merged']}"
    if kind == "read-only":
        lower, merged = folders["lower"], folders["merged"]
        mount = f"mount --bind {lower} {merged} && mount -o remount,ro,bind {merged}"
    script = tmp_path / "reads.py"
    script.write_text(READS)
    command = f"{sys.executable} {script} {folders['merged']}"
    done = run_on_mount(mount, command)
    assert (done.returncode, done.stdout) == (0, "all right\n"), done.stderr
