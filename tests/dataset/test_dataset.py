"""Datasets: positions, keys, selection, members, errors, mapping limits."""

import copy
import gc
import json
import multiprocessing
import os
import pickle
import shutil
import warnings

import numpy as np
import pytest

import fastshard
from fastshard.dataset.shardset import mapping_limit
from support.inside.datasets import opened_shards
from support.memory import mappings_of
from support.tars import write_tar
from support.threads import in_threads
from support.workers import put_keys

SHARDS = 12  # natural order differs from lexical order
EACH = 5  # samples a shard


def sample_bytes(shard, i):
    return {
        f"{shard:02d}-{i}.jpg": b"j" * (100 * shard + i),
        f"{shard:02d}-{i}.json": json.dumps({"shard": shard, "i": i}).encode(),
    }


def write_dataset(folder, shards=SHARDS, each=EACH):
    folder.mkdir(exist_ok=True)
    for shard in range(shards):
        members = {}
        for i in range(each):
            members |= sample_bytes(shard, i)
        write_tar(folder / f"t-{shard}.tar", members)
    return folder


@pytest.fixture
def folder(tmp_path):
    return write_dataset(tmp_path / "data")


@pytest.fixture(params=["scanned", "indexed", "shard indexes only"])
def ds(request, folder):
    if request.param != "scanned":
        fastshard.build_index(folder)
    if request.param == "shard indexes only":
        (folder / "dataset.fsi").unlink()
    with fastshard.open(folder) as dataset:
        yield dataset


def expected_keys():
    return [f"{shard:02d}-{i}" for shard in range(SHARDS) for i in range(EACH)]


def keys_of(dataset):
    return [sample.key for sample in dataset]


def test_samples_come_in_natural_order_of_shards(ds):
    assert len(ds) == SHARDS * EACH
    assert keys_of(ds) == list(ds.keys()) == expected_keys()


def test_samples_hold_the_stored_bytes(ds):
    for i, sample in enumerate(ds):
        shard, at = divmod(i, EACH)
        stored = sample_bytes(shard, at)
        assert {f"{sample.key}.{field}": bytes(sample[field]) for field in sample} == (
            stored
        )


@pytest.mark.parametrize("i", [0, 1, EACH, -1, -SHARDS * EACH, np.int64(7), True])
def test_a_position_gives_a_sample(ds, i):
    assert ds[i].key == expected_keys()[i]


@pytest.mark.parametrize("i", [SHARDS * EACH, -SHARDS * EACH - 1, 10**30])
def test_a_position_out_of_range_is_an_index_error(ds, i):
    with pytest.raises(IndexError, match=r"out of range|cannot fit"):
        ds[i]


@pytest.mark.parametrize("wrong", [1.5, None, b"key", ["a"], [[1, 2]], {1: 2}])
def test_other_keys_are_a_type_error(ds, wrong):
    with pytest.raises(TypeError):
        ds[wrong]


@pytest.mark.parametrize(
    "chosen",
    [
        slice(3, 40, 7),
        slice(None, None, -1),
        slice(100, 200),
        [5, 3, 3, -1],
        (0, 59),
        np.array([2, 1], np.uint8),
        np.arange(60) % 3 == 0,
        [],
    ],
    ids=str,
)
def test_a_selection_is_a_dataset(ds, chosen):
    expected = np.array(expected_keys())[
        chosen
        if isinstance(chosen, slice)
        else np.array(chosen, dtype=None)
        if len(chosen)
        else np.array([], int)
    ]
    part = ds[chosen]
    assert isinstance(part, fastshard.Dataset)
    assert keys_of(part) == expected.tolist()
    assert len(part) == len(expected)


def test_a_selection_of_a_selection(ds):
    part = ds[10:50:2][np.array([3, 1, -1])][::-1]
    keys = expected_keys()[10:50:2]
    assert keys_of(part) == [keys[-1], keys[1], keys[3]]
    assert part[keys[3]].key == keys[3]
    assert keys[0] not in part


def test_a_mask_of_another_length_is_an_error(ds):
    with pytest.raises(IndexError, match="mask"):
        ds[np.array([True, False])]


def test_get_many_returns_a_list_in_order(ds):
    keys = expected_keys()
    for positions in ([7, 0, 7, -1], np.array([7, 0, 7, 59]), iter([7, 0, 7, 59])):
        found = ds.get_many(positions)
        assert isinstance(found, list)
        assert [sample.key for sample in found] == [keys[7], keys[0], keys[7], keys[59]]
    assert [s.key for s in ds.__getitems__([1])] == [keys[1]]


def test_samples_are_found_by_key(ds):
    assert ds["07-3"].position == 3
    assert "07-3" in ds
    assert "07-9" not in ds
    assert "\udc80\ud800" not in ds
    assert ds.keys().index("07-3") == 7 * EACH + 3
    with pytest.raises(fastshard.SampleNotFoundError, match="07-9"):
        ds["07-9"]


@pytest.mark.parametrize("indexed", [False, True])
def test_an_ambiguous_key_is_an_error(tmp_path, indexed):
    for shard in "ab":
        write_tar(tmp_path / f"{shard}.tar", {"same.txt": shard.encode()})
    if indexed:
        fastshard.build_index(tmp_path)
    ds = fastshard.open(tmp_path)
    with pytest.raises(fastshard.AmbiguousKeyError, match="2 times") as caught:
        ds["same"]
    assert caught.value.positions == [0, 1]
    assert pickle.loads(pickle.dumps(caught.value)).positions == [0, 1]
    assert [sample.text("txt") for sample in ds] == ["a", "b"]
    assert ds[1:]["same"].text("txt") == "b"


def test_members_are_a_sequence_too(ds):
    names = list(ds.members.keys())
    assert len(ds.members) == len(names) == 2 * SHARDS * EACH
    assert bytes(ds.members["07-3.jpg"]) == b"j" * 703
    assert ds.members[-1] == ds[-1]["json"]
    assert [bytes(v) for v in ds.members[2:4]] == [
        bytes(v) for v in ds.members.get_many([2, 3])
    ]
    assert "07-3.jpg" in ds.members
    assert sum(1 for _ in ds.members) == len(names)
    with pytest.raises(fastshard.MemberNotFoundError):
        ds.members["nothing"]
    with pytest.raises(IndexError):
        ds.members[len(names)]


def test_shards_are_a_sequence(ds):
    assert [os.path.basename(p) for p in ds.shards.paths] == [
        f"t-{i}.tar" for i in range(SHARDS)
    ]
    assert len(ds.shards[3]) == 2 * EACH
    assert ds.shards.index("t-3.tar") == 3
    assert ds.shards.index("t-3.tar", -SHARDS, -1) == 3
    assert len(ds.shards[2:4]) == 2


def test_stats_count(ds):
    sizes = [len(view) for view in ds.members]
    assert ds.stats() == {
        "shards": SHARDS,
        "samples": SHARDS * EACH,
        "members": len(sizes),
        "bytes": sum(sizes),
        "fields": {
            "jpg": {"kind": "image", "dtype": None, "shape": None},
            "json": {"kind": "json", "dtype": None, "shape": None},
        },
    }


def test_samples_have_the_selected_fields_only(ds):
    sample = ds.select_fields("json")[0]
    assert list(sample) == sample.keys() == ["json"]
    assert len(sample) == 1
    assert "jpg" not in sample
    with pytest.raises(fastshard.FieldNotFoundError):
        sample["jpg"]
    assert ds.select_fields("json", "jpg")[0].keys() == ["json", "jpg"]


def test_missing_fields_raise_or_are_left_out(tmp_path):
    members = {"a.jpg": b"1", "a.json": b"1", "b.jpg": b"2", "c.json": b"3"}
    write_tar(tmp_path / "x.tar", members)
    ds = fastshard.open(tmp_path)
    chosen = ds.select_fields("jpg", "json")
    assert chosen[0].key == "a"
    with pytest.raises(fastshard.FieldNotFoundError, match="json"):
        chosen[1]
    assert keys_of(ds.select_fields("jpg", missing="skip")) == ["a", "b"]
    assert keys_of(ds[::-1].select_fields("json", missing="skip")) == ["c", "a"]
    with pytest.raises(ValueError, match="missing"):
        ds.select_fields("jpg", missing="ignore")


def test_filter_sees_keys_and_sizes(ds):
    big = ds.filter(lambda key, sizes, info: sizes["jpg"] > 1000 and key[-1] in "13")
    assert keys_of(big) == [
        k for k in expected_keys() if int(k[:2]) >= 10 and k[-1] in "13"
    ]
    assert keys_of(big[::-1].filter(lambda key, *_: key > "11")) == ["11-3", "11-1"]


def test_filter_by_a_function_of_samples_has_a_hint(ds):
    for fn in (lambda sample: True, lambda: True, len):
        with pytest.raises(TypeError, match=r"fn\(key, sizes, info\).*pass a mask"):
            ds.filter(fn)
    with pytest.raises(TypeError, match="not a callable"):
        ds.filter(1)


def test_filter_reads_no_data(folder):
    fastshard.build_index(folder)
    ds = fastshard.open(folder)
    ds.filter(lambda key, sizes, info: True)
    touched = 0
    with open("/proc/self/smaps") as smaps:
        ours = False
        for line in smaps:
            if "-" in line.split()[0]:
                ours = f"{folder}/t-" in line and line.rstrip().endswith(".tar")
            elif ours and line.startswith("Rss:"):
                touched += int(line.split()[1])
    assert touched == 0


def test_map_and_decode_are_lazy_and_compose(ds):
    calls = []

    def double(item):
        calls.append(item["__key__"])
        return item["json"]["i"] * 2

    mapped = ds.decode("json").map(double)
    assert calls == []
    assert mapped[3] == 6
    assert calls == ["00-3"]
    assert mapped[[1, 2]].get_many([1]) == [4]
    with pytest.raises(fastshard.FastshardError, match="before"):
        mapped.select_fields("json")
    with pytest.raises(fastshard.FastshardError, match="before"):
        mapped.decode()
    assert len(mapped.filter(lambda key, sizes, info: key < "01")) == EACH


def test_decoded_samples_are_plain_values(folder):
    ds = fastshard.open(folder, decoders={"jpg": len})
    assert ds.decode()[7] == {
        "__key__": "01-2",
        "jpg": 102,
        "json": {"shard": 1, "i": 2},
    }
    assert ds[7].decode("jpg") == {"__key__": "01-2", "jpg": 102}
    copied = pickle.loads(pickle.dumps(fastshard.open(folder)[7]))
    assert copied.decode("json")["json"] == {"shard": 1, "i": 2}


def test_excluded_shards_have_no_samples(ds):
    rest = ds.exclude(["t-3.tar", 0, ds.shards.paths[1]])
    gone = ("00", "01", "03")
    assert keys_of(rest) == [k for k in expected_keys() if k[:2] not in gone]
    with pytest.raises(ValueError, match="found 0"):
        ds.exclude(["t-99.tar"])


def test_iteration_can_skip_unreadable_samples(folder):
    (folder / "t-5.tar").write_bytes(b"x" * 1024)
    ds = fastshard.open(folder)
    keys = [key for key in expected_keys() if not key.startswith("05")]
    with pytest.raises(fastshard.FormatError, match=r"t-5\.tar"):
        list(ds)
    iteration = ds.iter(on_error="skip")
    assert [sample.key for sample in iteration] == keys
    assert iteration.skipped == 1
    with pytest.raises(fastshard.FormatError, match=r"t-5\.tar"):
        len(ds)
    rest = ds.exclude(["t-5.tar"])
    assert keys_of(rest) == keys
    assert len(rest) == len(keys)


def test_iterating_before_counting_opens_one_shard_after_another(folder):
    ds = fastshard.open(folder)
    iteration = ds.iter(window=0)
    assert next(iteration).key == "00-0"
    assert sum(opened_shards(ds)) == 1
    assert [sample.key for sample in iteration] == expected_keys()[1:]


def test_skipped_samples_are_counted_and_move_no_positions(tmp_path):
    members = {"a.txt": b"1", "b.txt": b"2", "b.TXT": b"3", "c.txt": b"4"}
    write_tar(tmp_path / "x.tar", members)
    ds = fastshard.open(tmp_path)
    assert len(ds) == 3
    with pytest.raises(fastshard.FormatError, match="twice"):
        list(ds)
    with pytest.raises(fastshard.FormatError, match="twice"):
        ds[1]
    iteration = ds.iter(on_error="skip")
    assert [sample.key for sample in iteration] == ["a", "c"]
    assert iteration.skipped == 1
    seen = []
    iteration = ds.iter(on_error=lambda error, i: seen.append((i, str(error))))
    assert [sample.key for sample in iteration] == ["a", "c"]
    assert seen[0][0] == 1
    assert "b.TXT" in seen[0][1]
    assert ds[2].key == "c"
    with pytest.raises(ValueError, match="on_error"):
        ds.iter(on_error="ignore")


def test_a_shard_that_vanished_is_named(folder):
    fastshard.build_index(folder)
    ds = fastshard.open(folder)
    (folder / "t-7.tar").unlink()
    assert ds[0].key == "00-0"
    with pytest.raises(FileNotFoundError, match=r"t-7\.tar"):
        ds[7 * EACH]
    iteration = ds.iter(on_error="skip")
    assert len(list(iteration)) == (SHARDS - 1) * EACH
    assert iteration.skipped == EACH


def test_a_missing_shard_of_a_list_is_named_by_open(folder):
    with pytest.raises(FileNotFoundError, match=r"t-12\.tar"):
        fastshard.open(str(folder / "t-{0..12}.tar"))


def test_a_shard_that_changed_since_it_was_counted_is_an_error(folder):
    fastshard.build_index(folder)
    ds = fastshard.open(folder)
    assert len(ds) == SHARDS * EACH
    members = {}
    for i in range(EACH):
        members |= sample_bytes(7, i)
    members["07-0.jpg"] = b"k" * 700  # same sizes, other mtimes in the headers
    write_tar(folder / "t-7.tar", members, mtime=2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", fastshard.StaleIndexWarning)
        with pytest.raises(fastshard.StaleIndexError, match=r"t-7\.tar"):
            ds[7 * EACH]


def test_a_shard_that_changed_before_it_was_opened_warns(folder):
    fastshard.build_index(folder)
    size = (folder / "t-7.tar").stat().st_size
    write_tar(folder / "t-7.tar", {"new.txt": b"x" * 9000})
    assert (folder / "t-7.tar").stat().st_size == size  # tarfile pads to 10,240 bytes
    with pytest.warns(fastshard.StaleIndexWarning, match=r"t-7\.tar"):
        ds = fastshard.open(folder)
    with pytest.warns(fastshard.StaleIndexWarning, match=r"t-7\.fsi"):
        assert len(ds) == (SHARDS - 1) * EACH + 1
    assert ds["new"].text("txt") == "x" * 9000
    fastshard.build_index(folder)
    assert len(fastshard.open(folder)) == (SHARDS - 1) * EACH + 1


def test_a_copied_dataset_needs_no_new_index(folder, tmp_path):
    fastshard.build_index(folder)
    copied = shutil.copytree(folder, tmp_path / "copy", copy_function=shutil.copyfile)
    ds = fastshard.open(copied)
    assert len(ds) == SHARDS * EACH
    assert not any(opened_shards(ds))
    assert keys_of(ds) == expected_keys()
    assert ds["07-3"].key == "07-3"


def test_an_index_of_other_shards_warns_and_is_not_used(folder):
    fastshard.build_index(folder)
    write_tar(folder / "t-12.tar", sample_bytes(12, 0))
    with pytest.warns(fastshard.StaleIndexWarning, match=r"does not list .*t-12\.tar"):
        ds = fastshard.open(folder)
    assert len(ds) == SHARDS * EACH + 1
    (folder / "t-12.tar").unlink()
    (folder / "t-11.tar").unlink()
    with pytest.warns(fastshard.StaleIndexWarning, match=r"lists t-11\.tar"):
        ds = fastshard.open(folder)
    assert len(ds) == (SHARDS - 1) * EACH


def test_some_shards_use_the_index_of_all(folder):
    fastshard.build_index(folder)
    ds = fastshard.open([folder / "t-5.tar", folder / "t-2.tar"])
    assert keys_of(ds) == [
        *[f"05-{i}" for i in range(EACH)],
        *[f"02-{i}" for i in range(EACH)],
    ]
    assert ds["02-1"].key == "02-1"
    assert "07-0" not in ds


def test_counting_with_an_index_touches_no_shard(folder):
    fastshard.build_index(folder)
    ds = fastshard.open(folder)
    for path in folder.glob("*.tar"):
        path.rename(path.with_suffix(".gone"))
    assert len(ds) == SHARDS * EACH
    assert ds.stats()["samples"] == SHARDS * EACH


def test_mapped_shards_are_bounded(folder):
    fastshard.build_index(folder)
    ds = fastshard.open(folder, max_mapped=3)
    views = {}
    order = np.random.default_rng(0).permutation(len(ds))
    for i in order.tolist():
        view = ds[i]["jpg"]
        if i % EACH == 0:
            views[i] = view
        mapped = sum(mappings_of(folder / f"t-{k}.tar") > 0 for k in range(SHARDS))
        held = {j // EACH for j in views}
        assert mapped <= 3 + len(held)
    gc.collect()
    for i, view in views.items():
        assert view == b"j" * (100 * (i // EACH))
    assert sum(opened_shards(ds)) <= 3


def test_the_bound_follows_the_system():
    with open("/proc/sys/vm/max_map_count") as file:
        assert mapping_limit() == min(16_384, int(file.read()) // 4)
    with pytest.raises(ValueError, match="max_mapped"):
        fastshard.open("x.tar", max_mapped=0)


def test_views_outlive_the_dataset(folder):
    with fastshard.open(folder) as ds:
        view = ds[7]["jpg"]
    del ds
    gc.collect()
    assert view == b"j" * 102


def test_a_closed_dataset_raises(folder):
    ds = fastshard.open(folder)
    part = ds[:3]
    ds.close()
    for read in (lambda: ds[0], lambda: part[0], lambda: len(ds), lambda: list(ds)):
        with pytest.raises(fastshard.ClosedError):
            read()
    with pytest.raises(fastshard.ClosedError):
        pickle.dumps(ds)


def test_datasets_pickle_small(folder, monkeypatch, tmp_path):
    fastshard.build_index(folder)
    monkeypatch.chdir(folder)
    ds = fastshard.open("t-{0..11}.tar")
    whole = pickle.dumps(ds)
    assert len(whole) < 1000  # the paths are in dataset.fsi
    part = pickle.dumps(ds[::2].select_fields("json").decode())
    monkeypatch.chdir(tmp_path)
    assert keys_of(pickle.loads(whole)) == expected_keys()
    again = pickle.loads(part)
    assert again[1] == {"__key__": "00-2", "json": {"shard": 0, "i": 2}}
    assert len(again) == len(ds) // 2


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_datasets_are_read_by_other_processes(folder, method):
    ds = fastshard.open(folder)
    assert ds[0].key == "00-0"
    context = multiprocessing.get_context(method)
    queue = context.Queue()
    child = context.Process(target=put_keys, args=(ds, queue))
    child.start()
    assert queue.get(timeout=60) == (SHARDS * EACH, expected_keys(), "07-3")
    child.join()


def test_threads_share_a_dataset(folder):
    ds = fastshard.open(folder, max_mapped=2)
    keys = expected_keys()
    wrong = []

    def read(seed):
        for i in np.random.default_rng(seed).integers(0, len(keys), 300).tolist():
            sample = ds[i]
            if sample.key != keys[i] or sample.json("json")["i"] != i % EACH:
                wrong.append(i)

    in_threads(read, 8)
    assert wrong == []


def test_copies_share_the_shards(ds):
    again = copy.copy(ds)
    assert again[0].key == ds[0].key


def test_info_is_a_column(folder):
    fastshard.build_index(folder, hashes=True)
    ds = fastshard.open(folder)
    column = ds.info("sha256")
    assert column.shape == (len(ds),)
    import hashlib

    first = next(iter(ds[9]))
    assert column[9] == hashlib.sha256(ds[9][first]).hexdigest()
    with pytest.raises(fastshard.FastshardError, match="width"):
        ds.info("width")
    assert ds.info("width", 0).dtype.kind == "i"
    kept = ds.filter(lambda key, sizes, info: info["jpg"]["sha256"].startswith("0"))
    assert len(kept) < len(ds)


def test_verify_finds_a_changed_byte_by_its_hash(folder):
    fastshard.build_index(folder, hashes=True)
    assert fastshard.open(folder).verify(hashes=True) == []
    path = folder / "t-4.tar"
    status = path.stat()
    raw = bytearray(path.read_bytes())
    raw[512] ^= 1
    path.write_bytes(raw)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    ds = fastshard.open(folder)
    assert ds.verify() == []
    faults = ds.verify(hashes=True)
    assert [(fault.path, fault.offset) for fault in faults] == [(str(path), 512)]


def test_a_rebuilt_index_is_used(folder):
    ds = fastshard.open(folder, index="rebuild")
    assert (folder / "dataset.fsi").exists()
    assert all(shard.index is not None for shard in ds.shards)
    assert keys_of(ds) == expected_keys()


def test_index_none_reads_no_index(folder):
    fastshard.build_index(folder)
    ds = fastshard.open(folder, index="none")
    assert keys_of(ds) == expected_keys()
    assert all(shard.index is None for shard in ds.shards)


def test_an_index_with_another_key_rule_is_not_used(tmp_path):
    write_tar(tmp_path / "x.tar", {"a.seg.png": b"1", "a.png": b"2"})
    fastshard.build_index(tmp_path)
    assert keys_of(fastshard.open(tmp_path)) == ["a"]
    assert keys_of(fastshard.open(tmp_path, key="last")) == ["a.seg", "a"]
    fastshard.build_index(tmp_path, key="last", again=True)
    assert keys_of(fastshard.open(tmp_path)) == ["a"]
    assert keys_of(fastshard.open(tmp_path, key="last")) == ["a.seg", "a"]


def test_wrong_options_are_refused(folder):
    for option in ({"mode": "rw"}, {"key": "middle"}):
        with pytest.raises(ValueError, match="must be"):
            fastshard.open(folder, **option)
    index = folder / "t-0.fsi"
    with pytest.raises(ValueError, match="one index"):
        fastshard.open(folder, index=index)


@pytest.mark.parametrize("mode", ["mmap", "private", "pread"])
def test_every_mode_reads_the_same(folder, mode):
    fastshard.build_index(folder)
    with fastshard.open(folder, mode=mode) as ds:
        assert [bytes(sample["jpg"]) for sample in ds] == [
            b"j" * (100 * shard + i) for shard in range(SHARDS) for i in range(EACH)
        ]
        assert ds[0]["jpg"].readonly == (mode != "private")


def test_index_takes_the_bounds_of_a_sequence(tmp_path):
    ds = fastshard.open(write_dataset(tmp_path / "data", shards=3))
    for items, names in [
        (ds.shards, ds.shards.paths),
        (ds.members, list(ds.members.keys())),
        (ds.keys(), list(ds.keys())),
    ]:
        name, last = names[-1], len(names) - 1
        for bounds in [(), (-1,), (1,), (-2, len(names)), (0, 10**9)]:
            assert items.index(name, *bounds) == last
        for bounds in [(0, -1), (last + 1,), (0, last)]:
            with pytest.raises((ValueError, LookupError)):
                items.index(name, *bounds)
