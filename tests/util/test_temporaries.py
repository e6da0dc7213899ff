"""Temporary files and folders: those of dead processes are removed, no others."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import fastshard
from fastshard._util.files import AtomicFile
from fastshard._util.processes import locks
from fastshard._util.processes.temporaries import sweep, temporary_folder
from fastshard.streaming import MDSWriter
from support.inside.files import (
    before_each_hold,
    machine_tags,
    make_temporary_name,
    replace_lock,
)
from support.marks import not_sanitized
from support.processes import environment

pytestmark = [
    not_sanitized,  # tests Python code
    pytest.mark.skipif(sys.platform != "linux", reason="files stay there"),
]

SAMPLE = {"__key__": "a", "txt": "x"}


def names(folder):
    return sorted(os.listdir(folder))


def run_killed(folder, code):
    """Run code that leaves temporary files in a folder, and is killed."""
    code = f"import os, signal, sys\n{code}\nos.kill(os.getpid(), signal.SIGKILL)\n"
    command = [sys.executable, "-c", code, folder]
    done = subprocess.run(command, env=environment(), timeout=60)
    assert done.returncode == -signal.SIGKILL


def write_shard(folder):
    with fastshard.ShardWriter(folder / "b-{}.tar", index=None) as writer:
        writer.write(SAMPLE)


def write_mds(folder):
    with MDSWriter(out=str(folder), columns={"a": "int"}) as writer:
        writer.write({"a": 1})


def index_shards(folder):
    with fastshard.ShardWriter(folder.parent / "0.tar", index=None) as writer:
        writer.write(SAMPLE)
    os.rename(folder.parent / "0.tar", folder / "0.tar")
    fastshard.build_index(folder)


@pytest.mark.parametrize("write", [write_shard, write_mds, index_shards])
def test_the_next_writer_removes_leftovers_of_a_killed_one(tmp_path, write):
    folder = tmp_path / "data"
    folder.mkdir()
    run_killed(
        folder,
        "import fastshard\n"
        "writer = fastshard.ShardWriter(sys.argv[1] + '/a-{}.tar')\n"
        "writer.write({'__key__': 'a', 'txt': 'x' * 1000})\n",
    )
    [left] = names(folder)
    assert left.startswith(".a-0.tar.")
    write(folder)
    assert left not in names(folder)


def test_files_that_are_being_written_stay(tmp_path):
    with fastshard.ShardWriter(tmp_path / "a-{}.tar", index=None) as writer:
        writer.write(SAMPLE)
        sweep(tmp_path)
        code = "import sys; from fastshard._util.processes.temporaries import sweep\n"
        command = [sys.executable, "-c", f"{code}sweep(sys.argv[1])", tmp_path]
        subprocess.run(command, env=environment(), check=True)
    assert names(tmp_path) == ["a-0.tar"]


@pytest.mark.parametrize("overwrite", [True, False])
def test_a_file_is_held_until_it_has_its_name(tmp_path, monkeypatch, overwrite):
    def sweep_first(function):
        def call(source, target):
            sweep(tmp_path)
            return function(source, target)

        return call

    for name in ("replace", "link"):
        monkeypatch.setattr(os, name, sweep_first(getattr(os, name)))
    AtomicFile(tmp_path / "a", overwrite=overwrite).commit()
    assert names(tmp_path) == ["a"]


def test_a_folder_of_a_running_process_stays(tmp_path):
    with temporary_folder("out", str(tmp_path)) as one:
        Path(one, "a").touch()
        with temporary_folder("out", str(tmp_path)) as other:
            assert names(one) == ["a"]
            assert one != other
    assert names(tmp_path) == []


LEFT = {
    "whole": "Path(folder, 'a').touch()",
    "without its content": "shutil.rmtree(folder)",
    "without its lock": "shutil.rmtree(folder); os.unlink(home + '/.lock')",
}


@pytest.mark.parametrize("state", LEFT)
def test_a_folder_of_a_killed_process_is_removed(tmp_path, state):
    run_killed(
        tmp_path,
        "import shutil\n"
        "from pathlib import Path\n"
        "from fastshard._util.processes.temporaries import temporary_folder\n"
        "with temporary_folder('out', sys.argv[1]) as folder:\n"
        f"    home = os.path.dirname(folder); {LEFT[state]}\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n",
    )
    assert len(names(tmp_path)) == 1
    sweep(tmp_path)
    assert names(tmp_path) == []


def test_only_names_of_this_machine_are_removed(tmp_path):
    node, boot = machine_tags()
    other = "0" * 8
    kept = [
        f".a.{other}-{other}-{other}.tmp",  # of another machine
        ".a.tar.k3x_91ab.tmp",  # of an older version, which holds no lock
        f"a.{node}-{boot}-{other}.tmp",
        f".a.{node}-{boot}-{other}.tmp2",
    ]
    gone = [f".a.{node}-{other}-{other}.tmp", f".b\n.{other}-{boot}-{other}.tmp"]
    for name in kept + gone:
        (tmp_path / name).touch()
    sweep(tmp_path)
    assert names(tmp_path) == sorted(kept)


def test_those_of_other_users_stay(tmp_path, monkeypatch):
    (tmp_path / make_temporary_name("a")).touch()
    (tmp_path / make_temporary_name("b")).mkdir()
    monkeypatch.setattr(os, "geteuid", lambda: 12345678)
    sweep(tmp_path)
    assert len(names(tmp_path)) == 2
    monkeypatch.undo()
    sweep(tmp_path)
    assert names(tmp_path) == []


def test_links_are_not_followed(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / ".lock").touch()
    (tmp_path / "data").mkdir()
    name = make_temporary_name("a")
    (tmp_path / "data" / name).symlink_to(outside)
    sweep(tmp_path / "data")
    assert names(tmp_path / "data") == [name]
    assert names(outside) == [".lock"]


def test_nothing_is_removed_on_a_file_system_without_locks(tmp_path, monkeypatch):
    def unsupported(*args):
        raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))

    replace_lock(monkeypatch, unsupported)
    monkeypatch.setattr(locks, "lock_range", unsupported)
    left = tmp_path / make_temporary_name("a")
    left.touch()
    with temporary_folder("out", str(tmp_path)) as folder:
        assert names(folder) == []
    AtomicFile(tmp_path / "a").commit()
    sweep(tmp_path)
    assert names(tmp_path) == sorted([left.name, "a"])


def test_a_sweep_before_the_lock_is_survived(tmp_path, monkeypatch):
    swept = []

    def sweep_first(*args):
        if len(swept) % 2 == 0:
            sweep(tmp_path)
        swept.append(args)

    before_each_hold(monkeypatch, sweep_first)
    AtomicFile(tmp_path / "a").commit()
    assert len(swept) == 2
    with temporary_folder("out", str(tmp_path)) as folder:
        assert names(folder) == []
    assert len(swept) == 4
    assert names(tmp_path) == ["a"]


def test_names_of_many_bytes(tmp_path):
    name = "\u65e5" * 85  # 255 bytes, as many as a name may have
    AtomicFile(tmp_path / name).commit()
    assert names(tmp_path) == [name]
