"""webshart's interface on datasets of the hub and of other servers."""

import asyncio
import pickle
import shutil

import pytest

import fastshard
import fastshard as webshart  # the only changed line in code for webshart
from support.inside.datasets import shards_of
from support.marks import not_sanitized
from support.servers.http import Server
from support.servers.hub import FakeHub, commit_of
from support.tars import write_tar

REPO = "owner/name"
SECRET = "hf_verysecret"

pytestmark = [pytest.mark.usefixtures("loopback"), not_sanitized]

FIRST = {
    "b.jpg": b"b" * 30_000,
    "a.jpg": b"a" * 30_000,
    "a.json": b'{"caption": "hi"}',
    "lone.json": b"{}",
}
SECOND = {"c.jpg": b"c" * 3000, "c.txt": b"t"}
THIRD = {"d.jpg": b"d"}


@pytest.fixture
def folder(tmp_path):
    """Return a local dataset: two shards of one file name, and a third."""
    for name in ("one", "two"):
        (tmp_path / "data" / name).mkdir(parents=True)
    folder = tmp_path / "data"
    write_tar(folder / "one" / "s.tar", FIRST)
    write_tar(folder / "two" / "s.tar", SECOND)
    write_tar(folder / "two" / "t.tar", THIRD)
    fastshard.build_index(f"{folder}/**", format="json")
    return folder


def files_below(folder, suffix=""):
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob(f"*{suffix}")
        if path.is_file()
    }


@pytest.fixture
def hub(folder):
    files = files_below(folder)
    tars = files_below(folder, ".tar")
    flat = {"s.json": b"{", "t.json": files["two/t.json"]}
    repos = {
        REPO: files,
        "owner/tars": tars,
        "owner/gated": files,
        "owner/indexes": files_below(folder, ".json"),
        "owner/flat": flat,
    }
    with FakeHub(repos, token=SECRET, gated={"owner/gated"}) as hub:
        yield hub


def discovered(hub, source=REPO, *args, **options):
    options = {"endpoint": hub.url, "timeout": 5.0, **options}
    return webshart.discover_dataset(source, *args, **options)


def asked(server, suffix):
    return [request.path for request in server.requests if suffix in request.path]


def tokens(server):
    return {request.headers.get("authorization") for request in server.requests}


def test_webshart_s_readme_runs(hub, monkeypatch, capsys):
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    dataset = webshart.discover_dataset(source=REPO, subfolder="two")
    print(f"Found {dataset.num_shards} shards")
    assert capsys.readouterr().out == "Found 2 shards\n"
    reader = dataset.open_shard(0)
    assert reader.read_file(0) == SECOND["c.jpg"]
    datasets = webshart.discover_datasets_batch(
        [REPO, "owner/none", REPO], subfolders=[None, None, "one"]
    )
    assert [ds and ds.num_shards for ds in datasets] == [3, None, 1]
    with pytest.raises(fastshard.RemoteError):
        webshart.discover_datasets_batch(["owner/none"], errors="raise")
    files = webshart.read_files_batch(datasets[0], [(0, 0), (1, 0), (2, 0)])
    assert files == [FIRST["a.jpg"], SECOND["c.jpg"], THIRD["d.jpg"]]
    processor = webshart.BatchProcessor()
    results = processor.process_dataset(REPO, batch_size=3, callback=len)
    sizes = [len(data) for m in (FIRST, SECOND, THIRD) for _, data in sorted(m.items())]
    assert results == sizes
    assert processor.process_dataset(REPO, max_files=1, subfolder="two") == [
        SECOND["c.jpg"]
    ]


@pytest.mark.parametrize("source", [REPO, f"hf://datasets/{REPO}"])
def test_a_remote_dataset_equals_the_local_one(hub, folder, source):
    here, there = webshart.discover_dataset(folder), discovered(hub, source)
    commit = commit_of(REPO, hub.repos[REPO])

    assert (there.name, there.is_remote) == (source, True)
    assert "remote=true" in repr(there)
    assert here.get_detailed_stats() == there.get_detailed_stats()
    assert there.quick_stats() == here.quick_stats()
    assert there.total_files == here.total_files
    for i in range(here.total_files):
        assert there.find_file_location(i) == here.find_file_location(i)
    for k in range(here.num_shards):
        ours, theirs = here.get_shard_info(k), there.get_shard_info(k)
        where = hub.resolve_url(REPO, ours["name"], commit)
        assert theirs.pop("tar_path") == where + ".tar"
        assert theirs.pop("json_path") == where + ".json"
        assert theirs == {key: ours[key] for key in theirs}
        a, b = here.open_shard(k), there.open_shard(k)
        assert b.filenames() == a.filenames()
        assert b.sample_filenames() == a.sample_filenames()
        for i in range(a.num_files):
            assert b.read_file(i) == a.read_file(i)
        for i in range(a.num_samples):
            assert b.read_sample_json(i) == a.read_sample_json(i)


def test_statistics_and_listings_read_no_shard(hub, folder):
    dataset = discovered(hub)
    size = sum(path.stat().st_size for path in folder.rglob("*.tar"))

    assert dataset.total_size == size
    assert not asked(hub, "/resolve/")
    assert dataset.list_files_in_shard(1) == sorted(SECOND)
    assert dataset.quick_stats() == (size, 7)
    assert asked(hub, ".json")
    assert not asked(hub, ".tar")


def test_a_shard_without_an_index_is_scanned(hub):
    del hub.repos[REPO]["one/s.json"]
    dataset = discovered(hub)
    with pytest.warns(UserWarning, match="1 shards .* no index"):
        assert dataset.quick_stats()[1] == 3
    assert dataset.get_shard_info(0)["json_path"] is None
    assert dataset.list_files_in_shard(0) == sorted(FIRST)
    assert not asked(hub, "one/s.json")
    assert not asked(hub, "fsi")

    hub.forget()
    strict = discovered(hub, strict_index=True)
    assert [strict.get_shard_info(k)["name"] for k in range(strict.num_shards)] == [
        "two/s",
        "two/t",
    ]
    with pytest.raises(fastshard.FastshardError, match=r"^No shards found in dataset"):
        discovered(hub, "owner/tars", strict_index=True)


@pytest.mark.parametrize(
    "text", [b"{", b'{"files": {"a.jpg": {"offset": 9000000, "length": 2}}}']
)
def test_a_damaged_index_is_ignored(hub, text):
    hub.repos[REPO]["one/s.json"] = text
    dataset = discovered(hub)
    with pytest.warns(fastshard.StaleIndexWarning, match=r"one/s\.json"):
        reader = dataset.open_shard(0)
    assert reader.read_file(0) == FIRST["a.jpg"]


def test_the_next_index_is_read_after_a_damaged_one(hub):
    hub.repos[REPO]["one/s.fsi"] = b"damaged"
    dataset = discovered(hub)
    hub.forget()
    with pytest.warns(fastshard.StaleIndexWarning, match=r"one/s\.fsi"):
        reader = dataset.open_shard(0)
    assert reader.read_file(0) == FIRST["a.jpg"]
    assert asked(hub, "one/s.json")


def test_an_index_that_is_not_listed_is_not_asked_for(hub):
    dataset = discovered(hub)
    assert dataset.total_files == 7
    assert not asked(hub, "dataset.fsi")


def test_binary_indexes_come_first(hub, folder):
    fastshard.build_index(f"{folder}/**", key="last")
    hub.repos[REPO] |= files_below(folder, ".fsi")
    dataset = discovered(hub)
    hub.forget()

    assert dataset.total_files == 7
    assert [path.rpartition("/")[2] for path in asked(hub, "/resolve/")] == [
        "dataset.fsi"
    ]
    assert dataset.list_files_in_shard(1) == sorted(SECOND)
    assert dataset.open_shard(0).filenames() == sorted(FIRST)
    assert not asked(hub, ".json")


def test_only_the_subfolder_is_listed(hub):
    dataset = discovered(hub, subfolder="two/")
    names = [dataset.get_shard_info(k)["name"] for k in range(dataset.num_shards)]
    assert names == ["two/s", "two/t"]
    with pytest.raises(fastshard.RemoteNotFoundError, match="no folder 'three'"):
        discovered(hub, subfolder="three")


@pytest.mark.parametrize("subfolder", [None, "two"])
@pytest.mark.parametrize("kind", ["repository", "url", "server", "directory"])
def test_indexes_can_be_elsewhere(hub, folder, tmp_path, kind, subfolder):
    with Server({f"/m/{k}": v for k, v in files_below(folder, ".json").items()}) as web:
        metadata = {
            "repository": "owner/indexes",
            "url": "hf://datasets/owner/indexes",
            "server": web.at("/m/"),
            "directory": folder,
        }[kind]
        dataset = discovered(
            hub, "owner/tars", SECRET, subfolder, metadata, strict_index=True
        )
        k = dataset.num_shards - 2
        assert dataset.list_files_in_shard(k) == sorted(SECOND)
        info = dataset.get_shard_info(k)
        assert info["name"] == "two/s"
        assert info["json_path"].endswith("/two/s.json")
        reader = dataset.open_shard(k)
        assert reader.read_file(0) == SECOND["c.jpg"]
        assert shards_of(dataset).shard(k).index.endswith("/two/s.json")
        assert tokens(web) <= {None}
        assert (kind == "server") == bool(web.requests)
        assert tokens(hub) == {f"Bearer {SECRET}"}
        assert tokens(hub.cdn) == {None}


def test_flat_indexes_are_found_by_unique_names(hub):
    dataset = discovered(hub, "owner/tars", metadata="owner/flat")
    where = [shards_of(dataset).index_option(k) for k in range(3)]
    assert where[:2] == ["none", "none"]
    assert where[2].endswith("/t.json")
    assert dataset.open_shard(0).filenames() == sorted(FIRST)


@pytest.mark.parametrize("subfolder", [None, "two"])
@pytest.mark.parametrize("kind", ["repository", "url", "server"])
def test_local_shards_can_have_remote_indexes(hub, folder, tmp_path, kind, subfolder):
    here = tmp_path / "here"
    shutil.copytree(folder, here, ignore=shutil.ignore_patterns("*.json", "*.fsi"))
    with Server({f"/m/{k}": v for k, v in files_below(folder, ".json").items()}) as web:
        metadata = {
            "repository": "owner/indexes",
            "url": "hf://datasets/owner/indexes",
            "server": web.at("/m/"),
        }[kind]
        dataset = discovered(hub, str(here), SECRET, subfolder, metadata)
        k = dataset.num_shards - 2
        assert not dataset.is_remote
        assert dataset.list_files_in_shard(k) == sorted(SECOND)
        info = dataset.get_shard_info(k)
        assert info["name"] == "two/s"
        assert info["json_path"].endswith("/two/s.json")
        assert info["tar_path"] == str(here / "two" / "s.tar")
        reader = dataset.open_shard(k)
        assert reader.read_file(0) == SECOND["c.jpg"]
        shard = shards_of(dataset).shard(k)
        assert (shard.mode, shard.index[-11:]) == ("mmap", "/two/s.json")
        assert dataset.total_size == sum(
            path.stat().st_size for path in (here / (subfolder or "")).rglob("*.tar")
        )
        assert webshart.read_files_batch(dataset, [(k, 0)]) == [SECOND["c.jpg"]]
        assert tokens(web) <= {None}
        assert (kind == "server") == bool(web.requests)
        assert tokens(hub) <= {f"Bearer {SECRET}"}


def test_local_shards_without_a_remote_index(hub, folder, tmp_path):
    here = tmp_path / "here"
    shutil.copytree(folder, here, ignore=shutil.ignore_patterns("one", "*.fsi"))
    write_tar(here / "new.tar", {"n.bin": b"new"})
    del hub.repos["owner/flat"]["s.json"]

    dataset = discovered(hub, str(here), SECRET, None, "owner/flat")
    names = [dataset.get_shard_info(k)["name"] for k in range(dataset.num_shards)]
    assert names == ["new", "two/s", "two/t"]
    files = [dataset.open_shard(k).read_file(0) for k in range(3)]
    assert files == [b"new", SECOND["c.jpg"], THIRD["d.jpg"]]
    strict = discovered(hub, str(here), SECRET, None, "owner/flat", strict_index=True)
    assert strict.num_shards == 2
    copy = pickle.loads(
        pickle.dumps(discovered(hub, str(here), None, None, "owner/flat"))
    )
    assert copy.open_shard(2).read_file(0) == THIRD["d.jpg"]


def test_a_remote_index_of_another_shard_is_ignored(hub, folder, tmp_path):
    here = tmp_path / "here"
    shutil.copytree(folder, here, ignore=shutil.ignore_patterns("*.json", "*.fsi"))
    write_tar(here / "two" / "s.tar", {"other.bin": b"other", "more.bin": b"m" * 9000})
    dataset = discovered(hub, str(here), SECRET, "two", "owner/indexes")
    with pytest.warns(fastshard.StaleIndexWarning, match=r"two/s\.json"):
        reader = dataset.open_shard(0)
    assert reader.filenames() == ["more.bin", "other.bin"]


def test_missing_metadata(hub, tmp_path):
    with pytest.raises(fastshard.RemoteNotFoundError):
        discovered(hub, hf_token=SECRET, metadata="owner/none")
    with pytest.raises(FileNotFoundError, match="no such directory"):
        discovered(hub, metadata=str(tmp_path / "none"))
    with Server({}) as web:
        dataset = discovered(hub, metadata=web.url)
        assert dataset.open_shard(0).read_file(0) == FIRST["a.jpg"]
        assert len(web.requests) <= 3


def token_of_the_process():
    return SECRET


def test_access_to_a_gated_dataset(hub):
    dataset = discovered(hub, "owner/gated", token_of_the_process)
    assert dataset.open_shard(0).read_file(0) == FIRST["a.jpg"]
    copy = pickle.loads(pickle.dumps(dataset))
    assert copy.open_shard(1).read_file(0) == SECOND["c.jpg"]
    for token in (None, "wrong"):
        refused = discovered(hub, "owner/gated", token)
        with pytest.raises(fastshard.RemoteError, match="accept its terms"):
            refused.open_shard(0)
        assert webshart.read_files_batch(refused, [(0, 0)]) == [None]


def test_the_token_is_never_shown(hub):
    dataset = discovered(hub, "owner/gated", SECRET)
    hub.token = "another"
    with pytest.raises(fastshard.RemoteError) as caught:
        dataset.open_shard(0)
    shown = [repr(dataset), str(caught.value), str(dataset.get_stats.__self__)]
    shown += [str(pickle.dumps(caught.value)), str(vars(dataset))]
    assert SECRET not in "\n".join(shown)
    with pytest.raises(fastshard.FastshardError, match="not pickled"):
        pickle.dumps(dataset)
    with pytest.raises(TypeError, match="both"):
        discovered(hub, hf_token=SECRET, token=SECRET)


def test_a_batch_is_read_concurrently(hub, tmp_path):
    members = {f"{i:03}.bin": bytes([i]) * 300_000 for i in range(12)}
    tar = write_tar(tmp_path / "large.tar", members).read_bytes()
    hub.repos["owner/tars"] |= {f"x/{i}.tar": tar for i in range(3)}
    dataset = discovered(hub, "owner/tars", subfolder="x")
    wanted = [(k, i) for i in range(12) for k in range(3)]
    hub.latency = hub.cdn.latency = 0.05
    assert len(webshart.read_files_batch(dataset, wanted[:3])) == 3
    assert hub.peak == 3
    hub.cdn.forget()

    assert webshart.read_files_batch(dataset, wanted) == [
        members[f"{i:03}.bin"] for _, i in wanted
    ]
    assert hub.cdn.peak >= 3


def test_errors_of_a_batch(hub):
    dataset = discovered(hub)
    commit = commit_of(REPO, hub.repos[REPO])
    del hub.repos[REPO]["two/s.tar"]
    hub.revisions = {REPO: {commit: hub.repos[REPO]}}
    wanted = [(0, 1), (1, 0), (9, 0), (2, 0), (0, 0)]

    found = webshart.read_files_batch(dataset, wanted)
    assert found == [FIRST["a.json"], None, None, THIRD["d.jpg"], FIRST["a.jpg"]]
    with pytest.raises(fastshard.RemoteError, match=r"two/s\.tar"):
        webshart.read_files_batch(dataset, wanted[1:2], errors="raise")


def test_discovery_can_be_awaited(hub):
    async def discover():
        return await webshart.discover_dataset_async(
            "owner/gated", SECRET, "two", strict_index=True, endpoint=hub.url
        )

    dataset = asyncio.run(discover())
    assert dataset.open_shard(0).read_file(0) == SECOND["c.jpg"]


def test_a_dataset_fsi_lists_shards_over_http(folder):
    for path in folder.rglob("*.json"):
        path.unlink()
    fastshard.build_index(f"{folder}/**", key="last")
    files = {f"/d/{name}": data for name, data in files_below(folder).items()}
    with Server(files) as web:
        dataset = webshart.discover_dataset(web.at("/d"), "secret")
        size = sum(path.stat().st_size for path in folder.rglob("*.tar"))
        assert dataset.quick_stats() == (size, 7)
        assert {request.path for request in web.requests} == {"/d/dataset.fsi"}
        info = dataset.get_shard_info(1)
        assert (info["name"], info["json_path"]) == ("two/s", web.at("/d/two/s.fsi"))
        assert dataset.open_shard(1).read_file(0) == SECOND["c.jpg"]
        assert tokens(web) == {None}
        told = webshart.discover_dataset(web.at("/d"), token="for the source")
        assert told.num_shards == 3
        assert "Bearer for the source" in tokens(web)
