"""Reprs of datasets: facts of local indexes, no counted ones."""

import functools
import os
import pickle
import random
import re
import shutil
import subprocess
import sys
import warnings

import numpy as np
import pytest

import fastshard
from fastshard.columnar import ShardedDatasetReader, ShardedDatasetWriter
from fastshard.dataset.display.text import describe_paths, describe_stage
from support.inside.datasets import opened_shards
from support.servers.http import Server
from support.tars import write_numbers, write_tar


@pytest.fixture
def folder(tmp_path):
    """Three shards with their own indexes, 25 samples of txt, npy and cls."""
    return write_numbers(tmp_path / "data", 25)


def resize(sample):
    return sample


class Tokenizer:
    """Callable object whose repr has an address, and raises."""

    def __call__(self, sample):
        return sample

    def encode(self, sample):
        return sample

    def __repr__(self):
        raise RuntimeError


class Hostile:
    """Callable object without a usable attribute."""

    def __getattribute__(self, name):
        raise RuntimeError(name)

    def __call__(self, sample):
        return sample


def test_a_repr_tells_samples_shards_fields_order_and_stages(folder):
    ds = fastshard.open(folder)
    where = f"{folder}/n-{{000..002}}.tar"
    assert repr(ds) == f"Dataset(25 samples in 3 shards; txt, npy, cls; {where})"
    part = ds.shuffle(7, 3).split_by_rank(1, 4, drop_last=True)
    assert repr(part.decode("cls").map(resize)) == (
        "Dataset(6 of 25 samples in 3 shards; txt, npy, cls; "
        "shuffled seed 7 epoch 3, rank 1 of 4 drop_last; "
        f"decode cls, map resize; {where})"
    )
    assert "; cls; " in repr(ds.select_fields("cls"))
    assert "shuffled seed 0 epoch 0 in blocks of 8; " in repr(ds.shuffle(block=8))
    assert "Dataset(7 of 25 samples in 3 shards; txt, npy, cls; [2:9]; " in repr(
        ds[2:9]
    )
    one = fastshard.open(folder / "n-002.tar")
    shown = f"Dataset(5 samples in 1 shard; txt, npy, cls; {folder}/n-002.tar)"
    assert repr(one) == shown


def test_an_index_of_the_dataset_tells_as_much(folder):
    before = repr(fastshard.open(folder))
    fastshard.build_index(folder)
    for path in folder.glob("n-*.fsi"):
        path.unlink()
    assert repr(fastshard.open(folder)) == before.replace(" txt, npy, cls;", "")


def test_an_index_of_the_dataset_tells_of_copies_too(folder, tmp_path):
    fastshard.build_index(folder)
    shutil.copytree(folder, tmp_path / "copy", copy_function=shutil.copyfile)
    copied = repr(fastshard.open(tmp_path / "copy"))
    assert copied == repr(fastshard.open(folder)).replace(
        f"{folder}/", f"{tmp_path}/copy/"
    )


def test_without_a_fresh_index_a_repr_tells_shards_only(folder):
    unknown = f"Dataset(3 shards; {folder}/n-{{000..002}}.tar)"
    assert repr(fastshard.open(folder, index="none")) == unknown
    shard = folder / "n-001.tar"
    status = os.stat(shard)
    shard.write_bytes(shard.read_bytes())  # another ctime
    os.utime(shard, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert repr(fastshard.open(folder)) == (
        f"Dataset(3 shards; txt, npy, cls; {folder}/n-{{000..002}}.tar)"
    )
    for path in folder.glob("*.fsi"):
        path.unlink()
    ds = fastshard.open(folder)
    assert repr(ds) == unknown
    len(ds), ds[3], list(ds)
    assert repr(ds) == unknown


@pytest.mark.parametrize("indexed", [True, False])
def test_a_repr_is_the_same_after_counting_pickling_and_elsewhere(
    folder, indexed, monkeypatch
):
    monkeypatch.chdir(folder.parent)
    ds = fastshard.open("data", index="auto" if indexed else "none").shuffle(3)[:9]
    shown = repr(ds)
    fresh = fastshard.open("data", index="auto" if indexed else "none")
    before = repr(fresh)
    len(fresh), fresh[2], list(fresh), fresh.fields, fresh.stats()
    assert repr(fresh) == before
    assert repr(pickle.loads(pickle.dumps(ds))) == shown == repr(ds)
    code = (
        "import sys, pickle, fastshard\n"
        "ds = fastshard.open(sys.argv[1], index=sys.argv[2]).shuffle(3)[:9]\n"
        "len(ds), ds[0]; print(repr(ds))"
    )
    option = "auto" if indexed else "none"
    command = [sys.executable, "-c", code, "../data", option]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == shown


def test_places_and_orders_differ(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "other")
    ds = fastshard.open(folder)
    names = [f"{folder}/n-{k:03}.tar" for k in range(3)]
    datasets = [
        ds,
        fastshard.open(tmp_path / "other"),
        fastshard.open(names[:2]),
        fastshard.open(names[::2]),
        fastshard.open(names[::-1]),
        fastshard.open(folder, key="last"),
        fastshard.open(folder, lower=False),
        ds.exclude([0]),
        ds.shuffle(1),
        ds.shuffle(1, 1),
        ds.shuffle(1, block=2),
        ds[:9],
        ds[:9:2],
        ds[::-1],
        ds[3::-1],
        ds[[1, 2, 3]],
        ds[[1, 3, 2]],
        ds.shuffle(1)[:9],
        ds.split_by_rank(0, 2),
        ds.split_by_rank(0, 2, drop_last=True),
        ds.split_by_rank(0, 2, drop_last=False),
        ds.split_by_rank(1, 2),
        *ds.split([0.5, 0.5]),
        ds.resume(ds.state_dict(3)),
        ds.select_fields("txt"),
        ds.map(resize),
        ds.decode(),
        ds + ds,
        fastshard.mix([ds, ds]),
        fastshard.mix([ds, ds], seed=1),
        fastshard.mix([ds, ds], [1, 2]),
        fastshard.mix([ds, ds], [1, 2], stop="all"),
        fastshard.zip_by_key(ds, ds),
        fastshard.zip_by_key(ds, ds, strict=False),
    ]
    shown = [repr(one) for one in datasets]
    assert len(set(shown)) == len(shown)
    assert not any("\n" in text or " 0x" in text for text in shown)


def test_stages_have_names_without_addresses():
    tokenizer = Tokenizer()
    for stage, name in (
        (resize, "map resize"),
        (lambda sample: sample, "map <lambda>"),
        (functools.partial(resize), "map resize"),
        (functools.partial(functools.partial(tokenizer)), "map Tokenizer"),
        (tokenizer, "map Tokenizer"),
        (tokenizer.encode, "map Tokenizer.encode"),
        (len, "map len"),
        (dict, "map dict"),
        (np.sqrt, "map sqrt"),
        (Hostile(), "map Hostile"),
    ):
        assert describe_stage(stage) == name


@pytest.mark.parametrize(
    ("names", "shown"),
    [
        (["a.tar"], "/d/a.tar"),
        (["a.tar", "b.tar"], "/d/{a.tar,b.tar}"),
        ([f"a-{i}.tar" for i in range(8, 12)], "/d/a-{8..11}.tar"),
        ([f"a-{i:03}-of-120.tar" for i in range(120)], "/d/a-{000..119}-of-120.tar"),
        ([f"s/{i:02}/x.tar" for i in range(5)], "/d/s/{00..04}/x.tar"),
        ([f"7{i}.tar" for i in range(5)], "/d/{70..74}.tar"),
        ([f"a-{i}.tar" for i in (1, 2, 3, 5)], None),
        (["a-1.tar", "a-02.tar", "a-03.tar", "a-4.tar"], None),
        ([f"a-{i}.tar" for i in (4, 3, 2, 1)], None),
        (["b", "a", "c", "d"], None),
    ],
)
def test_paths_are_a_pattern_or_a_digest(names, shown):
    found = describe_paths([f"/d/{name}" for name in names], "/d")
    if shown is None:
        assert re.fullmatch(r"/d \([0-9a-f]{8}\)", found)
        assert found != describe_paths(
            [f"/d/{name}" for name in sorted(names)], "/d"
        ) or (sorted(names) == names)
    else:
        assert found == shown


def test_a_repr_is_one_printable_line(tmp_path):
    root = tmp_path / "a\nb\x1b"
    write_tar(root.parent / "x.tar", {"1.\x1b[31m\n": b"1"})
    root.mkdir()
    shutil.move(root.parent / "x.tar", root / "x.tar")
    fastshard.build_index(root)
    ds = fastshard.open(root)
    for text in (repr(ds), repr(ds[0]), repr(ds + ds), repr(ds.shards)):
        assert text.isprintable(), text


def test_damaged_indexes_are_shown_as_none_or_as_they_were(folder):
    rng = random.Random(0)
    fastshard.build_index(folder)
    whole = repr(fastshard.open(folder))
    assert "25 samples in 3 shards" in whole
    for path in (folder / "dataset.fsi", folder / "n-000.fsi"):
        data = path.read_bytes()
        for _ in range(100):
            damaged = bytearray(data)
            damaged[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
            path.write_bytes(
                damaged[: rng.choice([len(data), rng.randrange(len(data))])]
            )
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", fastshard.StaleIndexWarning)
                shown = repr(fastshard.open(folder))
            assert shown in (
                whole,
                whole.replace("25 samples in ", ""),
                whole.replace(" txt, npy, cls;", ""),
                whole.replace(" txt, npy, cls;", "").replace("25 samples in ", ""),
            )
        path.unlink()


def test_a_repr_never_raises(folder):
    ds = fastshard.open(folder)
    many = [ds, ds + ds, fastshard.mix([ds, ds[:3]]), fastshard.zip_by_key(ds, ds)]
    many += [ds.keys(), ds.members, ds.shards, ds.shards[0], ds.shards[0].samples]
    many += [iter(ds), iter(ds + ds), ds.batches(4), ds[0], (ds + ds).keys()]
    many += [fastshard.open(folder), fastshard.open(folder, index="none")]
    before = [repr(one) for one in many[:4]]
    for path in folder.glob("*.fsi"):
        path.write_bytes(path.read_bytes()[:100])
    untold = fastshard.open(folder)
    assert repr(untold) == f"Dataset(3 shards; {folder}/n-{{000..002}}.tar)"
    ds.close()
    assert repr(ds) == before[0][:-1] + ", closed)"
    shutil.rmtree(folder)
    for one in many:
        assert repr(one)


def test_a_directory_that_was_deleted_is_shown(tmp_path, monkeypatch):
    gone = tmp_path / "gone"
    gone.mkdir()
    for name in ("x.tar", "y.tar"):
        write_tar(gone / name, {"1.txt": b"1"})
    monkeypatch.chdir(gone)
    ds, other = fastshard.open("x.tar"), fastshard.open(["x.tar", "y.tar"])
    shutil.rmtree(gone)
    assert "1 shard; " in repr(ds)
    assert "2 shards; " in repr(other)


def test_a_remote_dataset_is_shown_without_requests_and_secrets(folder):
    fastshard.build_index(folder)
    files = {f"/d/{path.name}": path.read_bytes() for path in folder.iterdir()}
    with Server(files) as server:
        ds = fastshard.open(f"{server.url}/d/n-{{000..002}}.tar?sig=secret")
        asked = len(server.requests)
        shown, html = repr(ds.shuffle(3)), ds._repr_html_()
        assert len(server.requests) == asked
        assert "secret" not in shown + html
        assert (
            f"3 shards; shuffled seed 3 epoch 0; {server.url}/d/n-{{000..002}}" in shown
        )
        assert html.count("n-{000..002}.tar") == 1
        len(ds), ds[3]["txt"]
        assert repr(ds.shuffle(3)) == shown


def test_the_description_of_many_shards_opens_none(tmp_path):
    paths = [str(tmp_path / f"x-{i:05}.tar") for i in range(10_000)]
    write_tar(tmp_path / paths[0], {"1.txt": b"1"})
    for path in paths[1:]:
        os.link(paths[0], path)
    ds = fastshard.open(paths)
    assert repr(ds) == f"Dataset(10,000 shards; {tmp_path}/x-{{00000..09999}}.tar)"
    assert not any(opened_shards(ds))


def test_columnar_datasets_know_their_samples_and_fields(tmp_path):
    root = tmp_path / "c"
    with ShardedDatasetWriter(root) as writer:
        writer.add_fields(["image", "label"])
        for i in range(5):
            writer.add_sample({"image": np.zeros((2, 3)), "label": np.int64(i)})
        assert repr(writer) == f"ShardedDatasetWriter({root}; open)"
    ds = fastshard.open(root)
    shown = f"Dataset(5 columnar samples; image, label; {root})"
    assert repr(ds) == shown
    assert opened_shards(ds) == [False]  # no row was read
    assert len(ds) == 5
    assert repr(ds) == repr(pickle.loads(pickle.dumps(ds))) == shown
    assert repr(ds[0]).startswith("Sample('")
    ds.close()
    assert repr(ds) == shown[:-1] + ", closed)"
    with ShardedDatasetReader(root) as reader:
        assert repr(reader) == f"ShardedDatasetReader(image, label; {root})"
    assert repr(reader) == f"ShardedDatasetReader(image, label; {root}; closed)"
    unseen = fastshard.open(root)
    unseen.close()
    assert repr(unseen) == f"Dataset(columnar samples; image, label; {root}, closed)"


def test_combinations_show_their_parts(folder):
    ds = fastshard.open(folder)
    part = repr(ds)
    assert repr(ds + ds.shuffle(3)) == f"Concat({part}, {ds.shuffle(3)!r})"
    assert repr((ds + ds).shuffle(3).map(len)) == (
        f"Concat({part}, {part}; shuffled seed 3 epoch 0; map len)"
    )
    mixed = fastshard.mix([ds, ds], [1, 2], 5, stop="all")
    assert repr(mixed) == f"Mix({part}, {part}; seed 5 weights [1.0, 2.0] stop all)"
    assert repr(fastshard.zip_by_key(ds, ds)[:3]) == f"Zip({part}, {part}; [:3])"
    assert len(repr(sum([ds] * 1000))) < 10 * len(part)
    deep, other = ds, ds[:3]
    for _ in range(9):
        deep, other = fastshard.mix([deep, deep]), fastshard.mix([other, other])
    assert len(repr(deep)) < 5000
    assert repr(deep) != repr(other)
    assert repr(sum([ds] * 9)) != repr(sum([*[ds] * 8, ds[:3]]))


def test_samples_shards_and_iterators_have_reprs(folder):
    ds = fastshard.open(folder)
    assert repr(ds[3]) == "Sample('000003'; txt, npy, cls)"
    assert repr(pickle.loads(pickle.dumps(ds[3]))) == "Sample('000003'; txt, npy, cls)"
    shard = ds.shards[0]
    path = f"{folder}/n-000.tar"
    size = os.path.getsize(path)
    assert repr(shard) == f"TarShard('{path}'; 30 members, {size:,} bytes; mmap)"
    shard.close()
    assert repr(shard) == f"TarShard('{path}'; closed)"
    it = iter(fastshard.open(folder))
    next(it)
    assert repr(it) == "PrefetchIterator(position 1)"
    batches = fastshard.open(folder).batches(4)
    next(batches)
    assert repr(batches) == "BatchIterator(position 4; 4 each)"
    writer = fastshard.ShardWriter(folder / "w.tar")
    writer.write({"__key__": "1", "txt": "x"})
    assert repr(writer) == f"ShardWriter(1 samples; {folder}/w.tar; open)"
    writer.close()


def test_wide_samples_are_cut(tmp_path):
    write_tar(tmp_path / "x.tar", {f"1.{'f' * 70}{i:03}": b"" for i in range(100)})
    ds = fastshard.open(tmp_path)
    assert repr(ds[0]).endswith(", ... 88 more)")
    assert len(repr(ds[0])) < 1000


def test_prompts_complete_fields_names_and_keys(folder):
    ds = fastshard.open(folder)
    assert ds._ipython_key_completions_() == []  # opens no shard
    assert ds[0]._ipython_key_completions_() == ["txt", "npy", "cls"]
    shard = ds.shards[0]
    assert shard._ipython_key_completions_()[:2] == ["000000.txt", "000000.npy"]
    assert shard.samples._ipython_key_completions_()[:2] == ["000000", "000001"]
    assert ds._ipython_key_completions_() == [f"{i:06}" for i in range(10)]
    assert ds.shuffle()._ipython_key_completions_() == []
    shard.close()
    assert shard._ipython_key_completions_() == []


def test_dir_lists_public_names_only():
    found = dir(fastshard)
    assert {*fastshard.__all__, "columnar", "errors"} <= set(found)
    assert [name for name in found if name.startswith("_")] == ["__version__"]
    assert not {"import_module", "register"} & set(found)
    for name in found:
        getattr(fastshard, name)
