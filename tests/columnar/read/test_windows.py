"""Windows of series are slices of the arrays: `ShardedDatasetReader.windows`."""

import pickle

import numpy as np
import pytest

import fastshard
from fastshard.columnar import ShardedDatasetReader, ShardedDatasetWriter
from fastshard.errors import (
    ClosedError,
    FastshardError,
    FieldNotFoundError,
    QueryError,
    RaggedError,
    StateError,
)
from support.marks import slow

COUNT = 40
LENGTHS = [(7 * i) % 23 for i in range(COUNT)]  # also 0, and shorter than a window


def series(i, field):
    steps = np.arange(LENGTHS[i] * (1 if field == "x" else 2), dtype="f4") + 1000 * i
    if field == "x":
        return steps
    values = steps.reshape(LENGTHS[i], 2)
    return np.asfortranarray(values) if i % 5 == 0 else values


def windows_of(field, length, stride, lacks=(), numbers=range(COUNT)):
    """Return the windows by plain slicing: key, first step and values."""
    return [
        (f"s{i}", start, series(i, field)[start : start + length])
        for i in numbers
        if i not in lacks
        for start in range(0, LENGTHS[i] - length + 1, stride)
    ]


def check(items, wanted, field="x"):
    items, wanted = list(items), list(wanted)
    assert [(w["__key__"], w["__start__"]) for w in items] == [w[:2] for w in wanted]
    for item, (_, _, values) in zip(items, wanted, strict=True):
        assert item[field].dtype == values.dtype
        np.testing.assert_array_equal(item[field], values)


def rows_of(batches, field="x"):
    """Return the windows in batches."""
    for batch in batches:
        keys, starts, stack = batch["__key__"], batch["__start__"], batch[field]
        assert len(keys) == len(starts) == len(stack)
        for key, start, values in zip(keys, starts.tolist(), stack, strict=True):
            yield {"__key__": key, "__start__": start, field: np.array(values)}


@pytest.fixture
def root(copied):
    return copied


def write_series(root, pack):
    with ShardedDatasetWriter(root, samples_per_shard=11, pack=pack) as writer:
        writer.add_fields(["x", "y"])
        for i in range(COUNT):
            arrays = {"x": series(i, "x"), "y": series(i, "y")}
            if i % 9 == 4:
                del arrays["y"]
            writer.add_sample(arrays, f"s{i}", {"odd": i % 2})


ODD = "json_extract(meta_json, '$.odd') = ?"


@pytest.mark.parametrize("stride", [1, 4])
@pytest.mark.parametrize("length", [1, 8, 22])
def test_windows_are_slices(reader, length, stride):
    windows = reader.windows("x", length, stride)
    wanted = windows_of("x", length, stride)
    assert len(windows) == len(wanted)
    check(windows, wanted)
    check(rows_of(windows.batches(5)), wanted)
    check([windows[i] for i in range(len(wanted))], wanted)
    assert windows.sample_count == COUNT
    assert windows.short_sample_count == sum(n < length for n in LENGTHS)


def test_windows_of_samples_that_match(reader):
    windows = reader.windows("x", 6, stride=2, where=ODD, params=(1,))
    check(windows, windows_of("x", 6, 2, numbers=range(1, COUNT, 2)))
    assert windows.sample_count == COUNT // 2
    assert len(reader.windows("x", 6, where="0")) == 0
    assert list(reader.windows("x", 6, where="0").batches(3)) == []


def test_several_fields_of_equal_steps(reader):
    lacks = range(4, COUNT, 9)
    windows = reader.windows(["x", "y"], 5, stride=3)
    for field in ("x", "y"):
        wanted = windows_of(field, 5, 3, lacks)
        check(windows, wanted, field)
        check(
            rows_of(windows.shuffle(seed=1)[::-1].batches(7), field),
            [wanted[i] for i in reversed(order_of(windows.shuffle(seed=1), wanted))],
            field,
        )
    short = {i for i in range(COUNT) if LENGTHS[i] < 5 or i in lacks}
    assert windows.short_sample_count == len(short)


def order_of(windows, wanted):
    """Return the numbers of windows in the dataset's order."""
    numbers = {window[:2]: i for i, window in enumerate(wanted)}
    return [numbers[window["__key__"], window["__start__"]] for window in windows]


@pytest.mark.parametrize("ranks", [1, 3])
def test_orders_ranks_and_states(reader, ranks):
    wanted = windows_of("x", 6, 2)
    windows = reader.windows("x", 6, stride=2)
    for ordered in (windows, windows.shuffle(seed=5, epoch=1), windows[10:70:3]):
        seen = set()
        for rank in range(ranks):
            share = ordered.split_by_rank(rank, ranks, drop_last=False)
            order = order_of(share, wanted)
            seen.update(order)
            check(rows_of(share.batches(4)), [wanted[i] for i in order])
            for done in (0, 5, len(order)):
                rest = share.resume(share.state_dict(done))
                check(rest, [wanted[i] for i in order[done:]])
            batches = share.batches(4)
            next(batches)
            with share.loader(4, threads=2, state=batches.state_dict()) as loader:
                check(rows_of(loader), [wanted[i] for i in order[4:]])
        assert len(seen) == len(ordered)
    shuffled = order_of(windows.shuffle(seed=5), wanted)
    assert shuffled != sorted(shuffled)
    assert len(set(shuffled)) == len(wanted)


def test_a_window_is_a_view(root):
    reader = ShardedDatasetReader(root)
    arrays, _ = reader.get_sample("s13")
    window = reader.windows("x", 4, where="id = 's13'")[3]["x"]
    assert np.shares_memory(window, arrays["x"])
    assert not window.flags.writeable
    reader.close()
    np.testing.assert_array_equal(window, series(13, "x")[3:7])


def test_map_and_pickles(reader):
    windows = reader.windows("x", 6, stride=2, where=ODD, params=(1,)).shuffle(seed=2)
    sums = [float(window["x"].sum()) for window in windows]
    mapped = windows.map(sum_of)
    assert list(mapped) == sums
    assert list(pickle.loads(pickle.dumps(mapped))) == sums
    again = pickle.loads(pickle.dumps(windows))
    assert again.resume(windows.state_dict(3)).state_dict() == windows.state_dict(3)
    assert [float(b.sum()) for b in mapped.batches(8)] == pytest.approx(
        [sum(sums[i : i + 8]) for i in range(0, len(sums), 8)]
    )


def sum_of(window):
    return float(window["x"].sum())


@slow
def test_torch_workers(root):
    data = pytest.importorskip("torch.utils.data")
    windows = ShardedDatasetReader(root).windows("x", 6, stride=2).shuffle(seed=3)
    keys, values = [], []
    for batch in data.DataLoader(windows, batch_size=16, num_workers=1):
        keys += batch["__key__"]
        values.append(batch["x"].numpy())
    check(
        [
            {"__key__": window["__key__"], "__start__": window["__start__"], "x": row}
            for window, row in zip(windows, np.concatenate(values), strict=True)
        ],
        [tuple(window.values()) for window in windows],
    )
    assert keys == [window["__key__"] for window in windows]


def test_pickles_and_states_of_another_state_of_the_dataset(reader, root):
    matching = reader.windows("x", 6, where=ODD, params=(1,))
    whole = reader.windows("x", 6)
    count, wanted = len(whole), list(matching)
    data, state = pickle.dumps((matching, whole)), matching.state_dict(3)
    with ShardedDatasetWriter(root) as writer:
        writer.add_sample({"x": np.arange(9, dtype="f4")}, "new", {"odd": 0})
    matching, whole = pickle.loads(data)
    check(matching, [tuple(window.values()) for window in wanted])
    with pytest.raises(StateError, match="added or removed"):
        whole[0]
    reader.refresh()
    assert len(reader.windows("x", 6)) == count + 4
    again = reader.windows("x", 6, where=ODD, params=(1,))
    assert again.resume(state).state_dict() == state
    with pytest.raises(StateError):
        reader.windows("x", 6, stride=2, where=ODD, params=(1,)).resume(state)
    with ShardedDatasetWriter(root) as writer:
        writer.update_sample("s1", {"x": np.arange(6, dtype="f4")})
    reader.refresh()
    with pytest.raises(StateError, match="are others"):
        reader.windows("x", 6, where=ODD, params=(1,)).resume(state)


def test_arrays_that_became_shorter(root):
    windows = ShardedDatasetReader(root).windows("x", 6, where="id = 's3'")
    data, count = pickle.dumps(windows), len(windows)
    assert count > 1
    data = pickle.dumps(windows)
    with ShardedDatasetWriter(root) as writer:
        writer.update_sample("s3", {"x": np.arange(6, dtype="f4")})
    again = pickle.loads(data)
    assert again[0]["x"].shape == (6,)
    with pytest.raises(RaggedError, match="'s3' has 6 steps"):
        again[count - 1]


def test_series_that_differ_in_dtype_and_shape(tmp_path):
    arrays = [np.zeros((5, 2)), np.ones((4, 3)), np.ones((4, 2), "i4")]
    with ShardedDatasetWriter(tmp_path / "r") as writer:
        writer.add_field("x")
        for array in arrays:
            writer.add_sample({"x": array})
    windows = ShardedDatasetReader(tmp_path / "r").windows("x", 4)
    assert [w["x"].shape for w in windows] == [(4, 2), (4, 2), (4, 3), (4, 2)]
    (batch,) = windows.batches(4, ragged="list")
    assert isinstance(batch["x"], list)
    assert batch["__start__"].tolist() == [0, 1, 0, 0]
    (batch,) = windows[:2].batches(2)
    assert batch["x"].shape == (2, 4, 2)
    with pytest.raises(RaggedError):
        next(windows.batches(4))


def test_fields_of_different_steps_and_arrays_without_axes(tmp_path):
    with ShardedDatasetWriter(tmp_path / "r") as writer:
        writer.add_fields(["x", "y", "z"])
        writer.add_sample({"x": np.zeros(9), "y": np.zeros(9), "z": np.zeros(())})
        writer.add_sample({"x": np.zeros(9), "y": np.zeros(8)}, "odd one")
    reader = ShardedDatasetReader(tmp_path / "r")
    with pytest.raises(RaggedError, match="'odd one' has 9 of 'x' and 8 of 'y'"):
        len(reader.windows(["x", "y"], 4))
    with pytest.raises(RaggedError, match="without axes"):
        len(reader.windows("z", 4))
    assert len(reader.windows(["y", "x"], 4, where="id != 'odd one'")) == 6


def test_empty_series(tmp_path):
    with ShardedDatasetWriter(tmp_path / "r") as writer:
        writer.add_field("x")
        writer.add_sample({"x": np.zeros((0, 4))})
        writer.add_sample({"x": np.zeros((3, 0))})
    windows = ShardedDatasetReader(tmp_path / "r").windows("x", 3)
    assert len(windows) == 1
    assert windows[0]["x"].shape == (3, 0)
    assert next(windows.batches(2))["x"].shape == (1, 3, 0)


def test_arguments(reader):
    with pytest.raises(FieldNotFoundError, match="'z'"):
        reader.windows("z", 4)
    with pytest.raises(QueryError):
        reader.windows("x", 4, where="no such column")
    for length, stride in ((0, 1), (4, 0), (-1, 1), (1 << 63, 1)):
        with pytest.raises(ValueError, match="must be from 1"):
            reader.windows("x", length, stride)
    with pytest.raises(TypeError):
        reader.windows("x", 4.5)
    for fields in ([], ["x", "x"]):
        with pytest.raises(ValueError, match="each once"):
            reader.windows(fields, 4)


def test_a_field_with_the_name_of_an_entry(tmp_path):
    with ShardedDatasetWriter(tmp_path / "r") as writer:
        writer.add_field("__start__")
    with pytest.raises(FastshardError, match="__start__"):
        ShardedDatasetReader(tmp_path / "r").windows("__start__", 4)


def test_closed_readers_and_datasets(reader):
    windows, unused = reader.windows("x", 6), reader.windows("x", 6)
    count = len(windows)
    with reader.windows("x", 6) as closed:
        assert len(closed) == count
    with pytest.raises(ClosedError):
        closed[0]
    assert windows[0]["x"].shape == (6,)
    reader.close()
    for dataset in (windows, unused):
        with pytest.raises(ClosedError):
            dataset[0]
        with pytest.raises(ClosedError):
            next(dataset.batches(3))


def test_a_refreshed_reader_keeps_windows(reader, root):
    windows = reader.windows("x", 6)
    wanted = [tuple(window.values()) for window in windows]
    with ShardedDatasetWriter(root) as writer:
        writer.add_sample({"x": np.arange(9, dtype="f4")}, "new")
    reader.refresh()
    check(windows, wanted)


def test_mixes_and_sums(reader):
    windows = reader.windows("x", 6)
    both = windows + reader.windows("x", 6, where=ODD, params=(1,))
    assert len(both) == len(windows) + len(windows_of("x", 6, 1, (), range(1, 40, 2)))
    mixed = fastshard.mix([windows, windows]).shuffle(seed=1)
    assert next(mixed.batches(8))["x"].shape == (8, 6)
