"""webshart's interface on local datasets: discovery, files by number, batches."""

import asyncio
import json
import os
import pickle
import threading
import warnings

import pytest

import fastshard
import fastshard as webshart  # the only changed line in code for webshart
from support.inside.datasets import shards_of
from support.tars import write_tar

FIRST = {
    "b.jpg": b"bb",
    "a.jpg": b"a",
    "a.json": b'{"caption": "hi"}',
    "a.txt": b"text",
    "lone.json": b"{}",
    "x.seg.png": b"p",
    "x.png": b"q",
    "empty.bin": b"",
}
SECOND = {"c.jpg": b"c" * 3000, "c.txt": b"t"}
FILES = [*((0, i) for i in range(8)), (1, 0), (1, 1)]


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "sub").mkdir()
    write_tar(tmp_path / "s.tar", FIRST)
    write_tar(tmp_path / "sub" / "s.tar", SECOND)
    fastshard.build_index(f"{tmp_path}/**", format="json")
    return tmp_path


@pytest.fixture
def dataset(folder):
    return webshart.discover_dataset(str(folder))


def test_webshart_s_readme_runs(folder, capsys):
    dataset = webshart.discover_dataset(source=str(folder))
    print(f"Found {dataset.num_shards} shards")
    assert capsys.readouterr().out == "Found 2 shards\n"
    assert dataset.list_files_in_shard(0) == sorted(FIRST)
    samples = dataset.list_samples_in_shard(0)
    assert dataset.get_shard_sample_count(0) == len(samples)
    reader = dataset.open_shard(0)
    assert reader.read_file(0) == b"a"
    assert reader.read_sample(0) == b"a"
    assert reader.read_sample_json(0) == FIRST["a.json"]
    datasets = webshart.discover_datasets_batch([str(folder), str(folder / "none")])
    assert [ds and ds.num_shards for ds in datasets] == [2, None]
    files = webshart.read_files_batch(dataset, [(0, 0), (0, 1), (1, 0)])
    assert files == [b"a", FIRST["a.json"], SECOND["c.jpg"]]
    processor = webshart.BatchProcessor()
    results = processor.process_dataset(str(folder), batch_size=3, callback=len)
    assert results == [len(data) for _, data in sorted(FIRST.items())] + [3000, 1]


def test_shards_are_named_below_the_root_and_sorted(dataset, folder):
    assert [dataset.get_shard_info(k)["name"] for k in range(2)] == ["s", "sub/s"]
    assert dataset.get_shard_info(1) == {
        "name": "sub/s",
        "tar_path": str(folder / "sub/s.tar"),
        "json_path": str(folder / "sub/s.json"),
        "num_files": 2,
        "num_samples": 1,
        "size": (folder / "sub/s.tar").stat().st_size,
    }
    assert dataset.get_shard_by_name("sub/s") == dataset.get_shard_info(1)
    assert (dataset.name, dataset.is_remote) == (str(folder), False)


def test_files_are_numbered_by_sorted_name(dataset):
    reader = dataset.open_shard(0)
    assert reader.filenames() == sorted(FIRST)
    assert [reader.read_file(i) for i in range(reader.num_files)] == [
        FIRST[name] for name in sorted(FIRST)
    ]
    assert [dataset.find_file_location(i) for i in range(10)] == FILES


def test_samples_leave_paired_sidecars_out(dataset):
    samples = ["a.jpg", "b.jpg", "empty.bin", "lone.json", "x.png", "x.seg.png"]
    assert dataset.list_samples_in_shard(0) == samples
    reader = dataset.open_shard(0)
    assert reader.sample_filenames() == samples
    assert [reader.read_sample(i) for i in range(6)] == [FIRST[n] for n in samples]
    assert [reader.read_sample_json(i) for i in range(6)] == [
        FIRST["a.json"], *[None] * 5
    ]  # fmt: skip
    assert dataset.list_samples_in_shard(1) == ["c.jpg"]


@pytest.mark.parametrize("number", [8, -1, 100])
def test_numbers_out_of_range_are_index_errors(dataset, number):
    reader = dataset.open_shard(0)
    for read in (
        reader.read_file,
        reader.read_sample,
        reader.read_sample_json,
        dataset.open_shard,
        dataset.get_shard_info,
        dataset.list_files_in_shard,
        lambda n: dataset.find_file_location(n + 2 if n > 0 else n),
    ):
        with pytest.raises(IndexError, match="out of range"):
            read(number)


def test_discovery_and_statistics_open_no_shard(folder, monkeypatch):
    def refuse(*args, **options):
        raise AssertionError("a shard was opened")

    monkeypatch.setattr("fastshard.dataset.tarset.open_local_tar", refuse)
    dataset = webshart.discover_dataset(str(folder))
    size = sum(path.stat().st_size for path in folder.rglob("*.tar"))
    assert dataset.quick_stats() == (size, 10)
    assert dataset.total_files == 10
    assert dataset.total_size == size
    assert dataset.list_files_in_shard(1) == ["c.jpg", "c.txt"]


def test_statistics_warn_of_missing_indexes(folder):
    (folder / "s.json").unlink()
    dataset = webshart.discover_dataset(str(folder))
    with pytest.warns(UserWarning, match="1 shards .* no index"):
        _, files = dataset.quick_stats()
    assert files == 2
    assert dataset.total_files == 10
    assert dataset.quick_stats()[1] == 10
    assert dataset.get_shard_info(0)["json_path"] is None
    strict = webshart.discover_dataset(str(folder), strict_index=True)
    assert [strict.get_shard_info(k)["name"] for k in range(strict.num_shards)] == [
        "sub/s"
    ]


def test_statistics_have_the_shape_of_webshart_s(dataset, capsys):
    stats = dataset.get_stats()
    assert stats["total_shards"] == 2
    assert stats["shard_details"][1]["num_files"] == 2
    detailed = dataset.get_detailed_stats()
    assert detailed["total_files"] == 10
    assert detailed["average_files_per_shard"] == 5.0
    dataset.print_summary(detailed=True)
    out = capsys.readouterr().out
    assert "Total shards: 2" in out
    assert "sub/s" in out
    dataset.print_summary()


def test_indexes_can_be_elsewhere(folder, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("metadata")
    for path in folder.rglob("*.json"):
        to = elsewhere / path.relative_to(folder)
        to.parent.mkdir(exist_ok=True)
        path.rename(to)
    dataset = webshart.discover_dataset(str(folder), metadata=str(elsewhere))
    assert dataset.get_shard_info(1)["json_path"] == str(elsewhere / "sub/s.json")
    assert shards_of(dataset).shard(1).index == str(elsewhere / "sub/s.json")
    assert dataset.open_shard(1).read_file(0) == SECOND["c.jpg"]


def test_only_the_subfolder_is_searched(folder):
    dataset = webshart.discover_dataset(str(folder), subfolder="sub")
    assert [dataset.get_shard_info(k)["name"] for k in range(dataset.num_shards)] == [
        "sub/s"
    ]


@pytest.mark.parametrize("form", ["dict without filesize", "list", "dotted names"])
def test_every_form_of_json_works(tmp_path, form):
    prefix = "./" if form == "dotted names" else ""
    tar = write_tar(tmp_path / "t.tar", {f"{prefix}b.x": b"1", f"{prefix}a.x": b"22"})
    extents = {f"{prefix}b.x": (512, 1), f"{prefix}a.x": (1536, 2)}
    files = {n: {"offset": a, "length": size} for n, (a, size) in extents.items()}
    if form == "list":
        text = {"files": [{"path": name, **entry} for name, entry in files.items()]}
    else:
        text = {"files": files}
    (tmp_path / "t.json").write_text(json.dumps(text))
    dataset = webshart.discover_dataset(str(tmp_path))
    assert dataset.list_files_in_shard(0) == [f"{prefix}a.x", f"{prefix}b.x"]
    assert dataset.open_shard(0).read_file(0) == b"22"
    assert shards_of(dataset).shard(0).index == str(tar.with_suffix(".json"))


def test_bounds_are_checked_when_a_shard_is_first_read(folder):
    size = (folder / "s.tar").stat().st_size
    lie = {"filesize": size, "files": {"a.jpg": {"offset": 512, "length": 2**62}}}
    (folder / "s.json").write_text(json.dumps(lie))
    dataset = webshart.discover_dataset(str(folder))
    with pytest.warns(fastshard.StaleIndexWarning, match=r"s\.json"):
        reader = dataset.open_shard(0)
    assert reader.filenames() == sorted(FIRST)  # scanned
    assert dataset.list_files_in_shard(0) == sorted(FIRST)


def test_a_failed_read_is_none_or_raised(dataset):
    wanted = [(0, 1), (0, 99), (7, 0), (1, 0)]
    found = webshart.read_files_batch(dataset, wanted)
    assert found == [FIRST["a.json"], None, None, SECOND["c.jpg"]]
    for bad in wanted[1:3]:
        with pytest.raises(IndexError, match="out of range"):
            webshart.read_files_batch(dataset, [(0, 0), bad], errors="raise")
    with pytest.raises(ValueError, match="errors"):
        webshart.read_files_batch(dataset, [], errors="ignore")
    assert webshart.read_files_batch(dataset, []) == []


def test_a_batch_of_several_datasets(folder, dataset):
    other = webshart.discover_dataset(str(folder / "sub"))
    wanted = [(1, 0, 0), (0, 0, 0), (0, 1, 1), (2, 0, 0)]
    found = webshart.read_files_batch([dataset, other], wanted)
    assert found == [SECOND["c.jpg"], b"a", b"t", None]


def test_a_broken_shard_fails_alone(folder):
    (folder / "s.tar").write_bytes(b"x" * 1024)
    dataset = webshart.discover_dataset(str(folder))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", fastshard.StaleIndexWarning)
        assert webshart.read_files_batch(dataset, [(0, 0), (1, 1)]) == [None, b"t"]
        with pytest.raises(fastshard.FormatError, match=r"s\.tar"):
            webshart.read_files_batch(dataset, [(0, 0)], errors="raise")


def test_a_truncated_shard_is_an_error(tmp_path):
    from fastshard._core.dataset.gather import copy_members

    path = write_tar(tmp_path / "x.tar", {"a": b"1", "b": b"2" * 5000})
    with fastshard.open_shard(path, mode="pread") as shard:
        os.truncate(path, 2000)
        whole, error = copy_members([shard, shard], [0, 1])
        assert isinstance(whole, fastshard.FormatError)
        assert isinstance(error, fastshard.FormatError)
        assert (error.offset, error.member) == (2000, "b")
        assert pickle.loads(pickle.dumps(error)).offset == 2000
    assert isinstance(copy_members([shard], [0])[0], fastshard.ClosedError)


def test_batches_are_read_by_many_threads(dataset):
    wanted = [(0, i) for i in range(8)] * 50
    expected = [FIRST[name] for name in sorted(FIRST)] * 50
    wrong = []

    def read():
        for _ in range(20):
            if webshart.read_files_batch(dataset, wanted) != expected:
                wrong.append(1)

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_all_files_are_processed(folder):
    process = webshart.BatchProcessor().process_dataset
    assert len(process(str(folder))) == 10
    assert process(str(folder), max_files=2) == [b"a", FIRST["a.json"]]
    assert process(str(folder), batch_size=1, callback=bool).count(False) == 1
    with pytest.raises(ValueError, match="batch_size"):
        process(str(folder), batch_size=0)


def test_discovery_can_be_awaited(folder):
    async def discover():
        return await webshart.discover_dataset_async(str(folder))

    assert asyncio.run(discover()).num_shards == 2


@pytest.mark.parametrize("source", ["ftp://host/x", "hf://owner/name"])
def test_an_unsupported_source_is_refused(source, folder):
    with pytest.raises(fastshard.FastshardError):
        webshart.discover_dataset(source, hf_token="secret")
    with pytest.raises(fastshard.FastshardError):
        webshart.discover_datasets_batch([source], errors="raise")


def test_a_dataset_is_pickled(dataset):
    copy = pickle.loads(pickle.dumps(dataset))
    assert copy.list_files_in_shard(0) == dataset.list_files_in_shard(0)
    assert copy.open_shard(1).read_file(0) == SECOND["c.jpg"]


def test_missing_sources_are_errors(tmp_path):
    with pytest.raises(FileNotFoundError):
        webshart.discover_dataset(str(tmp_path / "nothing"))
    with pytest.raises(fastshard.FastshardError, match=r"^No shards found in dataset"):
        webshart.discover_dataset(str(tmp_path))


def error_of(call):
    """Return the text of the error that a call raises."""
    with pytest.raises(Exception, match=r"\w") as caught:  # of any type
        call()
    return str(caught.value)


def test_errors_begin_like_webshart_s(dataset, tmp_path):
    (tmp_path / "empty").mkdir()
    rival = pytest.importorskip("webshart")
    root = str(tmp_path)
    theirs, ours = rival.discover_dataset(root), webshart.discover_dataset(root)
    for call in (
        lambda module, dataset: module.discover_dataset(str(tmp_path / "empty")),
        lambda module, dataset: dataset.get_shard_by_name("none"),
        lambda module, dataset: dataset.get_shard_file_count(99),
        lambda module, dataset: dataset.find_file_location(999),
    ):
        first = error_of(lambda call=call: call(rival, theirs))
        second = error_of(lambda call=call: call(webshart, ours))
        count = f"Dataset has {theirs.num_shards} shards"  # older versions
        first = first.replace(count, f"Dataset has {ours.num_shards} shards")
        assert second.startswith(first)
    with pytest.raises(ValueError, match=r"^Shard 'none' not found in dataset"):
        ours.get_shard_by_name("none")
    with pytest.raises(IndexError, match=r"^Shard index 7 out of range"):
        ours.open_shard(7)
    with pytest.raises(IndexError, match=r"^File index 99 out of range"):
        ours.open_shard(0).read_file(99)
    with pytest.raises(IndexError, match=r"^Sample index 99 "):
        ours.open_shard(0).read_sample(99)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_results_are_webshart_s_own(folder, dataset):
    rival = pytest.importorskip("webshart")
    theirs = rival.discover_dataset(str(folder))
    names = ["s", "sub/s"][: theirs.num_shards]  # older versions
    for k, name in enumerate(names):
        info = theirs.get_shard_info(k)
        ours = dataset.get_shard_info(k)
        assert info["name"] == name
        assert {key: info[key] for key in info if key != "num_samples"} == {
            key: ours[key] for key in info if key != "num_samples"
        }
        assert theirs.list_files_in_shard(k) == dataset.list_files_in_shard(k)
        a, b = theirs.open_shard(k), dataset.open_shard(k)
        assert a.filenames() == b.filenames()
        for i in range(a.num_files):
            assert a.read_file(i) == b.read_file(i)
    assert set(theirs.get_stats()) == set(dataset.get_stats())
    assert set(theirs.get_detailed_stats()) == set(dataset.get_detailed_stats())
    wanted = [(0, 0), (0, 3), (0, 99)]
    assert rival.read_files_batch(theirs, wanted) == webshart.read_files_batch(
        dataset, wanted
    )
