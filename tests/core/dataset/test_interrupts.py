"""Iterators after Ctrl-C: none is locked, at whichever point it came."""

import signal

import pytest

import fastshard
from fastshard import typed
from fastshard._core.dataset.streams import CallGuard
from support.paths import TESTS
from support.processes import run_script
from support.tars import write_numbers
from support.threads import interrupt
from support.typed.photos import Photo, is_odd, write_photos

KINDS = ["batches", "loader", "mix", "concat", "filter", "stored batches"]
# Functions that are interrupted at each point.
STEPS = {
    "__enter__", "__exit__", "__next__", "_advance", "_next_batch", "_next_item",
    "_take_samples", "_timed_next", "call",
}  # fmt: skip


def make(kind, folder):
    """Write data; return a function that begins an iterator of a kind."""
    if kind in ("filter", "stored batches"):
        photos = typed.Dataset[Photo](write_photos(folder))
        if kind == "filter":
            return lambda: iter(photos.filter(is_odd))
        return lambda: iter(photos.ordered(2))
    ds = fastshard.open(write_numbers(folder, 30))
    if kind == "loader":
        return lambda: iter(ds.select_fields("cls").loader(2, threads=1))
    if kind == "batches":
        return lambda: ds.select_fields("cls").batches(2)
    both = fastshard.mix([ds, ds]) if kind == "mix" else (ds + ds).map(str)
    return lambda: iter(both)


@pytest.mark.parametrize("kind", KINDS)
def test_an_interrupt_at_any_point_leaves_no_iterator_locked(tmp_path, kind):
    begin = make(kind, tmp_path)
    interrupt(begin().__next__, 0, STEPS)  # CPython 3.12 has no events the first time
    number, was_interrupted = 0, True
    while was_interrupted:
        number += 1
        iterator = begin()
        was_interrupted = interrupt(iterator.__next__, number, STEPS)
        next(iterator)
    assert number > 3


STORM = """
import signal, sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from core.dataset.test_interrupts import KINDS, make

armed = False

def strike(*_):
    global armed
    if armed:
        armed = False  # one at a time
        raise KeyboardInterrupt

def storm(begin, seconds):
    global armed
    strikes, end = 0, time.monotonic() + seconds
    while time.monotonic() < end:
        iterator = begin()
        try:
            armed = True
            for _ in iterator:
                pass
            armed = False
        except KeyboardInterrupt:
            strikes += 1
        next(iterator, None)  # not locked
    return strikes

signal.signal(signal.SIGALRM, strike)
signal.setitimer(signal.ITIMER_REAL, 1e-4, 1e-4)
for kind in KINDS:
    folder = Path(sys.argv[1]) / kind
    folder.mkdir()
    assert storm(make(kind, folder), 0.4) > 10
signal.setitimer(signal.ITIMER_REAL, 0)
"""


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs setitimer")
def test_a_storm_of_signals_leaves_no_iterator_locked(tmp_path):
    run_script(tmp_path, STORM, tmp_path, TESTS)


def test_a_guard_refuses_a_second_call_and_is_free_after_an_error():
    guard = CallGuard()
    with pytest.raises(ValueError, match="another thread"):
        guard.call(lambda: guard.call(int))
    assert guard.call(int) == 0
    with pytest.raises(StopIteration):
        guard.call(iter(()).__next__)
    assert guard.call(int) == 0
