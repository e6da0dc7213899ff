"""Locks, threads and connections of objects at a fork."""

import gc
import os
import threading

import pytest

from fastshard._util.processes.forks import ForkAware, LockOwner, at_fork
from support.marks import forks_beside_threads

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning"),
    forks_beside_threads,
]


def in_child(check):
    """Return whether a check holds in a forked child."""
    pid = os.fork()
    if not pid:
        passed = False
        try:
            passed = check()
        finally:
            os._exit(0 if passed else 1)
    return os.waitpid(pid, 0)[1] == 0


def is_free(lock):
    return lock.acquire(timeout=10)


@pytest.fixture
def held():
    """Hold a lock by another thread for the time of a test."""
    threads, end = [], threading.Event()

    def hold(lock):
        taken = threading.Event()

        def run():
            with lock:
                taken.set()
                end.wait(60)

        threads.append(threading.Thread(target=run))
        threads[-1].start()
        taken.wait(60)

    yield hold
    end.set()
    for thread in threads:
        thread.join()


class Counter(LockOwner):
    resets = 0

    def reset_after_fork(self):
        self.resets += 1


@pytest.mark.parametrize("kind", [threading.Lock, threading.RLock])
def test_a_lock_that_another_thread_holds_is_free_in_a_child(held, kind):
    owner, other = LockOwner(kind), LockOwner(kind)
    held(owner.lock)
    assert in_child(lambda: is_free(owner.lock) and is_free(other.lock))
    assert not owner.lock.acquire(blocking=False)


def test_state_is_reset_only_if_the_lock_was_held(held):
    owner, other = Counter(), Counter()
    held(owner.lock)
    assert in_child(lambda: (owner.resets, other.resets) == (1, 0))
    assert (owner.resets, other.resets) == (0, 0)


@pytest.mark.parametrize("kind", [threading.Lock, threading.RLock])
def test_a_fork_while_the_lock_is_held_by_the_forking_thread(kind):
    owner = LockOwner(kind)

    def check():
        taken.__exit__(None, None, None)  # of the parent's lock
        with owner.lock:
            return True

    taken = owner.lock
    with taken:
        assert in_child(check)
    assert is_free(owner.lock)


def test_a_free_lock_of_before_stays_free_in_a_child():
    owner = LockOwner()
    before = owner.lock
    assert in_child(lambda: is_free(before))


class Connection(ForkAware):
    def __init__(self):
        self.calls = []
        super().__init__()

    def before_fork(self):
        self.calls.append("before")

    def reset_after_fork(self):
        self.calls.append("after")


class Pool(Connection):
    def reset_after_fork(self):
        ForkAware.reset_after_fork(self)
        self.calls.append("after")


def test_objects_are_told_of_a_fork():
    connection = Connection()
    assert in_child(lambda: connection.calls == ["before", "after"])
    assert connection.calls == ["before"]


def test_a_child_tells_objects_of_its_forks_unless_they_are_of_the_parent():
    connection, pool = Connection(), Pool()

    def check():
        return in_child(lambda: (len(connection.calls), len(pool.calls)) == (4, 2))

    assert in_child(check)


def test_dropped_objects_are_not_told():
    seen = []

    class Told(Connection):
        def before_fork(self):
            seen.append(self)

    Told()
    gc.collect()
    assert in_child(lambda: not seen)


def test_locks_are_free_when_objects_are_reset(held):
    owner = LockOwner()
    held(owner.lock)

    class User(ForkAware):
        was_free = False

        def reset_after_fork(self):
            self.was_free = is_free(owner.lock)

    user = User()
    assert in_child(lambda: user.was_free)


def test_hook_that_fails_stops_no_other():
    class Failing(Connection):
        def before_fork(self):
            super().before_fork()
            raise ValueError("fails before")

        def reset_after_fork(self):
            super().reset_after_fork()
            raise ValueError("fails after")

    all_of_them = [Failing(), Connection(), Failing(), Connection()]
    with pytest.MonkeyPatch.context() as patch:
        reported = []
        patch.setattr(
            "sys.unraisablehook", lambda args: reported.append(args.exc_value)
        )
        assert in_child(
            lambda: (
                all(each.calls == ["before", "after"] for each in all_of_them)
                and [str(error) for error in reported]
                == ["fails before", "fails after"]
            )
        )
    assert [str(error) for error in reported] == ["fails before"]
    reported.clear()


def test_functions_are_called_at_a_fork():
    calls = []
    at_fork(
        before=lambda: calls.append("before"),
        after_in_parent=lambda: calls.append("parent"),
        after_in_child=lambda: calls.append("child"),
    )
    assert in_child(lambda: calls == ["before", "child"])
    assert calls == ["before", "parent"]


def test_objects_that_threads_make_during_a_fork_do_not_stop_it():
    made, end = [], threading.Event()

    def make():
        while not end.is_set():
            made.append(Connection())
            del made[:-50]

    thread = threading.Thread(target=make)
    thread.start()
    try:
        assert all(in_child(lambda: True) for _ in range(20))
    finally:
        end.set()
        thread.join()
