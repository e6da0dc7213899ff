"""Ragged arrays: the same stacks, padding and errors by every way to read batches."""

import pickle

import numpy as np
import pytest
from numpy.typing import NDArray

import fastshard
from fastshard import typed
from fastshard.columnar import ShardedDatasetReader, ShardedDatasetWriter
from fastshard.errors import FastshardError, FieldNotFoundError, RaggedError
from fastshard.formats.stacking.padding import Padding
from fastshard.streaming import MDSWriter
from support.marks import not_sanitized
from support.typed.packed import npy, write_shard

pytestmark = not_sanitized  # tests Python code

LENGTHS = (2, 1, 5, 3)  # MDS stores no empty arrays


@typed.packable
class Row:
    x: NDArray
    y: NDArray


def row(i):
    """Return arrays of floats and of integers, of which y has two axes."""
    x = np.arange(LENGTHS[i], dtype="f4") + 0.5
    y = np.full((i + 1, 3 - i % 2), i + 1, "i8")
    return {"x": x, "y": y}


ROWS = [row(i) for i in range(len(LENGTHS))]


def padded(field, fill):
    """Return the padded stack of all rows, made by the definition."""
    arrays = [each[field] for each in ROWS]
    shape = [max(sizes) for sizes in zip(*(a.shape for a in arrays), strict=True)]
    stack = np.full((len(arrays), *shape), fill, arrays[0].dtype)
    for place in np.ndindex(*stack.shape):
        array, at = arrays[place[0]], place[1:]
        if all(k < n for k, n in zip(at, array.shape, strict=True)):
            stack[place] = array[at]
    return stack


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Return the folder with the rows in every format that has arrays."""
    root = tmp_path_factory.mktemp("made")
    with fastshard.ShardWriter(str(root / "rows.tar")) as writer:
        for i, each in enumerate(ROWS):
            fields = {f"{name}.npy": array for name, array in each.items()}
            writer.write({"__key__": f"{i:06d}", **fields})
    with ShardedDatasetWriter(root / "columnar") as writer:
        writer.add_fields(["x", "y"])
        for i, each in enumerate(ROWS):
            writer.add_sample(each, f"{i:06d}")
    columns = {"x": "ndarray:float32", "y": "ndarray:int64"}
    with MDSWriter(columns=columns, out=str(root / "mds")) as writer:
        for each in ROWS:
            writer.write(each)
    write_shard(root / "packed.tar", ROWS, encode=npy)
    return root


def from_columnar(root, **options):
    with ShardedDatasetReader(root / "columnar") as reader:
        return reader.columns(range(len(ROWS)), **options)


def from_scan(root, **options):
    with ShardedDatasetReader(root / "columnar") as reader:
        (batch,) = reader.scan(batch_size=9, **options)
        assert batch.pop("__key__") == [f"{i:06d}" for i in range(len(ROWS))]
        return batch


def from_sample_batch(root, **options):
    (batch,) = typed.Dataset[Row](str(root / "packed.tar")).ordered(9, **options)
    batch = pickle.loads(pickle.dumps(batch))
    found = {"x": batch.x, "y": batch.y}
    if options.get("ragged") == "pad":
        found["__lengths__"] = {name: batch.lengths(name) for name in ("x", "y")}
    return found


def without_keys(batch):
    """Return a batch with the names of the fields only."""
    names = {"x.npy": "x", "y.npy": "y"}
    lengths = batch.get("__lengths__", {})
    found = {names.get(name, name): value for name, value in batch.items()}
    found.pop("__key__", None)
    if lengths:
        found["__lengths__"] = {names.get(n, n): v for n, v in lengths.items()}
    return found


def from_batches(ds, **options):
    return without_keys(next(ds.batches(9, **options)))


def from_loader(ds, **options):
    with ds.loader(9, threads=2, **options) as loader:
        return without_keys(next(loader))


def from_collate(ds, **options):
    return without_keys(fastshard.collate(list(ds), **options))


def from_decoded(ds, **options):
    return without_keys(next(ds.decode().batches(9, **options)))


def from_torch(ds, **options):
    pytest.importorskip("torch")
    from fastshard.adapters.torch import collate

    batch = without_keys(collate(list(ds), **options))
    for name in ("x", "y"):
        value = batch[name]
        is_list = isinstance(value, list)
        batch[name] = [one.numpy() for one in value] if is_list else value.numpy()
    return batch


def from_tensors(ds, **options):
    torch = pytest.importorskip("torch")
    values = ds.decode().map(
        lambda sample: {
            name: torch.tensor(array) for name, array in without_keys(sample).items()
        }
    )
    return from_torch(values, **options)


def from_columns(ds, **options):
    fields = [name for name in ds[0].keys() if name != "__key__"]  # noqa: SIM118
    return without_keys(ds.columns(range(len(ROWS)), fields, **options))


OPENED = [
    from_batches,
    from_loader,
    from_collate,
    from_decoded,
    from_torch,
    from_tensors,
    from_columns,
]
SOURCES = ["rows.tar", "columnar", "mds", "packed.tar"]
TYPED = [from_batches, from_loader, from_collate, from_torch]


def of_opened(source, read):
    def door(root, **options):
        kind = {"packed": True} if source == "packed.tar" else {}
        with fastshard.open(root / source, **kind) as ds:
            return read(ds, **options)

    return pytest.param(door, id=f"{source}-{read.__name__}")


def of_typed(read):
    def door(root, **options):
        return read(typed.Dataset[Row](str(root / "packed.tar")), **options)

    return pytest.param(door, id=f"typed-{read.__name__}")


DOORS = [
    *(of_opened(source, read) for source in SOURCES for read in OPENED),
    *map(of_typed, TYPED),
    *(
        pytest.param(read, id=read.__name__)
        for read in (from_columnar, from_scan, from_sample_batch)
    ),
]


@pytest.mark.parametrize("door", DOORS)
def test_padding_is_the_same_by_every_door(made, door):
    for fill in (None, -1):
        found = door(made, ragged="pad", fill=fill)
        lengths = found.pop("__lengths__")
        assert set(found) == set(lengths) == {"x", "y"}
        for name, stack in found.items():
            expected = padded(name, 0 if fill is None else fill)
            np.testing.assert_array_equal(stack, expected, strict=True)
            shapes = [list(each[name].shape) for each in ROWS]
            assert lengths[name].tolist() == shapes
            assert lengths[name].dtype == np.int64


@pytest.mark.parametrize("door", DOORS)
def test_ragged_arrays_are_an_error_by_default(made, door):
    with pytest.raises(RaggedError, match=r"float32 \(1,\) in sample .* \(2,\) in sam"):
        door(made)


@pytest.mark.parametrize("door", DOORS)
def test_ragged_arrays_are_listed_on_request(made, door):
    found = door(made, ragged="list")
    assert set(found) == {"x", "y"}
    for name, arrays in found.items():
        assert type(arrays) is list
        for array, each in zip(arrays, ROWS, strict=True):
            np.testing.assert_array_equal(array, each[name], strict=True)


@pytest.mark.parametrize("door", DOORS)
def test_a_fill_is_checked(made, door):
    for fill in (np.nan, 0.5):
        with pytest.raises(ValueError, match=r"fill=.*y.* of .*int64"):
            door(made, ragged="pad", fill=fill)
    with pytest.raises(ValueError, match='is for ragged="pad"'):
        door(made, fill=1)
    with pytest.raises(FieldNotFoundError, match="z"):
        door(made, ragged="pad", fill={"z": 1})


def test_a_fill_by_field(made):
    found = from_columnar(made, ragged="pad", fill={"y": -7})
    np.testing.assert_array_equal(found["x"], padded("x", 0))
    np.testing.assert_array_equal(found["y"], padded("y", -7))
    with fastshard.open(made / "rows.tar") as ds:
        found = from_batches(ds, ragged="pad", fill={"y.npy": -7})
    np.testing.assert_array_equal(found["y"], padded("y", -7))


def test_a_fill_of_an_array_inside_an_npz(tmp_path):
    with fastshard.ShardWriter(str(tmp_path / "a.tar")) as writer:
        for i in range(2):
            writer.write({"__key__": str(i), "a.npz": {"w": np.arange(i + 1)}})
    with fastshard.open(tmp_path) as ds:
        batch = fastshard.collate(list(ds), ragged="pad", fill={"w": -1})
    assert batch["a.npz"]["w"].tolist() == [[0, -1], [0, 1]]
    assert batch["a.npz"]["__lengths__"]["w"].tolist() == [[1], [2]]


@pytest.mark.parametrize(
    "door",
    [from_columnar, from_scan, of_opened("rows.tar", from_collate).values[0]],
    ids=["columns", "scan", "collate"],
)
def test_lengths_are_left_out_on_request(made, door):
    assert set(door(made, ragged="pad", lengths=False)) == {"x", "y"}


def test_values_without_names_are_padded_without_lengths():
    arrays = [np.ones(1), np.ones(2)]
    with pytest.raises(FastshardError, match="padding needs named fields"):
        fastshard.collate(arrays, ragged="pad")
    found = fastshard.collate(arrays, ragged="pad", lengths=False)
    assert found.tolist() == [[1, 0], [1, 1]]


def test_a_field_named_as_the_lengths_is_refused():
    samples = [{"__lengths__": np.ones(1)}, {"__lengths__": np.ones(2)}]
    with pytest.raises(FastshardError, match="collides with the lengths"):
        fastshard.collate(samples, ragged="pad")
    found = fastshard.collate(samples, ragged="pad", lengths=False)
    assert found["__lengths__"].tolist() == [[1, 0], [1, 1]]


@pytest.mark.parametrize(
    ("arrays", "expected"),
    [
        ([np.array(["a"]), np.array(["word", "b"])], [["a", ""], ["word", "b"]]),
        ([np.array([1], "<i4"), np.array([2, 3], ">i4")], [[1, 0], [2, 3]]),
        ([np.array([True]), np.array([], bool)], [[True], [False]]),
        (
            [np.array([1], [("a", "i4")]), np.array([], [("a", "i4")])],
            [[(1,)], [(0,)]],
        ),
    ],
    ids=["text", "byte order", "bool", "structure"],
)
def test_the_default_fill_is_the_zero_of_a_dtype(arrays, expected):
    assert Padding("pad").stack(arrays, "x").tolist() == expected


def test_the_default_fill_of_times_is_nat():
    times = [np.array(["2020-01-01"], "M8[D]"), np.array([], "M8[D]")]
    assert np.isnat(Padding("pad").stack(times, "x")).tolist() == [[False], [True]]


@pytest.mark.parametrize("other", [np.ones(2, "f8"), np.ones((2, 2), "f4")])
def test_other_dtypes_and_axes_are_not_padded(other):
    arrays = [np.ones(2, "f4"), other]
    with pytest.raises(RaggedError, match="their dtypes and axes differ"):
        Padding("pad").stack(arrays, "x")


def test_padding_has_a_bound():
    arrays = [np.zeros((0, 10**9)), np.zeros((10**9, 0))]
    with pytest.raises(RaggedError, match="8,000,000,000,000,000,000 bytes"):
        Padding("pad").stack(arrays, "x")
