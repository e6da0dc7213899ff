"""A loader gives the batches of `batches`: formats, orders, threads, states, errors."""

import io
import itertools
import json
import random

import numpy as np
import pytest

import fastshard
from fastshard import FastshardError
from support.builders import BUILDERS, npy
from support.loader.batches import assert_same, assert_same_batches
from support.marks import slow
from support.servers.http import Server
from support.tars import write_tar

COUNT = 110  # samples
THREADS = 1, 2, 8


def samples():
    """Arrays of one shape, and of three."""
    return [
        (
            f"k{i:04}",
            {
                "x": np.arange(40, dtype="f4") + 1000 * i,
                "y": np.arange(1 + i // 20 % 3, dtype="f4") + 1000 * i,
            },
        )
        for i in range(COUNT)
    ]


def picture(i, form):
    from PIL import Image

    image = Image.new("RGB", (24 + i % 3, 20), (i % 256, 80, 255 - i % 256))
    file = io.BytesIO()
    image.save(file, form)
    return file.getvalue()


def write_fields(folder):
    """Write shards whose samples have a field of each kind."""
    folder.mkdir()
    for start in range(0, COUNT, 25):
        members = {}
        for i in range(start, min(start + 25, COUNT)):
            key = f"k{i:04}"
            members[f"{key}.cls"] = str(i % 7).encode()
            members[f"{key}.jpg"] = picture(i, "JPEG")
            members[f"{key}.json"] = json.dumps({"n": i, "s": "x" * (i % 3)}).encode()
            members[f"{key}.npy"] = npy(np.arange(12, dtype="<i2").reshape(3, 4) * i)
            members[f"{key}.out.npy"] = npy(np.full((1 + i % 4, 2), i, "f8"))
            file = io.BytesIO()
            np.savez(file, a=np.arange(3) + i, b=np.float32(i))
            members[f"{key}.npz"] = file.getvalue()
            members[f"{key}.png"] = picture(i, "PNG")
            members[f"{key}.txt"] = f"text {i}".encode()
            members[f"{key}.bin"] = random.Random(i).randbytes(i % 50)
        write_tar(folder / f"f-{start:03}.tar", members)
    return folder


SOURCES = [*BUILDERS, "fields", "remote tar", "remote mds", "remote fields"]


@pytest.fixture(scope="module", params=SOURCES)
def source(request, tmp_path_factory):
    """Return an open dataset, and the names of a field and of all fields."""
    name = request.param.removeprefix("remote ")
    folder = tmp_path_factory.mktemp("equality") / "data"
    options = {}
    if name == "fields":
        write_fields(folder)
    else:
        BUILDERS[name].build(folder, samples())
        options = BUILDERS[name].options
    files = {}
    if name != request.param:
        paths = [path for path in folder.rglob("*") if path.is_file()]
        files = {f"/d/{path.relative_to(folder)}": path.read_bytes() for path in paths}
    with Server(files) as server:
        place = folder
        if files:
            place = f"{server.url}/d/"
            if name != "mds":
                shards = (path for path in sorted(files) if path.endswith(".tar"))
                place = [f"{server.url}{path}" for path in shards]
        with fastshard.open(place, **options) as ds:
            assert len(ds) == COUNT
            yield ds


def summary(sample):
    return {
        "key": sample.key,
        "sizes": [len(sample.view(field)) for field in sample],
        "sum": np.array([sum(sample.view(field)[:9]) for field in sample]),
    }


def pair(sample):
    return sample.key, np.float32(len(sample.view(next(iter(sample)))))


KINDS = {
    "raw": lambda ds: ds,
    "decoded": lambda ds: ds.decode(),
    "mapped": lambda ds: ds.map(summary),
    "mapped twice": lambda ds: ds.decode().map(lambda d: {**d, "n": len(d)}).map(dict),
    "tuples": lambda ds: ds.map(pair),
    "selected": lambda ds: ds.select_fields(next(iter(ds[0]))),
}
ORDERS = {
    "in order": lambda ds: ds,
    "shuffled": lambda ds: ds.shuffle(7, epoch=2),
    "block-shuffled": lambda ds: ds.shuffle(3, block=10),
    "sliced": lambda ds: ds[5:97:3],
    "reversed": lambda ds: ds[::-1],
    "positions": lambda ds: ds[[*range(60, 20, -1), 5, 5, 109, 0]],
    "rank": lambda ds: ds.shuffle(3).split_by_rank(1, 3),
    "last rank": lambda ds: ds.split_by_rank(3, 4, drop_last=False),
    "slice of a shuffle": lambda ds: ds.shuffle(5)[10:50].shuffle(2, epoch=1),
    "mix": lambda ds: fastshard.mix([ds.shuffle(1), ds[:30]], [3, 1], seed=5),
    "concatenation": lambda ds: ds[::-2] + ds.shuffle(2),
    "joined": lambda ds: fastshard.zip_by_key(ds.shuffle(4), ds),
}


def check_order(source, kind, order, rng):
    ds = ORDERS[order](KINDS[kind](source))
    size = rng.choice([3, 7, 16, 32, 64, 200])
    threads, ahead = rng.choice(THREADS), rng.randrange(4)
    count = assert_same_batches(ds, size, threads=threads, ahead=ahead)
    assert count == -(-len(ds) // size)


@pytest.mark.parametrize("order", ORDERS)
def test_every_format_and_order(request, source, order):
    rng = random.Random(request.node.name)
    check_order(source, rng.choice(list(KINDS)), order, rng)


@slow
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("kind", KINDS)
def test_every_format_kind_order_and_option(source, kind, order):
    ds = ORDERS[order](KINDS[kind](source))
    for threads, size, drop_last, ragged in itertools.product(
        THREADS, (1, 13, 64, 1000), (False, True), ("list", "pad")
    ):
        options = {"drop_last": drop_last, "ragged": ragged}
        assert_same_batches(ds, size, threads=threads, **options)


@pytest.fixture(scope="module")
def fields(tmp_path_factory):
    """Return shards whose samples have a field of each kind."""
    with fastshard.open(write_fields(tmp_path_factory.mktemp("fields") / "data")) as ds:
        yield ds


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("ragged", ["list", "pad"])
@pytest.mark.parametrize("drop_last", [False, True])
def test_options(fields, threads, ragged, drop_last):
    ds = fields.shuffle(3)
    options = {"ragged": ragged, "drop_last": drop_last}
    for part in (ds, ds.select_fields("out.npy"), ds[:7], ds[:32]):
        count = assert_same_batches(part, 16, threads=threads, **options)
        assert count == (len(part) // 16 if drop_last else -(-len(part) // 16))


def errors_of(batches):
    """Return the result of each call of next, or type and text of its error."""
    found = []
    while True:
        try:
            found.append(next(batches))
        except StopIteration:
            return found
        except Exception as error:
            found.append((type(error).__name__, str(error)))
            if len(found) > 1000:
                raise


@pytest.mark.parametrize("threads", THREADS)
def test_ragged_batches_raise_at_their_turn(fields, threads):
    ds = fields.select_fields("out.npy", "cls")[[0, 4, 8, 12, 1, 2, 3, 4, 5, 9, 13, 17]]
    found = errors_of(ds.loader(4, threads=threads, ragged="error"))
    batches = [ds[i : i + 4] for i in range(0, 12, 4)]
    expected = [errors_of(part.batches(4, ragged="error"))[0] for part in batches]
    assert [type(each) for each in expected] == [dict, tuple, dict]
    assert_same(found, expected)


@pytest.mark.parametrize("threads", THREADS)
def test_collate_of_ones_own(fields, threads):
    for collate in (len, lambda part: [sample.key for sample in part]):
        assert_same_batches(fields.shuffle(1), 16, threads=threads, collate=collate)
        assert_same_batches(fields.decode("txt"), 16, threads=threads, collate=len)


# ------------------------------------------------------------- images, tokens

IMAGES = {
    "natural sizes": {"field": "jpg"},
    "squashed": {"field": "jpg", "size": 16},
    "centre": {"field": ["jpg", "png"], "size": (8, 12), "crop": "center"},
    "random": {"field": "png", "size": 16, "crop": "random", "flip": True, "seed": 3},
    "gray": {"field": "png", "size": (9, 5), "mode": "L"},
}
IMAGE_ORDERS = (
    *("in order", "shuffled", "sliced", "rank"),
    *("slice of a shuffle", "mix", "concatenation", "joined"),
)


def image_dataset(fields, images, order):
    part = fields.select_fields("cls", "jpg", "png")
    if order in ("mix", "concatenation", "joined"):
        return ORDERS[order](part.images(**IMAGES[images]))
    return ORDERS[order](part).images(**IMAGES[images])


def plain(sample):
    """Return dicts of the fields, whose images are not decoded into a batch."""
    if isinstance(sample, tuple):
        return tuple(map(plain, sample))
    return {field: sample[field] for field in sample}


def check_images(fields, images, order, threads, size):
    ds = image_dataset(fields, images, order)
    assert_same_batches(ds, size, threads=threads)
    assert_same_batches(ds.map(plain), size, threads=threads)
    batches = ds.batches(size, ragged="list")
    next(batches)
    state = json.loads(json.dumps(batches.state_dict()))
    options = {"ragged": "list", "state": state}
    rest = list(ds.loader(size, threads=threads, **options))
    assert_same(rest, list(batches))


@pytest.mark.parametrize("images", IMAGES)
@pytest.mark.parametrize("order", IMAGE_ORDERS)
def test_images(fields, images, order):
    rng = random.Random(images + order)
    check_images(fields, images, order, rng.choice(THREADS), rng.choice([7, 16, 60]))


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("ragged", ["list", "pad"])
def test_images_of_two_sizes_in_a_batch(fields, threads, ragged):
    part = fields.select_fields("png")
    ds = fastshard.mix([part.images("png", 9), part.images("png", 8)], seed=1)
    asked = []

    def allocate(field, shape, dtype):
        asked.append(field)
        return np.empty(shape, dtype)

    options = {"ragged": ragged, "threads": threads}
    with ds.loader(16, allocate=allocate, **options) as loader:
        for found, expected in zip(loader, ds.batches(16, ragged=ragged), strict=True):
            assert_same(found, expected)
    assert len(asked) <= 2 * len(ds) // 16 + 2


@pytest.mark.parametrize("threads", THREADS)
def test_pictures_of_samples_that_a_function_keeps_do_not_change(fields, threads):
    images = fields.select_fields("png").images("png", (8, 12), crop="random")
    expected = {sample.key: sample["png"] for sample in images}
    kept = {}
    ds = images.map(lambda sample: kept.setdefault(sample.key, sample))
    for _ in range(2):
        assert_same_batches(ds, 7, threads=threads)
    assert_same({key: kept[key]["png"] for key in expected}, expected)


@slow
@pytest.mark.parametrize("images", IMAGES)
@pytest.mark.parametrize("order", IMAGE_ORDERS)
@pytest.mark.parametrize("threads", THREADS)
def test_images_in_many_batches(fields, images, order, threads):
    for size in (1, 7, 16, 64, 200):
        check_images(fields, images, order, threads, size)


@pytest.fixture(scope="module")
def documents(tmp_path_factory):
    """Return shards of documents of uint16, of changing lengths."""
    folder = tmp_path_factory.mktemp("documents")
    rng = random.Random(4)
    for start in range(0, COUNT, 25):
        members = {}
        for i in range(start, min(start + 25, COUNT)):
            tokens = np.arange(rng.randrange(60), dtype="<u2") + i
            members[f"k{i:04}.npy"] = npy(tokens)
            members[f"k{i:04}.bin"] = tokens.tobytes()
        write_tar(folder / f"t-{start:03}.tar", members)
    with fastshard.open(folder) as ds:
        yield ds


TOKENS = {
    "npy": {"field": "npy", "length": 33},
    "bin": {"field": "bin", "length": 33, "dtype": "<u2", "eos": 5},
    "documents": {"field": "npy", "length": 20, "stride": 20, "documents": True},
    "best fit": {"field": "npy", "length": 64, "pack": "best-fit", "documents": True},
    "last": {"field": "npy", "length": 50, "drop_last": False},
}


@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("order", ["in order", "shuffled", "sliced", "last rank"])
def test_tokens(documents, tokens, order):
    options = dict(TOKENS[tokens])
    windows = documents.tokens(options.pop("field"), options.pop("length"), **options)
    ds = windows[1::2] if order == "sliced" else ORDERS[order](windows)
    for threads in THREADS:
        assert_same_batches(ds, 7, threads=threads)
    for count in range(0, len(ds) // 7, 3):
        batches = ds.batches(7)
        list(itertools.islice(batches, count))
        state = json.loads(json.dumps(batches.state_dict()))
        rest = list(ds.loader(7, threads=2, state=state))
        assert_same(rest, list(batches))


# ------------------------------------------------------------- states


def keys_of(batches):
    return [key for batch in batches for key in batch["__key__"]]


CUT_ORDERS = {  # and their numbers of samples
    **dict.fromkeys(("in order", "shuffled", "block-shuffled"), COUNT),
    "slice of a shuffle": 40,
    "mix": 120,
    "concatenation": 165,
}
SHARES = 34  # of the cuts; the suite has one
CUTS = [
    (order, before, after, batch)
    for order, count in CUT_ORDERS.items()
    for before in (1, 2, 3, 5)
    for after in (1, 2, 4)
    for batch in range(count // (4 * before) + 1)
]


def check_cut(ds, before, after, batch, size, rng):
    """Stop all ranks after some batches; let other ranks read the rest."""
    keys, states = [], []
    for rank in range(before):
        part = ds.split_by_rank(rank, before, drop_last=False)
        make = rng.choice([part.batches, part.loader])
        iterator = make(size, **({} if make == part.batches else {"threads": 2}))
        keys += keys_of(itertools.islice(iterator, batch))
        states.append(json.dumps(iterator.state_dict()))
        iterator.close()
    assert len(set(states)) == 1
    state = json.loads(states[0])
    assert state["position"] == batch * size * before == len(keys)
    for rank in range(after):
        part = ds.split_by_rank(rank, after, drop_last=False)
        batches = part.batches(size + 1, state=state)
        loader = part.loader(size + 1, state=state, threads=rng.choice(THREADS))
        found = keys_of(loader)
        assert found == keys_of(batches)
        assert loader.state_dict() == batches.state_dict() | {"finished": True}
        keys += found
    assert sorted(keys) == sorted(keys_of(ds.batches(1000)))


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=slow) for seed in range(1, SHARES))]
)
def test_no_sample_is_lost_or_doubled_at_any_cut(fields, seed):
    """More than a thousand cut points, in shares of which the suite has one."""
    assert len(CUTS) >= 1000
    ds = fields.select_fields("cls")
    rng = random.Random(seed)
    for order, before, after, batch in CUTS[seed::SHARES]:
        part = ORDERS[order](ds)
        assert len(part) == CUT_ORDERS[order]
        check_cut(part, before, after, batch, 4, rng)


@pytest.mark.parametrize("kind", ["raw", "decoded"])
@pytest.mark.parametrize("order", ["mix", "concatenation", "slice of a shuffle"])
def test_states_of_loaders_and_batches_are_the_same(fields, kind, order):
    ds = ORDERS[order](KINDS[kind](fields.select_fields("cls", "npy")))
    whole = list(ds.batches(8))
    batches, loader = ds.batches(8), ds.loader(8, threads=2)
    for count in range(1, len(whole) + 1):
        next(batches), next(loader)
        state = json.loads(json.dumps(loader.state_dict()))
        assert state == batches.state_dict()
        if count % 4 == 1:
            rest = list(ds.loader(8, threads=3, state=state))
            assert_same(rest, whole[count:])
            assert_same(list(ds.batches(8, state=state)), whole[count:])
    with pytest.raises(StopIteration):
        next(loader)
    assert loader.state_dict() == batches.state_dict() | {"finished": True}


# ------------------------------------------------------------- damaged samples

DAMAGED = {3, 16, 17, 18, 19, 20, 21, 22, 23, 47, 63, 109}  # two of them whole batches


@pytest.fixture(scope="module")
def damaged(tmp_path_factory):
    """Return a shard in which some arrays and texts are damaged."""
    members = {}
    for i in range(COUNT):
        data = npy(np.full(5, i, "f4"))
        members[f"k{i:04}.cls"] = str(i).encode()
        members[f"k{i:04}.npy"] = data if i not in DAMAGED else b"not" + data[3:]
        members[f"k{i:04}.txt"] = b"t%d" % i
    path = tmp_path_factory.mktemp("damaged") / "d.tar"
    with fastshard.open(write_tar(path, members)) as ds:
        yield ds


def read_good(ds, positions):
    """Return the items that can be collated, their rows, and the other rows' errors."""
    items, rows, errors = [], [], {}
    for row, i in enumerate(positions):
        try:
            item = ds[i]
            fastshard.collate([item])
        except FastshardError as error:
            errors[row] = error
        else:
            items.append(item)
            rows.append(row)
    return items, rows, errors


DAMAGED_KINDS = {
    "raw": lambda ds: ds,
    "decoded": lambda ds: ds.decode(),
    "mapped": lambda ds: ds.map(lambda s: {"a": s.array("npy"), "k": s.key}),
    "shuffled": lambda ds: ds.shuffle(2),
    "mix": lambda ds: fastshard.mix([ds.decode(), ds[::3].decode()]),
}


@pytest.mark.parametrize("kind", DAMAGED_KINDS)
@pytest.mark.parametrize("threads", THREADS)
def test_damaged_samples_raise_at_the_turn_of_their_batch(damaged, kind, threads):
    ds = DAMAGED_KINDS[kind](damaged)
    with ds.loader(8, threads=threads) as loader:
        for start in range(0, len(ds), 8):
            positions = range(start, min(start + 8, len(ds)))
            items, _, errors = read_good(ds, positions)
            if errors:
                with pytest.raises(type(errors[min(errors)])) as caught:
                    next(loader)
                assert str(caught.value) == str(errors[min(errors)])
            else:
                assert_same(next(loader), fastshard.collate(items))
                assert loader.position == positions.stop
        with pytest.raises(StopIteration):
            next(loader)


@pytest.mark.parametrize("kind", DAMAGED_KINDS)
@pytest.mark.parametrize("threads", THREADS)
def test_damaged_samples_are_skipped(damaged, kind, threads):
    ds = DAMAGED_KINDS[kind](damaged)
    total = 0
    with ds.loader(8, threads=threads, on_error="skip") as loader:
        for start in range(0, len(ds), 8):
            positions = range(start, min(start + 8, len(ds)))
            items, _, errors = read_good(ds, positions)
            batch = next(loader)
            skipped = batch.pop("__skipped__")
            assert [each[0] - start for each in skipped] == sorted(errors)
            assert [each[2] for each in skipped] == [
                str(errors[row]) for row in sorted(errors)
            ]
            assert all(isinstance(each[1], str) and each[1] for each in skipped)
            if items:
                assert_same(batch, fastshard.collate(items))
            else:
                assert all(len(value) == 0 for value in batch.values())
            total += len(errors)
            assert (loader.position, loader.skipped) == (positions.stop, total)
            state = loader.state_dict()
            assert (state["position"], state.get("skipped", 0)) == (
                positions.stop,
                total,
            )
        assert next(loader, None) is None


@pytest.mark.parametrize("kind", DAMAGED_KINDS)
@pytest.mark.parametrize("threads", THREADS)
def test_damaged_samples_are_masked(damaged, kind, threads):
    ds = DAMAGED_KINDS[kind](damaged)
    with ds.loader(8, threads=threads, on_error="mask") as loader:
        for start in range(0, len(ds), 8):
            positions = range(start, min(start + 8, len(ds)))
            items, rows, errors = read_good(ds, positions)
            batch = next(loader)
            ok = batch.pop("__ok__")
            assert ok.dtype == bool
            assert ok.tolist() == [row not in errors for row in range(len(positions))]
            good = fastshard.collate(items) if items else {}
            for name, value in batch.items():
                assert len(value) == len(positions)
                if isinstance(value, np.ndarray):
                    assert not value[~ok].any()
                    found = value[ok]
                else:
                    assert all(value[row] is None for row in errors)
                    found = [value[row] for row in rows]
                if items:
                    assert_same(found, good[name])
            assert not items or list(batch) == list(good)
        assert next(loader, None) is None


@pytest.mark.parametrize("on_error", ["skip", "mask"])
def test_a_state_after_damaged_samples_is_read_by_both(damaged, on_error):
    ds = damaged.shuffle(4)
    whole = list(ds.loader(8, threads=2, on_error=on_error))
    for count in (1, 5, len(whole) - 1):
        loader = ds.loader(8, threads=2, on_error=on_error)
        for _ in range(count):
            next(loader)
        state = json.loads(json.dumps(loader.state_dict()))
        loader.close()
        rest = ds.loader(8, threads=2, on_error=on_error, state=state)
        keys = [batch["__key__"] for batch in rest]
        assert keys == [batch["__key__"] for batch in whole[count:]]
        batches = ds.batches(8, on_error="skip", state=state)
        found = keys_of(batches)
        assert found == [key for part in keys for key in part if key is not None]
        assert batches.state_dict() | {"finished": True} == rest.state_dict()
