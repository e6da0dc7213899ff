"""Conversions and writers on a full disk: an OSError that names a path of it."""

from __future__ import annotations

import errno
import sys

import numpy as np
import pytest

import fastshard
from fastshard.conversion.publish import new_directory
from support.processes import run_on_mount

FULL = """
import errno, os, sys
from contextlib import suppress
import numpy as np
from numpy.typing import NDArray
import fastshard
from fastshard import typed
from fastshard.streaming import MDSWriter

source, disk = sys.argv[1:]

def check(write, *args, **options):
    try:
        write(*args, **options)
    except OSError as error:
        assert error.errno == errno.ENOSPC, error
        assert error.filename is not None, (args, options)
        assert os.fspath(error.filename).startswith(disk), error.filename
        assert disk in str(error)
    else:
        raise AssertionError((write, args, options))
    assert os.listdir(disk) in ([], ["kept"]), os.listdir(disk)

def write_rows():
    with MDSWriter(columns={"x": "bytes"}, out=disk + "/kept", exist_ok=True) as rows:
        for _ in range(200):
            rows.write({"x": os.urandom(10_000)})

@typed.packable
class Row:
    x: NDArray

def write_typed():
    samples = (Row(np.zeros(10_000, "u1")) for _ in range(200))
    typed.write_samples(samples, disk + "/a.tar")

for to in "tar", "mds", "json", "csv", "columnar", "packed":
    columns = {"txt": "str"} if to in ("json", "csv") else {"npy": None}
    for workers in 1, 2:
        out = disk + "/out"
        check(fastshard.convert, source, out, to=to, columns=columns, workers=workers)
check(fastshard.convert, source, disk + "/out", to="mds", compression="bz2", workers=1)
check(write_typed)
check(write_rows)

samples = [Row(np.random.default_rng(i).integers(0, 9, 9_000)) for i in range(50)]
ds = typed.write_samples(samples, source + "/../typed.tar")
with suppress(OSError), open(disk + "/kept/ballast", "wb") as ballast:
    while True:
        ballast.write(bytes(4096))
manifest = typed.ManifestBuilder(Row, "a")
for i in range(10_000):
    sample = samples[0]
    manifest.add_sample(key=f"{i}", offset=i, size=1, sample=sample)
check(typed.ManifestWriter(disk + "/a").write, manifest.build())
check(ds.to_parquet, disk + "/a.parquet")
"""


def test_a_full_disk_names_a_path(tmp_path):
    rng = np.random.default_rng(0)
    with fastshard.ShardWriter(tmp_path / "in/{}.tar", max_count=50) as writer:
        for i in range(200):
            array = rng.integers(0, 255, 20_000, dtype="u1")
            text = array[:10_000].tobytes().hex()
            writer.write({"__key__": f"{i}", "npy": array, "txt": text})
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = f"mount -t tmpfs -o size=1m tmpfs {disk}"
    script = tmp_path / "full.py"
    script.write_text(FULL)
    command = f"{sys.executable} {script} {tmp_path / 'in'} {disk}"
    done = run_on_mount(mount, command, 240)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_an_error_of_a_full_disk_without_a_name_gets_that_of_the_output(tmp_path, code):
    with (
        pytest.raises(OSError, match="out'") as caught,
        new_directory(tmp_path / "out"),
    ):
        raise OSError(code, "full")
    assert caught.value.filename == str(tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_other_errors_keep_their_names(tmp_path):
    with (
        pytest.raises(OSError, match="gone") as caught,
        new_directory(tmp_path / "out"),
    ):
        raise OSError(errno.ENOSPC, "gone", "a path")
    assert caught.value.filename == "a path"
    with (
        pytest.raises(OSError, match="broken") as caught,
        new_directory(tmp_path / "o"),
    ):
        raise OSError(errno.EIO, "broken")
    assert caught.value.filename is None
