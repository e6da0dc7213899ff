"""Batches of JAX arrays that threads make."""

import json

import numpy as np
import pytest

import fastshard

jax = pytest.importorskip("jax")

from fastshard.adapters.jax import loader  # noqa: E402

COUNT, SIZE = 400, 16


@pytest.fixture(scope="module")
def ds(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    with fastshard.ShardWriter(folder / "{:04d}.tar", max_count=90) as writer:
        for i in range(COUNT):
            vector = np.full(512, i, "f4")
            writer.write({"__key__": f"{i:06d}", "npy": vector, "cls": i, "txt": "t"})
    return fastshard.open(folder)


@pytest.mark.parametrize("place", ["default", "device", "sharding"])
def test_a_batch_stays_as_it_is_when_later_ones_come(ds, place):
    device = None
    if place != "default":
        device = jax.devices()[0]
    if place == "sharding":
        device = jax.sharding.SingleDeviceSharding(device)
    shuffled = ds.shuffle(7)
    with loader(shuffled, SIZE, device=device) as arrays:
        found = list(arrays)
    for batch, expected in zip(found, shuffled.batches(SIZE), strict=True):
        assert isinstance(batch["npy"], jax.Array)
        assert np.array_equal(batch["npy"], expected["npy"])
        assert np.array_equal(batch["cls"], expected["cls"])
        assert batch["__key__"] == expected["__key__"]


def test_arrays_may_be_donated_to_a_step(ds):
    step = jax.jit(lambda x: x + 1, donate_argnums=0)
    sums = []
    with loader(ds.select_fields("npy"), SIZE) as arrays:
        sums = [float(step(batch["npy"])[:, 0].sum()) for batch in arrays]
    assert sum(sums) == sum(range(COUNT)) + COUNT


def test_results_of_donated_arrays_are_kept_whole(ds):
    step = jax.jit(lambda x: x + 1, donate_argnums=0)
    with loader(ds.select_fields("npy"), SIZE) as arrays:
        kept = [step(batch["npy"]) for _ in range(2) for batch in arrays]
    rows = np.concatenate([np.asarray(one)[:, 0] for one in kept])
    assert rows.tolist() == [i + 1 for i in range(COUNT)] * 2


def test_text_stays_as_it_is(ds):
    texts = ds.map(lambda sample: {"a": np.array(["text"]), "n": 1})
    with loader(texts, SIZE) as arrays:
        batch = next(arrays)
    assert isinstance(batch["a"], np.ndarray)
    assert isinstance(batch["n"], jax.Array)


@pytest.mark.parametrize("dtype", [">f4", "V5", [("a", "i4"), ("b", "f8")]])
def test_dtypes_that_jax_lacks_are_named(ds, dtype):
    arrays = ds.map(lambda sample: np.zeros(3, dtype))
    with (
        loader(arrays, SIZE) as batches,
        pytest.raises(fastshard.FastshardError, match="JAX cannot use an array of"),
    ):
        next(batches)


def test_a_state_continues_as_that_of_batches(ds):
    with loader(ds, SIZE, drop_last=True) as arrays:
        assert len(arrays) == COUNT // SIZE
        for _ in range(3):
            next(arrays)
        state = json.loads(json.dumps(arrays.state_dict()))
    with loader(ds, SIZE, state=state) as arrays:
        assert next(arrays)["cls"].tolist() == list(range(3 * SIZE, 4 * SIZE))


def test_options_are_checked(ds):
    with pytest.raises(ValueError, match="ahead"):
        loader(ds, SIZE, ahead=-1)


def test_batches_without_keys(ds):
    with loader(ds, 4, collate=fastshard.collate(keys=False)) as batches:
        assert "__key__" not in next(batches)
