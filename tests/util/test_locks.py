"""Exclusive locks on files, beside processes that remove and replace the files."""

import os
import threading

import pytest

from fastshard._util.processes import locks
from fastshard._util.processes.locks import close_locked, hold_file, open_locked
from support.inside.files import replace_lock

pytestmark = pytest.mark.skipif(
    os.name == "nt", reason="files that are open are removed"
)


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "a.lock")


def test_one_holder_at_a_time(path):
    fd, locked = open_locked(path)
    assert locked is True

    other, other_locked = open_locked(path)
    assert other_locked is False
    os.close(other)

    close_locked(fd)
    fd, locked = open_locked(path)
    assert locked is True
    close_locked(fd)


def test_a_lock_is_waited_for_as_long_as_the_caller_wants(path):
    fd, _ = open_locked(path)
    waits = []

    def may_wait(other):
        assert other != fd
        waits.append(other)
        if len(waits) == 3:
            close_locked(fd)
        return True

    found, locked = open_locked(path, may_wait)
    assert locked is True
    assert len(waits) == 3
    other, locked = open_locked(path, lambda fd: False)
    assert locked is False
    for each in (found, other):
        os.close(each)


@pytest.mark.parametrize("replace", [False, True])
def test_the_lock_of_a_file_that_is_gone_does_not_count(path, replace):
    fd, _ = open_locked(path)

    def may_wait(other):
        os.unlink(path)
        if replace:
            open(path, "w").close()
        close_locked(fd)
        return True

    assert open_locked(path, may_wait) is None


def test_an_error_of_the_caller_leaves_no_descriptor(path):
    fd, _ = open_locked(path)
    seen = []

    def may_wait(other):
        seen.append(other)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        open_locked(path, may_wait)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(seen[0])
    close_locked(fd)


@pytest.mark.parametrize("kind", ["link", "pipe", "directory"])
def test_only_regular_files_are_locked(path, tmp_path, kind):
    target = tmp_path / "target"
    target.write_bytes(b"data")
    if kind == "link":
        os.symlink(target, path)
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        os.mkdir(path)
    with pytest.raises(OSError):  # noqa: PT011 - of several kinds
        open_locked(path)
    assert target.read_bytes() == b"data"


def test_without_locks_the_file_is_opened(path, monkeypatch):
    def unsupported(fd):
        raise OSError(95, os.strerror(95))

    replace_lock(monkeypatch, unsupported)
    fd, locked = open_locked(path)
    assert locked is None
    os.close(fd)


def test_threads_hold_a_file_one_after_the_other(path, monkeypatch):
    monkeypatch.setattr(locks, "POLL", 0.001)
    inside, most, done = [], [], []

    def work():
        for _ in range(20):
            with hold_file(path):
                inside.append(1)
                most.append(len(inside))
                inside.pop()
        done.append(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(done) == 4
    assert max(most) == 1
    assert not os.path.exists(path)
