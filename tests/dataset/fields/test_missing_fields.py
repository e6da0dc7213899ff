"""Fields that a sample lacks, and those that no sample has, in every way of reading."""

import io
import pickle

import numpy as np
import pytest

import fastshard
from fastshard import FieldNotFoundError
from support.builders import BUILDERS
from support.inside.datasets import iterator_of, pictures_of
from support.tars import write_tar

Image = pytest.importorskip("PIL.Image")
COUNT = 13
PER = 5
LACKING = {2, 3, 7, 12}  # samples with png in place of jpg
WITHOUT_CLS = {6}
BROKEN = {4, 9}  # pictures
BATCH = 4


def encode(i, kind):
    file = io.BytesIO()
    Image.fromarray(np.full((6, 8, 3), 9 * i, np.uint8)).save(file, kind)
    return file.getvalue()


def write(folder, *, broken=(), lacking=LACKING, without_cls=()):
    with fastshard.ShardWriter(folder / "s-{:02d}.tar", max_count=PER) as writer:
        for i in range(COUNT):
            sample = {"__key__": f"{i:03d}"}
            if i not in without_cls:
                sample["cls"] = i
            if i in lacking:
                sample["png"] = encode(i, "PNG")
            else:
                sample["jpg"] = b"no picture" if i in broken else encode(i, "JPEG")
            writer.write(sample)
    return folder


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    with fastshard.open(write(tmp_path_factory.mktemp("mixed"))) as ds:
        yield ds


@pytest.fixture(scope="module")
def damaged(tmp_path_factory):
    folder = write(tmp_path_factory.mktemp("damaged"), broken=BROKEN)
    with fastshard.open(folder) as ds:
        yield ds


@pytest.fixture(scope="module")
def ragged(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ragged")
    with fastshard.open(write(folder, lacking=(), without_cls=WITHOUT_CLS)) as ds:
        yield ds


def key_of(item):
    return item["__key__"] if isinstance(item, dict) else item.key


def iterate(ds, on_error="skip"):
    items = ds.iter(on_error=on_error)
    return [key_of(item) for item in items], items.skipped


def read_batches(ds, on_error="skip", **options):
    batches = ds.batches(BATCH, on_error=on_error, **options)
    return [key for batch in batches for key in batch["__key__"]], batches.skipped


def collate_keys(samples):
    return {"__key__": [key_of(sample) for sample in samples]}


def read_with_function(ds, on_error="skip"):
    return read_batches(ds, on_error, collate=collate_keys)


def read_loader(ds, on_error="skip", **options):
    with ds.loader(BATCH, threads=2, on_error=on_error, **options) as loader:
        batches = list(loader)
    skipped = sum(len(batch["__skipped__"]) for batch in batches)
    return [key for batch in batches for key in batch["__key__"]], skipped


def read_mask(ds):
    with ds.loader(BATCH, threads=2, on_error="mask") as loader:
        batches = list(loader)
    ok = np.concatenate([batch["__ok__"] for batch in batches])
    keys = [key for batch in batches for key in batch["__key__"]]
    return [key for key, good in zip(keys, ok, strict=True) if good], int((~ok).sum())


def read_iterable(ds, batch_size):
    torch_adapter = pytest.importorskip("fastshard.adapters.torch")
    from torch.utils.data import DataLoader

    kept = torch_adapter.IterableDataset(ds, batch_size, on_error="skip")
    keys = []
    for item in DataLoader(kept, batch_size=None, collate_fn=None):
        keys += item["__key__"] if batch_size else [key_of(item)]
    return keys, iterator_of(kept).skipped


WAYS = {
    "iter": iterate,
    "batches": read_batches,
    "a collate function": read_with_function,
    "loader": read_loader,
    "mask": read_mask,
    "DataLoader of samples": lambda ds: read_iterable(ds, None),
    "DataLoader of batches": lambda ds: read_iterable(ds, BATCH),
}
STAGES = {
    "select_fields": lambda ds, *fields: ds.select_fields(*fields),
    "decode": lambda ds, *fields: ds.decode(*fields),
    "images": lambda ds, field, *others: ds.images(field, 8),
    "images of a selection": lambda ds, *fields: ds.select_fields(*fields).images(
        fields[0], 8
    ),
    "decoded images": lambda ds, *fields: ds.images(fields[0], 8).decode(*fields),
    "mapped": lambda ds, field, *others: ds.map(
        lambda sample: {"__key__": sample.key, "x": bytes(sample[field])}
    ),
}
ORDERS = {
    "in order": lambda ds: ds,
    "shuffled": lambda ds: ds.shuffle(3),
    "selected": lambda ds: ds[::-1],
    "sum": lambda ds: ds[:6] + ds[6:],
    "shuffled sum": lambda ds: (ds[:6] + ds[6:]).shuffle(3),
    "mix": lambda ds: fastshard.mix([ds[:6], ds[6:]], seed=2),
}


def keys_without(*dropped):
    left = set(range(COUNT)).difference(*dropped)
    return {f"{i:03d}" for i in left}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("way", WAYS)
def test_a_lacking_sample_is_skipped_and_counted_in_every_way(mixed, way, stage, order):
    ds = ORDERS[order](STAGES[stage](mixed, "jpg", "cls"))
    keys, skipped = WAYS[way](ds)
    assert (set(keys), len(keys)) == (keys_without(LACKING), COUNT - len(LACKING))
    assert skipped == len(LACKING)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("way", WAYS)
def test_broken_pictures_are_skipped_and_counted_in_every_way(damaged, way, order):
    ds = ORDERS[order](damaged.images("jpg", 8))
    keys, skipped = WAYS[way](ds)
    assert set(keys) == keys_without(LACKING, BROKEN)
    assert skipped == len(LACKING | BROKEN)


@pytest.mark.parametrize("read", [iterate, read_batches, read_with_function])
def test_a_function_is_called_for_each_error(damaged, read):
    told = {}
    keys, skipped = read(
        damaged.images("jpg", 8), lambda error, i: told.update({i: error})
    )
    assert set(told) == LACKING | BROKEN
    assert {i for i in told if isinstance(told[i], FieldNotFoundError)} == LACKING
    assert skipped == len(told)
    assert set(keys) == keys_without(LACKING, BROKEN)


def test_errors_are_raised_by_default(mixed):
    for make in STAGES.values():
        ds = make(mixed, "jpg", "cls")
        for read in (
            lambda ds: ds[2],
            lambda ds: ds.get_many([0, 2]),
            lambda ds: ds.head(3),
            list,
            lambda ds: list(ds.batches(BATCH)),
            lambda ds: list(ds.loader(BATCH, threads=1)),
            lambda ds: list(ds.shuffle(1)),
        ):
            with pytest.raises(
                FieldNotFoundError, match=r"'jpg' in sample '0(02|03|07|12)"
            ):
                read(ds)


def test_iteration_decodes_pictures_as_batches_do(mixed):
    options = {"size": 4, "crop": "random", "flip": True, "seed": 5}
    images = mixed.images("jpg", **options).shuffle(2, epoch=1)
    expected = {}
    for batch in images.batches(BATCH, on_error="skip"):
        expected |= dict(zip(batch["__key__"], batch["jpg"], strict=True))
    found = {sample.key: sample for sample in images.iter(on_error="skip")}
    assert found.keys() == expected.keys()
    for key, sample in found.items():
        assert "jpg" in pictures_of(sample)
        np.testing.assert_array_equal(sample["jpg"], expected[key])


@pytest.mark.parametrize("stage", STAGES)
def test_a_field_that_no_sample_has_is_never_skipped(mixed, stage):
    for way in (iterate, read_batches, read_loader, read_mask):
        for order in ORDERS.values():
            with pytest.raises(FieldNotFoundError, match="'jgp' in sample") as caught:
                way(order(STAGES[stage](mixed, "jgp", "cls")))
            (note,) = (n for n in caught.value.__notes__ if "on_error" in n)
            assert "'jgp' in the first shards, which have" in note
            assert "did you mean 'jpg'" in note


def test_a_function_does_not_see_a_field_that_no_sample_has(mixed):
    seen = []
    with pytest.raises(FieldNotFoundError, match="jgp"):
        list(mixed.images("jgp").iter(on_error=lambda *error: seen.append(error)))
    assert seen == []


@pytest.mark.parametrize("stage", STAGES)
def test_single_samples_of_an_unknown_field_raise(mixed, stage):
    ds = STAGES[stage](mixed, "jgp", "cls")
    for read in (
        lambda: ds[0],
        lambda: ds.get_many([0]),
        lambda: pickle.loads(pickle.dumps(ds))[0] if stage != "mapped" else ds[0],
    ):
        with pytest.raises(FieldNotFoundError, match="did you mean 'jpg'"):
            read()


def test_a_field_of_later_samples_is_known(tmp_path):
    folder = write(tmp_path, lacking=set(range(PER)))  # all of the first shard
    with fastshard.open(folder) as ds:
        keys, skipped = iterate(ds.select_fields("jpg"))
        assert (len(keys), skipped) == (COUNT - PER, PER)


def test_samples_chosen_by_their_fields_need_no_first_shard(tmp_path):
    folder = tmp_path / "d"
    folder.mkdir()
    for k in range(6):
        with fastshard.ShardWriter(folder / f"{k}.tar") as writer:
            field = "png" if k == 5 else "jpg"
            writer.write({"__key__": f"{k}", field: encode(k, "PNG")})
    with fastshard.open(folder) as ds:
        chosen = ds.images("png").filter(lambda key, sizes, info: "png" in sizes)
        assert iterate(chosen) == (["5"], 0)
        assert [s.key for s in ds.select_fields("png", missing="skip")] == ["5"]


def test_a_selection_of_no_sample_is_an_error(mixed):
    with pytest.raises(FieldNotFoundError, match=r"'jgp'.*cls, jpg, png.*mean 'jpg'"):
        mixed.select_fields("cls", "jgp", missing="skip")
    # Each field is there, but no sample has both.
    assert len(mixed.select_fields("jpg", "png", missing="skip")) == 0
    assert len(mixed[2:4].select_fields("jpg", missing="skip")) == 0


def test_fields_beyond_the_selected_ones_are_refused_at_once(mixed):
    selected = mixed.select_fields("cls", "txt")
    for call in (
        lambda: selected.images("jpg"),
        lambda: selected.decode("cls", "jpg"),
        lambda: selected.tokens("jpg", 4),
        lambda: selected.select_fields("jpg"),
    ):
        with pytest.raises(FieldNotFoundError, match="'jpg' in the selected fields"):
            call()
    with pytest.raises(FieldNotFoundError, match="jpg"):
        list(mixed.select_fields("cls").map(lambda s: s["jpg"]).iter(on_error="skip"))


@pytest.mark.parametrize(
    "name", [name for name in BUILDERS if name not in ("tar", "packed")]
)
def test_formats_with_columns_refuse_unknown_fields_at_once(tmp_path, name):
    builder = BUILDERS[name]
    arrays = {"x": np.zeros(40, "f4"), "y": np.ones(4, "f4")}
    builder.build(tmp_path / "d", [(f"k{i}", arrays) for i in range(30)])
    x, absent = builder.name("x"), builder.name("X")
    with builder.open(tmp_path / "d") as ds:
        for call in (
            lambda: ds.select_fields(absent),
            lambda: ds.select_fields(absent, missing="skip"),
            lambda: ds.decode(x, absent),
            lambda: ds.images(absent),
            lambda: ds.tokens(absent, 4),
            lambda: (ds + ds).decode(absent),
        ):
            with pytest.raises(FieldNotFoundError, match=f"did you mean '{x}'"):
                call()
        assert ds.select_fields(x)[29].keys() == [x]


def raw_ways(ds):
    yield read_batches(ds)
    yield read_loader(ds)
    yield read_mask(ds)
    yield read_batches(ds.shuffle(4))
    yield read_loader(ds.shuffle(4))
    yield read_batches(ds[:3] + ds[3:])
    yield read_batches(fastshard.mix([ds[:3], ds[3:]]))


@pytest.mark.parametrize(
    "make", [lambda ds: ds, lambda ds: ds.images("jpg", 8), lambda ds: ds.decode()]
)
def test_batches_of_all_fields_skip_the_sample_that_lacks_one(ragged, make):
    for keys, skipped in raw_ways(make(ragged)):
        assert (set(keys), skipped) == (keys_without(WITHOUT_CLS), 1)
        assert len(keys) == COUNT - 1
    told = []
    read_batches(make(ragged), lambda error, i: told.append((type(error), i)))
    assert told == [(FieldNotFoundError, 6)]
    with pytest.raises(fastshard.FastshardError, match="006"):
        list(make(ragged).batches(BATCH))


@pytest.mark.parametrize("size", [1, 2, 3, 5, 13])
def test_a_batch_of_lacking_samples_alone_is_skipped(tmp_path, size):
    folder = write(tmp_path, lacking=(), without_cls={5, 6, 7, 12})
    with fastshard.open(folder) as ds:
        batches = list(ds.batches(size, on_error="skip"))
        assert all("cls" in batch for batch in batches)
        keys = [key for batch in batches for key in batch["__key__"]]
        assert set(keys) == keys_without({5, 6, 7, 12})
        with ds.loader(size, threads=1, on_error="skip") as loader:
            loaded = [key for batch in loader for key in batch.get("__key__", ())]
        assert loaded == keys


def test_batches_of_all_fields_keep_samples_of_equal_fields(tmp_path):
    # Of jpg and png samples, those that a stage asks for decide.
    folder = write(tmp_path, lacking={0, 1, 2, 3, 8})
    with fastshard.open(folder) as ds:
        for field, kept in (
            ("png", {0, 1, 2, 3, 8}),
            ("jpg", {4, 5, 6, 7, 9, 10, 11, 12}),
        ):
            keys, skipped = read_batches(ds.images(field, 8))
            assert set(keys) == {f"{i:03d}" for i in kept}
            assert skipped == COUNT - len(kept)


def test_fields_that_no_sample_has_together_are_an_error(tmp_path):
    pictures = {f"{i}.{'jpg' if i % 2 else 'png'}": b"picture" for i in range(6)}
    write_tar(tmp_path / "0.tar", pictures)
    ds = fastshard.open(tmp_path).images(["jpg", "png"], 8)
    with pytest.raises(fastshard.FieldNotFoundError, match="'jpg;png' is the first"):
        list(ds.iter(on_error="skip"))
    with pytest.raises(fastshard.FieldNotFoundError) as caught:
        list(ds)
    assert any("'jpg;png' is the first" in note for note in caught.value.__notes__)


@pytest.mark.parametrize("size", [4, 5, 20])
def test_skipped_samples_at_the_end_are_counted(tmp_path, size):
    samples = {
        f"{i:02d}.jpg": encode(i, "JPEG") if i < 10 else b"broken" for i in range(16)
    }
    write_tar(tmp_path / "0.tar", samples)
    batches = fastshard.open(tmp_path).images("jpg", 8).batches(size, on_error="skip")
    assert sum(len(batch["jpg"]) for batch in batches) == 10
    assert batches.skipped == 6


def test_a_first_batch_without_a_good_sample_has_the_fields(tmp_path):
    samples = {
        f"{i:02d}.jpg": encode(i, "JPEG") if i > 3 else b"broken" for i in range(12)
    }
    write_tar(tmp_path / "0.tar", samples)
    ds = fastshard.open(tmp_path).images("jpg", 8)
    with ds.loader(4, on_error="skip") as loader:
        assert [batch["jpg"].shape[0] for batch in loader] == [0, 4, 4]
