"""Shard lists of wids, read and written, compared with its own tool and reader."""

import hashlib
import json
import shutil
from pathlib import Path

import pytest

import fastshard
from fastshard.index.wids import WidsShard, read_wids, write_wids
from support.paths import DATA
from support.tars import write_tar

FOREIGN = DATA / "foreign"  # written by make.py there


@pytest.fixture
def shards(tmp_path):
    for shard in range(3):
        write_tar(tmp_path / f"t-{shard}.tar", {f"{shard}{i}.txt": b"1" for i in "abc"})
    return tmp_path


def test_a_shard_list_is_a_source(shards):
    [path] = fastshard.build_index(shards, format="wids")
    text = json.loads(Path(path).read_text())
    assert text["wids_version"] == 1
    assert text["shardlist"][1] == {
        "url": "t-1.tar",
        "nsamples": 3,
        "filesize": (shards / "t-1.tar").stat().st_size,
    }
    ds = fastshard.open(path)
    assert [sample.key for sample in ds][:4] == ["0a", "0b", "0c", "1a"]


def test_shard_lists_nest_and_have_bases(shards):
    other = shards / "other.json"
    write_wids(str(other), [(str(shards / "t-2.tar"), 3)], md5=True)
    whole = {
        "wids_version": 1,
        "shardlist": [{"url": "t-0.tar", "nsamples": 3}],
        "datasets": [
            {"shardlist": [{"url": "t-1.tar", "nsamples": 3}], "base": str(shards)},
            {"source_url": "other.json", "weight": 2},
            {"base": "http://host/x/", "shardlist": [{"url": "r.tar", "nsamples": 1}]},
        ],
    }
    path = shards / "all.json"
    path.write_text(json.dumps(whole))
    found = read_wids(str(path))
    assert [shard.url for shard in found] == [
        *(str(shards / f"t-{i}.tar") for i in range(3)),
        "http://host/x/r.tar",
    ]
    data = (shards / "t-2.tar").read_bytes()
    assert found[2].md5sum == hashlib.md5(data).hexdigest()


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "{}",
        "{",
        '{"wids_version": 2, "shardlist": []}',
        '{"wids_version": 1, "shardlist": {}}',
        '{"wids_version": 1, "shardlist": [1]}',
        '{"wids_version": 1, "shardlist": [{"nsamples": 1}]}',
        '{"wids_version": 1, "shardlist": [{"url": "a\\u0000", "nsamples": 1}]}',
        '{"wids_version": 1, "shardlist": [{"url": "a", "nsamples": -1}]}',
        '{"wids_version": 1, "shardlist": [{"url": "a", "nsamples": true}]}',
        '{"wids_version": 1, "shardlist": [{"url": "a", "nsamples": 1e3}]}',
        '{"wids_version": 1, "datasets": [{}]}',
        '{"wids_version": 1, "datasets": [{"source_url": "x.json"}]}',
        '{"wids_version": 1, "base": 7, "shardlist": []}',
        "[" * 100_000,
    ],
    ids=lambda text: text[:60],
)
def test_other_json_is_an_error(tmp_path, text):
    path = tmp_path / "x.json"
    path.write_text(text)  # the one that refers to x.json refers to itself
    with pytest.raises(fastshard.FormatError) as caught:
        read_wids(str(path))
    assert caught.value.path == str(path)


def test_lists_of_the_original_tool_are_read():
    found = read_wids(str(FOREIGN / "shardindex.json"))
    assert found == [
        WidsShard(str(path), 3, path.stat().st_size, digest(path))
        for path in (FOREIGN / "global.tar", FOREIGN / "plain.tar")
    ]
    assert len(fastshard.open(FOREIGN / "shardindex.json")) == 6


def digest(path):
    return hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()


def test_written_lists_equal_those_of_the_original_tool(tmp_path):
    tars = [
        Path(shutil.copy(FOREIGN / f"{n}.tar", tmp_path)) for n in ("global", "plain")
    ]
    path = tmp_path / "x.json"
    write_wids(str(path), [(str(tar), 3) for tar in tars], name="foreign", md5=True)
    assert json.loads(path.read_text()) == json.loads(
        (FOREIGN / "shardindex.json").read_text()
    )


def test_a_list_may_be_named_from_elsewhere(shards, monkeypatch):
    write_wids(str(shards / "x.json"), [(str(shards / "t-0.tar"), 3)])
    monkeypatch.chdir(shards.parent)
    relative = f"{shards.name}/x.json"
    assert read_wids(relative)[0].url == str(shards / "t-0.tar")
    assert len(fastshard.open(relative)) == 3


@pytest.mark.parametrize(
    ("base", "url", "expected"),
    [
        (None, "a.tar", "{}/a.tar"),
        (None, "./a:b.tar", "{}/a:b.tar"),
        (None, "a:b.tar", "{}/a:b.tar"),
        (None, "/a.tar", "/a.tar"),
        (None, "file:///a.tar", "/a.tar"),
        (None, "file://localhost/a.tar", "/a.tar"),
        (None, "file:/a.tar", "/a.tar"),
        (None, "file:a.tar", "{}/a.tar"),
        ("sub", "FILE:a.tar", "{}/sub/a.tar"),
        (None, "file://host/a.tar", "file://host/a.tar"),
        (None, "s3://bucket/a.tar", "s3://bucket/a.tar"),
        (None, "pipe:cat a.tar", "pipe:cat a.tar"),
        ("sub", "a.tar", "{}/sub/a.tar"),
        ("/sub", "a.tar", "/sub/a.tar"),
        ("file:///sub", "a.tar", "/sub/a.tar"),
        ("http://host/sub/", "a.tar", "http://host/sub/a.tar"),
        ("http://host/sub", "/a.tar", "http://host/a.tar"),
        ("http://host", "a.tar", "http://host/a.tar"),
        ("http://host/sub", "https://other/a.tar", "https://other/a.tar"),
    ],
)
def test_urls_lead_from_their_base(tmp_path, base, url, expected):
    path = tmp_path / "x.json"
    whole = {
        "wids_version": 1,
        "base": base,
        "shardlist": [{"url": url, "nsamples": 1}],
    }
    path.write_text(json.dumps(whole))
    assert read_wids(str(path))[0].url == expected.format(tmp_path)


HEAD = '{"wids_version": 1, '


@pytest.mark.parametrize(
    "text",
    [
        '{"wids_version": true, "shardlist": []}',
        '{"wids_version": 1.0, "shardlist": []}',
        HEAD + '"name": 1}',
        HEAD + '"weight": "1"}',
        HEAD + '"weight": true}',
        HEAD + '"datasets": [1]}',
        HEAD + '"datasets": [{"shardlist": [], "name": []}]}',
        HEAD + '"datasets": [{"shardlist": [], "weight": {}}]}',
        HEAD + '"datasets": [{"shardlist": [], "datasets": [{"shardlist": []}]}]}',
        HEAD + '"datasets": [{"source_url": 1}]}',
        HEAD + '"shardlist": [{"url": "\\ud800", "nsamples": 1}]}',
        HEAD + '"shardlist": [{"url": "", "nsamples": 1}]}',
        HEAD + '"shardlist": [{"url": "a", "nsamples": 9223372036854775808}]}',
        HEAD + '"shardlist": [{"url": "a", "nsamples": ' + "9" * 5000 + "}]}",
        HEAD + '"shardlist": [{"url": "a", "nsamples": 1, "filesize": "1"}]}',
        HEAD + '"shardlist": [{"url": "a", "nsamples": 1, "md5sum": 1}]}',
    ],
    ids=lambda text: text[:80],
)
def test_values_of_wrong_types_are_errors(tmp_path, text):
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(fastshard.FormatError) as caught:
        read_wids(str(path))
    assert caught.value.path == str(path)


@pytest.mark.parametrize(
    "text",
    [
        HEAD + '"datasets": [{"source_url": "https://u:pw@host/l.json?sig=s"}]}',
        HEAD + '"shardlist": [{"url": "https://u:pw@host/t.tar?sig=s"}]}',
        HEAD + '"shardlist": [{"url": "https://u:pw@host/t.tar?sig=s", "md5sum": 1}]}',
    ],
    ids=["source_url", "nsamples", "md5sum"],
)
def test_errors_show_no_secret_of_a_url(tmp_path, text):
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(fastshard.FastshardError, match="https://host/") as caught:
        read_wids(str(path))
    assert "pw" not in str(caught.value)
    assert "sig=s" not in str(caught.value)


def test_references_to_bad_lists_are_errors(shards):
    path = shards / "x.json"
    other = shards / "other.json"
    write_wids(str(other), [(str(shards / "t-0.tar"), 3)])

    def read(*sources):
        parts = [{"source_url": source} for source in sources]
        path.write_text(json.dumps({"wids_version": 1, "datasets": parts}))
        return read_wids(str(path))

    assert len(read("other.json")) == 1
    with pytest.raises(fastshard.FormatError, match="listed twice"):
        read("other.json", "./other.json")
    with pytest.raises(fastshard.FastshardError, match="remote"):
        read("http://host/other.json")
    with pytest.raises(FileNotFoundError):
        read("missing.json")
    other.write_text('{"wids_version": 1}')
    with pytest.raises(fastshard.FormatError, match="has no shardlist"):
        read("other.json")


def test_damage_is_refused_or_read(tmp_path):
    path = tmp_path / "x.json"
    raw = (FOREIGN / "shardindex.json").read_bytes()
    cut = [raw[:n] for n in range(len(raw))]
    flipped = [
        raw[:i] + bytes([raw[i] ^ flip]) + raw[i + 1 :]
        for i in range(len(raw))
        for flip in (1, 0x20, 0x80)
    ]
    for changed in cut + flipped:
        path.write_bytes(changed)
        try:
            found = read_wids(str(path))
        except fastshard.FormatError as error:
            assert error.path == str(path)
            assert 0 <= error.offset <= len(raw)
        else:
            text = json.loads(changed).get("shardlist", [])
            assert [shard.nsamples for shard in found] == [s["nsamples"] for s in text]
    for changed in cut[:-1]:
        path.write_bytes(changed)
        with pytest.raises(fastshard.FormatError):
            read_wids(str(path))


@pytest.mark.parametrize("name", ["a?b.tar", "a#b.tar", "a;b.tar", "a\nb.tar"])
def test_a_path_that_wids_takes_for_another_is_refused(tmp_path, name):
    tar = write_tar(tmp_path / name, {"a.txt": b"1"})
    path = tmp_path / "x.json"
    with pytest.raises(fastshard.FastshardError, match="cannot represent the path"):
        write_wids(str(path), [(str(tar), 1)])
    assert not path.exists()


def test_an_invalid_list_is_not_written(shards):
    path = shards / "x.json"
    with pytest.raises(ValueError, match="at least one shard"):
        write_wids(str(path), [])
    with pytest.raises(ValueError, match="negative, got -1"):
        write_wids(str(path), [(str(shards / "t-0.tar"), -1)])
    with pytest.raises(FileNotFoundError):
        write_wids(str(path), [(str(shards / "missing.tar"), 1)])
    assert not path.exists()


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_wids_reads_written_lists(tmp_path):
    wids = pytest.importorskip("wids")
    folder = tmp_path / "list"
    (folder / "sub").mkdir(parents=True)
    paths = [
        folder / "plain.tar",
        folder / "sub" / "é [1] %20 +.tar",
        folder / "run:1.tar",
        tmp_path / "elsewhere.tar",
    ]
    for i, target in enumerate(paths):
        write_tar(target, {f"{i}{k}.{x}": b"%d" % i for k in "ab" for x in ("p", "q")})
    path = folder / "x.json"
    write_wids(str(path), [(str(target), 2) for target in paths])
    theirs = wids.ShardListDataset(
        str(path), transformations=[], keep=True, cache_dir=str(tmp_path / "cache")
    )
    ours = fastshard.open(path)
    assert len(theirs) == len(ours) == 8
    for i, sample in enumerate(ours):
        fields = {f".{field}": bytes(sample[field]) for field in sample}
        found = {k: v.read() for k, v in theirs[i].items() if k.startswith(".")}
        assert (theirs[i]["__key__"], found) == (sample.key, fields)
    theirs.close()
