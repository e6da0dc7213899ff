"""Statistics of loaders: times that add up, and verdicts by rule."""

import itertools
import json
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import fastshard
from fastshard._core.loader.threads import ConsumerTimes, ThreadTimes, bucket_value
from fastshard.dataset.sequence.loading import DatasetSource
from fastshard.loader.recorder import LoaderRecorder
from fastshard.loader.stats import LoaderStats
from fastshard.loader.times import current_times, enter_step, set_current_times
from support.inside.datasets import blocked_seconds

needs_schedstat = pytest.mark.skipif(
    not os.path.exists("/proc/thread-self/schedstat"), reason="no schedstat"
)


def figures(**given):
    """Return statistics of 100 s and two threads."""
    numbers = dict.fromkeys(
        [
            "wall",
            "consumer",
            "wait",
            "fetch",
            "decode",
            "resize",
            "map",
            "collate",
            "full",
            "idle",
            "ready",
            "wait_p50",
            "wait_p99",
        ],
        0.0,
    )
    counts = dict.fromkeys(
        [
            "samples",
            "bytes_read",
            "bytes_decoded",
            "skipped",
            "filled",
            "requests",
            "retries",
            "cache_hits",
        ],
        0,
    )
    own = {"wall": 100.0, "batches": 50, "threads": 2}
    own |= {"cpu": None, "runqueue": None, "gil": None}
    return LoaderStats(**(numbers | counts | own | given))


@pytest.mark.parametrize(
    ("given", "verdict", "words"),
    [
        ({"consumer": 96, "wait": 4, "decode": 150}, "consumer", "ready"),
        ({"consumer": 94, "wait": 6, "decode": 150}, "decode", "threads"),
        ({"consumer": 10, "wait": 90, "fetch": 101, "map": 99}, "storage", "ahead"),
        ({"consumer": 10, "wait": 90, "fetch": 99, "map": 101}, "decode", "threads"),
        (
            {"consumer": 10, "wait": 90, "decode": 180, "cpu": 120, "runqueue": 50},
            "decode",
            "cores are short",
        ),
        (
            {"consumer": 60, "wait": 40, "decode": 180, "gil": 50.0},
            "consumer",
            "holds the GIL",
        ),
        ({"consumer": 60, "wait": 40, "decode": 180, "gil": 40.0}, "decode", "threads"),
        (
            {"consumer": 40, "wait": 60, "decode": 180, "gil": 100.0},
            "decode",
            "GIL: a mapped function",
        ),
    ],
)
def test_the_verdict_follows_the_rules(given, verdict, words):
    stats = figures(**given)

    assert stats.verdict == verdict
    assert words in stats.advice
    assert f"verdict {verdict}" in str(stats)


def test_waiting_for_bytes_is_not_waiting_for_the_gil():
    times = {"consumer": 60, "wait": 40, "fetch": 150, "decode": 30, "gil": 150.0}

    assert figures(**times).verdict == "consumer"
    assert figures(**times, _blocked=148.0).verdict == "storage"
    assert figures(**times, _blocked=120.0).verdict == "consumer"


def test_few_batches_have_no_verdict():
    assert figures(batches=19, wait=90, decode=100).verdict is None
    assert "20" in figures(batches=19).advice
    assert figures(batches=20, wait=90, decode=100).verdict == "decode"


def test_the_numbers_are_flat():
    numbers = figures(wait=3.5, samples=7).as_dict()

    assert numbers["wait"] == 3.5
    assert numbers["samples"] == 7
    assert "cpu" not in numbers
    assert all(isinstance(number, int | float) for number in numbers.values())
    assert json.loads(json.dumps(numbers)) == numbers
    assert "\n" not in str(figures(skipped=2, filled=3))
    assert "2 skipped; 3 filled" in str(figures(skipped=2, filled=3))


def test_waits_of_a_histogram_are_within_two_percent():
    for seconds in (0, 1e-5, 0.003):
        consumer = ConsumerTimes()
        consumer.ask(0)
        time.sleep(seconds)
        consumer.answer(1)
        _, times, _, _, waits = consumer.snapshot()
        assert list(waits.values()) == [1]
        assert bucket_value(*waits) == pytest.approx(times["wait"], rel=0.02)
    last = -1.0
    for bucket in range(1200):
        value = bucket_value(bucket)
        assert last < value <= max(last + 1, last * 1.035)
        last = value


def test_the_times_of_the_consumer_add_up_to_wall():
    recorder = LoaderRecorder()
    consumer = recorder.consumer
    for k in range(5):
        consumer.ask(k)
        time.sleep(0.002)
        consumer.answer(10, k % 2)
        time.sleep(0.001)
    stats = recorder.stats()

    assert stats.wait + stats.consumer == pytest.approx(stats.wall, rel=1e-6)
    assert stats.wait >= 0.010
    assert stats.consumer >= 0.005
    assert (stats.batches, stats.samples, stats.skipped) == (5, 50, 2)
    assert stats.ready == 2.0
    assert 0.0019 <= stats.wait_p50 <= stats.wait_p99

    consumer.ask(0)
    time.sleep(0.005)  # the open wait counts
    later = recorder.stats(since=stats)
    assert later.wait >= 0.005
    assert later.batches == 0
    assert later.wait_p99 == 0.0

    consumer.fail()
    consumer.stop()
    end = recorder.stats()
    time.sleep(0.002)
    assert recorder.stats().wall == end.wall


def test_earlier_statistics_are_subtracted():
    recorder = LoaderRecorder()
    consumer = recorder.consumer
    since = None
    for k in range(1, 4):
        for _ in range(k):
            consumer.ask(k)
            consumer.answer(8)
        since = recorder.stats(since)  # a difference may be subtracted itself
        assert since.batches == k
        assert since.samples == 8 * k
        assert since.ready == k
    assert recorder.stats().batches == 6

    with pytest.raises(TypeError, match="LoaderStats, got int"):
        recorder.stats(3)
    with pytest.raises(ValueError, match="same loader"):
        LoaderRecorder().stats(since)


def test_steps_add_up_to_the_life_of_a_thread():
    recorder = LoaderRecorder()

    def work():
        with recorder.thread() as times:
            assert current_times() is times
            for step in ("fetch", "map", "collate", "full", "idle"):
                times.enter(step)
                time.sleep(0.003)
                times.decode += 1_000_000 * (step == "map")
        assert current_times() is None

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    recorder.consumer.stop()
    stats = recorder.stats()

    parts = stats.busy + stats.full + stats.idle
    assert stats.threads == 3
    assert parts == pytest.approx(3 * stats.wall, rel=0.02)
    assert stats.decode == pytest.approx(0.003)
    assert stats.map >= 0.006
    assert min(stats.fetch, stats.collate, stats.full, stats.idle) >= 0.009


def test_a_step_continues_when_it_is_entered_again():
    recorder = LoaderRecorder()
    with recorder.thread() as times:
        times.enter("fetch")
        time.sleep(0.002)
        assert times.enter("fetch") == "fetch"
        time.sleep(0.002)
        enter_step("idle")
    assert recorder.stats().fetch >= 0.004


def test_times_of_a_context_are_those_of_its_thread_alone():
    outer, inner = ThreadTimes(), ThreadTimes(is_inline=True)
    set_current_times(outer)
    try:
        with inner:
            enter_step("map")
            assert current_times() is inner
            with ThreadPoolExecutor(1) as pool:
                assert pool.submit(current_times).result() is None
        assert current_times() is outer
        assert inner.enter(None) == "idle"
        with pytest.raises(KeyError), inner:
            raise KeyError
        assert current_times() is outer
    finally:
        set_current_times(None)
    assert current_times() is None
    enter_step("map")  # in a thread without times


@needs_schedstat
def test_cpu_time_is_that_of_the_thread():
    recorder = LoaderRecorder()
    with recorder.thread() as times:
        times.enter("map")
        until = time.thread_time() + 0.1
        while time.thread_time() < until:
            sum(range(1000))
        times.enter("fetch")
        time.sleep(0.1)
    stats = recorder.stats()

    assert 0.09 <= stats.cpu <= 0.2
    assert stats.gil >= 0.09
    assert 0.09 <= blocked_seconds(stats) <= stats.fetch


def test_a_step_must_be_known():
    with pytest.raises(ValueError, match="not in tuple"):
        ThreadTimes().enter("sleep")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "a.tar"
    with fastshard.ShardWriter(path) as writer:
        for i in range(400):
            array = np.full(256, i, np.float32)
            writer.write({"__key__": f"{i:04}", "npy": array, "cls": i})
    return fastshard.open(path)


KINDS = {
    "raw": lambda ds: ds,
    "decoded": lambda ds: ds.decode(),
    "mapped": lambda ds: ds.map(lambda sample: sample.array("npy")),
    "concat": lambda ds: ds[:200] + ds[200:].shuffle(1),
    "mix": lambda ds: fastshard.mix([ds, ds]),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("threads", [0, 1, 3])
def test_batches_and_loaders_tell_where_the_time_went(data, kind, threads):
    ds = KINDS[kind](data)
    batches = ds.loader(16, threads=threads) if threads else ds.batches(16)
    count = 0
    for count, _ in enumerate(batches, 1):  # noqa: B007
        pass
    stats = batches.stats()
    parts = stats.busy + stats.full + stats.idle

    assert stats.batches == count
    assert stats.samples == len(ds)
    assert stats.wait + stats.consumer >= 0.98 * stats.wall
    assert 0.98 * stats.threads * stats.wall <= parts
    assert parts <= 1.02 * stats.threads * stats.wall
    assert stats.verdict is not None
    assert stats.fetch > 0 or (threads == 0 and kind in ("decoded", "mapped"))
    assert (stats.map > 0) >= (kind in ("decoded", "mapped"))


def test_stored_bytes_are_counted(data):
    expected = 400 * 1024
    with data.select_fields("npy").loader(50, threads=2) as loader:
        assert len(list(loader)) == 8
    batches = data.select_fields("npy").batches(50)
    assert len(list(batches)) == 8

    for stats in (loader.stats(), batches.stats()):
        assert expected <= stats.bytes_read <= expected * 1.2  # headers


def test_skipped_samples_are_counted(tmp_path):
    path = tmp_path / "a.tar"
    with fastshard.ShardWriter(path) as writer:
        for i in range(40):
            writer.write({"__key__": f"{i:04}", "cls": b"x" if i % 10 == 3 else b"1"})
    ds = fastshard.open(path).decode()
    with ds.loader(10, threads=2, on_error="skip") as loader:
        list(loader)
    batches = ds.batches(9, on_error="skip")
    list(batches)

    for stats in (loader.stats(), batches.stats()):
        assert (stats.samples, stats.skipped) == (36, 4)


def test_statistics_may_be_read_while_threads_work(data):
    found = []

    def read(loader):
        while not done.is_set():
            found.append(loader.stats())

    done = threading.Event()
    with data.map(lambda sample: sample.array("npy")).loader(4, threads=3) as loader:
        batches = iter(loader)
        next(batches)
        reader = threading.Thread(target=read, args=(loader,))
        reader.start()
        for _ in batches:
            pass
        done.set()
        reader.join()

    for before, after in itertools.pairwise(found):
        assert before.batches <= after.batches
        assert before.wall <= after.wall
        assert before.wait + before.consumer <= before.wall * 1.001


@pytest.mark.parametrize("kind", ["raw", "mapped"])
@pytest.mark.parametrize("ahead", [0, 1, 3])
def test_replay_gives_the_batches_ahead_without_reading(data, kind, ahead):
    ds = KINDS[kind](data)
    expected = list(ds.batches(40))
    keys = [str(batch) for batch in expected]
    with ds.loader(40, threads=2, ahead=ahead) as loader:
        assert str(next(loader)) == keys[0]
        state = loader.state_dict()

        replayed = [str(batch) for batch in loader.replay(3)]
        assert replayed == keys[1 : ahead + 2] * 3
        assert loader.state_dict() == state
        assert loader.stats().batches == 1

        rest = loader.replay(1)
        assert [str(next(loader)) for _ in keys[1:]] == keys[1:]
        if ahead:
            with pytest.raises(ValueError, match="has advanced"):
                next(rest)
        with pytest.raises(ValueError, match="at its end"):
            loader.replay(1)


@pytest.mark.parametrize(("on_error", "field"), [("skip", []), ("mask", [True] * 40)])
def test_replayed_batches_have_the_fields_of_batches(data, on_error, field):
    with data.loader(40, on_error=on_error) as loader:
        batches = [*loader.replay(1), next(loader)]

    name = {"skip": "__skipped__", "mask": "__ok__"}[on_error]
    assert [list(batch[name]) for batch in batches] == [field] * len(batches)


def test_statistics_of_another_loader_are_refused(data):
    with data.loader(40) as loader, data.loader(40) as other:
        early = loader.stats()
        next(loader), next(other)
        assert loader.stats(early).batches == 1
        with pytest.raises(ValueError, match="same loader"):
            other.stats(loader.stats())


def test_replay_refuses_a_negative_number(data):
    with data.loader(40) as loader, pytest.raises(ValueError, match="negative"):
        loader.replay(-1)


@pytest.mark.parametrize("side", ["storage", "consumer"])
def test_a_slow_side_is_named(data, side, monkeypatch):
    def fetch(self, start, stop):
        time.sleep(0.05)
        return read(self, start, stop)

    read = DatasetSource.fetch
    if side == "storage":
        monkeypatch.setattr(DatasetSource, "fetch", fetch)
    with data.loader(16, threads=2) as loader:
        for _ in loader:
            time.sleep(0.05 * (side == "consumer"))

    assert loader.stats().verdict == side
