"""`on_error="skip"`: skipped samples, their count, and states."""

import io
import itertools
import json
import shutil
import sys
import traceback
import zlib

import numpy as np
import pytest

import fastshard
from fastshard.columnar import ShardedDatasetWriter
from fastshard.errors import ClosedError, FormatError, StateError
from support.marks import not_sanitized
from support.servers.forks import run_with_torch
from support.tars import write_numbers, write_tar

COUNT = 40
BAD = (0, 7, 8, 21, 39)


def fail_at(*bad):
    """Return a sample's number; raise for some of them. For `map`."""

    def number(sample):
        n = int(sample.text("txt"))
        if n in bad:
            raise OSError(f"sample {n} cannot be had")
        return n

    return number


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_numbers(tmp_path_factory.mktemp("numbers"), COUNT, per=9)


@pytest.fixture
def ds(folder):
    with fastshard.open(folder) as dataset:
        yield dataset


def pairs_of(ds):
    return fastshard.zip_by_key(ds, ds).map(lambda pair: fail_at(*BAD)(pair[0]))


DATASETS = {
    "plain": lambda ds: ds.map(fail_at(*BAD)),
    "shuffled": lambda ds: ds.shuffle(5, block=4).map(fail_at(*BAD)),
    "selected": lambda ds: ds[::-1].map(fail_at(*BAD)),
    "mixed": lambda ds: fastshard.mix([ds[:20], ds[20:]], seed=3).map(fail_at(*BAD)),
    "zipped": pairs_of,
}


@pytest.mark.parametrize("window", [0, 1, 32])
@pytest.mark.parametrize("made", DATASETS)
@pytest.mark.parametrize("done", [0, 1, 9, 35])
def test_a_state_after_skipped_samples_resumes_exactly(ds, made, done, window):
    part = DATASETS[made](ds)
    told = []
    whole = list(part.iter(on_error=lambda error, i: told.append(i)))
    assert len(whole) == COUNT - len(BAD)
    it = part.iter(on_error="skip", window=window)
    seen = list(itertools.islice(it, done))
    state = json.loads(json.dumps(it.state_dict()))
    assert it.position == state["position"] == done + it.skipped
    assert it.skipped == state.get("skipped", 0) == sum(i < it.position for i in told)
    assert len(json.dumps(state)) < 1024

    rest = part.iter(state, on_error="skip", window=window)
    assert seen + list(rest) == whole
    assert rest.skipped == rest.state_dict()["skipped"] == len(BAD)
    assert rest.state_dict()["position"] == COUNT
    assert list(part.iter(rest.state_dict())) == []


@pytest.mark.parametrize("made", DATASETS)
def test_an_iteration_with_an_order_has_a_state(ds, made):
    part = DATASETS[made](ds)
    listed = list(range(3, COUNT, 2))
    whole = list(part[listed].iter(on_error="skip"))
    mask = np.isin(np.arange(COUNT), listed)
    for order in (listed, np.array(listed), mask, slice(3, None, 2)):
        for window in (3, 32):
            it = part.iter(order=order, on_error="skip", window=window)
            seen = list(itertools.islice(it, 6))
            rest = part[order].iter(it.state_dict(), on_error="skip")
            assert seen + list(rest) == whole
        scanned = part.iter(order=order)
        next(scanned)
        assert scanned.state_dict() == part[order].state_dict(1)


def test_state_with_order_is_refused(ds):
    with pytest.raises(ValueError, match=r"got both.*ds\[order\]\.iter\(state\)"):
        ds.iter(ds.state_dict(), order=[1])
    with pytest.raises(ValueError, match="on_error"):
        ds.iter(on_error="ignore")


def test_iter_has_a_short_name(ds):
    whole = [sample.key for sample in ds]
    for it in (iter(ds), ds.iter()):
        assert (it.position, it.skipped) == (0, 0)
        assert next(it).key == whole[0]
        assert (it.position, it.state_dict()) == (1, ds.state_dict(1))
        assert [sample.key for sample in it] == whole[1:]


def test_a_state_without_skipped_resumes(ds):
    part = ds.map(fail_at(*BAD))
    state = {k: v for k, v in part.state_dict(10).items() if k != "skipped"}
    it = part.iter(state, on_error="skip")
    assert len(list(it)) == 28
    assert it.skipped == 2


@pytest.mark.parametrize("value", [-1, "1", 1.0, True, None, 2**70, [1]])
def test_an_invalid_count_of_skipped_samples_is_refused(ds, value):
    with pytest.raises(StateError, match="skipped"):
        ds.resume(ds.state_dict(5) | {"skipped": value})


def test_skipped_samples_are_counted_across_resumptions(ds):
    part = ds.shuffle(1).map(fail_at(*BAD))
    seen, state = [], None
    while True:
        it = part.iter(state, on_error="skip")
        found = list(itertools.islice(it, 6))
        if not found:
            break
        seen += found
        state = it.state_dict()
    assert sorted(seen) == [n for n in range(COUNT) if n not in BAD]
    assert it.skipped == len(BAD)
    assert part.resume(state).state_dict()["skipped"] == len(BAD)


class OwnError(Exception):
    pass


MISTAKES = [TypeError, KeyError, IndexError, NameError, AttributeError, AssertionError]
MISTAKES += [ZeroDivisionError, RuntimeError, MemoryError, OwnError, KeyboardInterrupt]


@pytest.mark.parametrize("on_error", ["skip", lambda error, i: None])
@pytest.mark.parametrize("mistake", MISTAKES)
@pytest.mark.parametrize("made", ["map", "mix"])
def test_programming_errors_of_functions_are_raised(ds, made, mistake, on_error):
    def wrong(sample):
        if sample.key == "000003":
            raise mistake("a mistake")
        return sample.key

    part = ds.map(wrong)
    if made == "mix":
        part = fastshard.mix([ds[:10], ds[10:]]).map(wrong)
    with pytest.raises(mistake):
        list(part.iter(on_error=on_error))
    with pytest.raises(mistake):
        list(part.batches(4, on_error=on_error))


@pytest.mark.parametrize("error", [ValueError, EOFError, OSError, UnicodeError])
def test_errors_that_data_can_cause_are_skipped(ds, error):
    def parse(sample):
        if sample.key == "000003":
            raise error("broken")
        return sample.key

    it = ds.map(parse).iter(on_error="skip")
    assert len(list(it)) == COUNT - 1
    assert it.skipped == 1


def test_a_closed_dataset_is_not_skipped(folder):
    for make in (
        lambda ds: ds,
        lambda ds: ds.shuffle(1),
        lambda ds: fastshard.mix([ds]).map(lambda sample: bytes(sample["txt"])),
    ):
        ds = fastshard.open(folder)
        it = make(ds).iter(on_error="skip", window=1)
        next(it)
        ds.close()
        with pytest.raises(ClosedError):
            list(it)


def test_a_function_that_raises_ends_the_step_only(ds):
    def stop(error, i):
        raise RuntimeError(f"at {i}")

    it = ds.map(fail_at(7)).iter(on_error=stop)
    with pytest.raises(RuntimeError, match="at 7"):
        list(it)
    assert (it.position, it.skipped) == (8, 0)
    assert next(it) == 8


def test_a_map_that_raises_stop_iteration_does_not_end_the_iteration(ds):
    def wrong(sample):
        return next(iter(())) if sample.key == "000003" else sample.key

    for items in (
        ds.map(wrong),
        ds.map(wrong).iter(on_error="skip"),
        ds.map(wrong).batches(2),
        fastshard.mix([ds]).map(wrong),
        (ds.map(wrong)[i] for i in range(9)),
    ):
        with pytest.raises(RuntimeError, match="StopIteration"):
            list(items)


def test_undecodable_samples_are_skipped(tmp_path):
    image = pytest.importorskip("PIL.Image")
    out = io.BytesIO()
    image.new("RGB", (9, 9), (200, 100, 0)).save(out, "JPEG")
    good = out.getvalue()
    data = {"0.jpg": good, "1.jpg": good[:-200], "2.jpg": b"none", "3.jpg": good}
    data |= {"0.json": b"1", "1.json": b"2", "2.json": b"3", "3.json": b"{"}
    path = write_tar(tmp_path / "p.tar", data)
    with fastshard.open(path) as ds:
        for fields, left in ((("jpg",), "03"), (("json",), "012"), ((), "0")):
            it = ds.decode(*fields).iter(on_error="skip")
            assert "".join(item["__key__"] for item in it) == left
            assert it.skipped == 4 - len(left)
        opened = ds.map(lambda s: image.open(s.open("jpg")).load() and s.key)
        assert list(opened.iter(on_error="skip")) == ["0", "3"]
        parsed = ds.map(lambda s: json.loads(bytes(s["json"])))
        assert list(parsed.iter(on_error="skip")) == [1, 2, 3]


@pytest.mark.parametrize(
    ("decode", "skipped"),
    [
        (lambda view: zlib.decompress(view), True),
        (lambda view: {}[bytes(view)], True),
        (lambda view: undefined, False),  # noqa: F821
        (lambda view: view.decode(), False),
        (lambda view: view + 1, False),
        (lambda view: __import__("no_such_library"), False),
    ],
    ids=[
        "zlib.error",
        "KeyError",
        "NameError",
        "AttributeError",
        "TypeError",
        "import",
    ],
)
def test_errors_of_custom_decoders(tmp_path, decode, skipped):
    path = write_tar(tmp_path / "d.tar", {"0.x": b"0", "1.x": b"1"})
    with fastshard.open(path, decoders={"x": decode}) as ds:
        it = ds.decode("x").iter(on_error="skip")
        if skipped:
            assert list(it) == []
            assert it.skipped == 2
        else:
            with pytest.raises((NameError, AttributeError, TypeError, ImportError)):
                list(it)


def test_a_missing_library_is_not_skipped(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "msgpack", None)
    path = write_tar(tmp_path / "m.tar", {"0.msgpack": b"\x01"})
    missing = pytest.raises(fastshard.MissingLibraryError, match="msgpack")
    with fastshard.open(path) as ds, missing:
        list(ds.decode().iter(on_error="skip"))


def test_columnar_samples(tmp_path):
    root = tmp_path / "c"
    with ShardedDatasetWriter(root, samples_per_shard=4) as writer:
        writer.add_fields(["x"])
        for i in range(10):
            writer.add_sample({"x": np.full(3, i)}, sample_id=f"s{i}")
    with fastshard.open(root) as ds:
        part = ds.map(lambda s: int(s["x"][0]) if s.key != "s4" else int("none"))
        it = part.iter(on_error="skip")
        seen = list(itertools.islice(it, 5))
        assert (it.position, it.skipped) == (6, 1)
        assert seen + list(part.iter(it.state_dict(), on_error="skip")) == [
            n for n in range(10) if n != 4
        ]
        (batch,) = ds.batches(20, on_error="skip")
        assert batch["x"].shape == (10, 3)


@pytest.fixture
def broken(folder, tmp_path):
    """Return a folder of three shards, the second damaged, and its sound bytes."""
    copied = shutil.copytree(folder, tmp_path / "broken")
    for path in [*copied.glob("*.fsi"), *copied.glob("*.json")]:
        path.unlink()
    path = copied / "n-001.tar"
    data = path.read_bytes()
    path.write_bytes(b"no tar" * 1000)
    return copied, path, data


def test_an_unreadable_shard_is_skipped(broken):
    copied, path, data = broken
    with fastshard.open(copied) as ds:
        it = ds.iter(on_error="skip")
        keys = [sample.key for sample in itertools.islice(it, 12)]
        assert it.skipped == 1  # the shard counts as one: its samples are unknown
        path.write_bytes(data)  # repaired
        state = it.state_dict()
        assert state["position"] == 9 + 9 + 3
    with fastshard.open(copied) as ds:
        rest = [sample.key for sample in ds.iter(state)]
        assert keys + rest == [k for i, k in enumerate(ds.keys()) if not 9 <= i < 18]


def test_batches_skip_an_unreadable_shard(broken):
    copied, path, data = broken
    with fastshard.open(copied) as ds:
        with pytest.raises(FormatError):
            ds.batches(6)
        it = ds.batches(6, on_error="skip")
        found = [batch["cls"].tolist() for batch in itertools.islice(it, 3)]
        path.write_bytes(data)
        assert it.state_dict()["position"] == 27
        assert (it.position, it.skipped) == (19, 1)
        found += [batch["cls"].tolist() for batch in it]
    assert list(itertools.chain(*found)) == [n for n in range(COUNT) if not 9 <= n < 18]
    assert list(map(len, found)) == [6, 6, 6, 6, 6, 1]


@pytest.mark.parametrize("drop", [False, True])
@pytest.mark.parametrize("n", [1, 4, 9, 100])
@pytest.mark.parametrize("made", DATASETS)
def test_batches_are_filled_after_skipped_samples(ds, made, n, drop):
    part = DATASETS[made](ds)
    good = list(part.iter(on_error="skip"))
    it = part.batches(n, on_error="skip", drop_last=drop)
    most = len(it)
    whole = [batch.tolist() for batch in it]
    assert whole == [
        good[i : i + n] for i in range(0, len(good) // n * n if drop else len(good), n)
    ]
    assert len(whole) <= most
    for stop in range(len(whole) + 1):
        it = part.batches(n, on_error="skip", drop_last=drop)
        found = [batch.tolist() for batch in itertools.islice(it, stop)]
        state = json.loads(json.dumps(it.state_dict()))
        assert len(it) >= len(whole) - stop
        assert state["position"] - state.get("skipped", 0) == sum(map(len, found))
        rest = part.batches(n, on_error="skip", drop_last=drop, state=state)
        assert found + [batch.tolist() for batch in rest] == whole


def test_samples_that_collation_cannot_read_are_skipped(tmp_path):
    good, data = io.BytesIO(), {}
    np.save(good, np.zeros(4))
    for i in range(10):
        bad = i in (2, 3, 9)
        data[f"{i}.npy"] = good.getvalue()[: -1 if bad else None]
        data[f"{i}.cls"] = b"x" if i == 5 else b"%d" % i
    path = write_tar(tmp_path / "d.tar", data)
    told = []
    with fastshard.open(path) as ds:
        with pytest.raises(FormatError, match=r"2\.npy"):
            list(ds.batches(4))
        it = ds.batches(4, on_error=lambda error, i: told.append((i, str(error)[:7])))
        assert next(it)["cls"].tolist() == [0, 1, 4, 6]
        assert (it.position, it.skipped) == (7, 3)
        state = it.state_dict()
        assert (state["position"], state["skipped"]) == (7, 3)
        assert [batch["cls"].tolist() for batch in it] == [[7, 8]]
        assert it.skipped == 4
        assert [i for i, _ in told] == [2, 3, 5, 9]
        again = ds.batches(4, on_error="skip", state=state)
        assert [batch["cls"].tolist() for batch in again] == [[7, 8]]
        with pytest.raises(FormatError):  # a custom collate reads the fields itself
            list(ds.batches(4, collate=lambda s: fastshard.collate(s), on_error="skip"))


def test_a_worker_s_state_after_a_skip_is_for_that_worker(ds, monkeypatch):
    part = ds.map(fail_at(*BAD))
    monkeypatch.setattr(
        "fastshard.dataset.sequence.base.current_worker", lambda: (0, 2)
    )
    it = part.batches(4, on_error="skip")
    next(it), next(it)
    state = json.loads(json.dumps(it.state_dict()))
    assert state["worker"]["skipped"] == state["skipped"] == 2
    rest = [batch.tolist() for batch in it]
    again = part.batches(4, on_error="skip", state=state)
    next(again)
    later = again.state_dict()
    assert later["worker"]["skipped"] == later["skipped"] == 2
    again = part.batches(4, on_error="skip", state=state)
    assert [batch.tolist() for batch in again] == rest
    for broken in (-1, 10**6, "1", None):
        worker = state["worker"] | {"skipped": broken}
        with pytest.raises(StateError):
            part.batches(4, state=state | {"worker": worker})
    monkeypatch.undo()
    for call in (lambda: part.batches(4, state=state), lambda: part.resume(state)):
        with pytest.raises(StateError, match=r"skipped 2 samples"):
            call()


def test_a_closed_iteration_keeps_no_shard(folder):
    ds = fastshard.open(folder)
    it = ds.map(fail_at(3)).iter(on_error="skip")
    [next(it) for _ in range(5)]
    it.close()
    assert list(it) == []
    assert it.state_dict()["position"] == 6
    del ds
    with pytest.raises(ClosedError, match="was deleted"):
        it.state_dict()


def test_tracebacks_of_skipped_errors_do_not_accumulate(tmp_path):
    ds = fastshard.open(write_numbers(tmp_path / "gone", COUNT, per=9))
    assert len(ds) == COUNT
    (tmp_path / "gone" / "n-001.tar").unlink()
    depths = []

    def note(error, i):
        depths.append(len(list(traceback.walk_tb(error.__traceback__))))

    it = ds.iter(on_error=note)
    assert len(list(it)) == COUNT - 9
    assert (it.skipped, it.state_dict()["skipped"]) == (9, 9)
    assert depths[0] == depths[-1]


LOADERS = """
import sys, json, warnings
import numpy as np, torch, fastshard
from torch.utils.data import DataLoader
import fastshard.adapters.torch as ft

BAD = (0, 7, 8, 21, 39)

class Fail:
    def __call__(self, sample):
        n = int(sample.text("txt"))
        if n in BAD:
            raise OSError("no")
        return {"cls": n}

if __name__ == "__main__":
    part = fastshard.open(sys.argv[1]).shuffle(3).map(Fail())
    good = [n for n in range(40) if n not in BAD]
    for workers in (0, 2):
        data = ft.IterableDataset(part, 4, on_error="skip")
        batches = [batch["cls"].tolist() for batch in
                   DataLoader(data, batch_size=None, num_workers=workers)]
        assert sorted(sum(batches, [])) == good
        assert len(batches) <= len(data) == 10
        assert sorted(map(len, batches))[-6:] == [4] * 6
        single = ft.IterableDataset(part, on_error="skip")
        found = [n for batch in DataLoader(single, batch_size=4, num_workers=workers)
                 for n in batch["cls"].tolist()]
        assert sorted(found) == good
    try:
        ft.IterableDataset(part, on_error="ignore")
    except ValueError:
        print("refused")
    from torchdata.stateful_dataloader import StatefulDataLoader
    for workers in (0, 2):
        def loader():
            data = ft.IterableDataset(part, 4, on_error="skip")
            return StatefulDataLoader(data, batch_size=None, num_workers=workers)
        whole = [batch["cls"].tolist() for batch in loader()]
        for stop in (1, 3, 5):
            first = loader()
            it = iter(first)
            seen = [next(it)["cls"].tolist() for _ in range(stop)]
            state = first.state_dict()
            del it
            second = loader()
            second.load_state_dict(state)
            assert seen + [batch["cls"].tolist() for batch in second] == whole
    print("all")
"""


@not_sanitized
def test_torch_s_loaders(folder, tmp_path):
    pytest.importorskip("torchdata")
    printed = run_with_torch(tmp_path, LOADERS, folder)
    assert printed.split() == ["refused", "all"]
