"""Listing of shards: directories, globs, brace lists, URLs, wids indexes."""

import itertools
import json
import os
import pickle
import random
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import fastshard
from fastshard import FastshardError
from fastshard._util.paths import globs as globs_module
from fastshard._util.paths.globs import glob, matches_parts
from fastshard.dataset.paths.listing import Listing, list_shards, natural_key
from fastshard.streaming import MDSWriter
from support.inside.datasets import is_counted
from support.tars import write_tar


@pytest.fixture
def cwd(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def make(cwd):
    """Return a function that makes empty files."""

    def make_files(*names):
        for name in names:
            Path(name).parent.mkdir(parents=True, exist_ok=True)
            Path(name).write_bytes(b"")

    return make_files


def linked(target, name, folder=False):
    try:
        Path(name).symlink_to(target, target_is_directory=folder)
    except OSError:
        pytest.skip("links cannot be made here")


def expand(source, **options):
    return list_shards(source, **options).paths


def slashes(paths):
    return [path.replace(os.sep, "/") for path in paths]


# Natural order


@given(st.lists(st.integers(0, 10**12), min_size=1))
def test_numbers_compare_as_numbers(numbers):
    names = [f"shard-{n}.tar" for n in numbers]
    assert sorted(names, key=natural_key) == [f"shard-{n}.tar" for n in sorted(numbers)]


@given(st.lists(st.text("a0129-./\u0664\udcff", max_size=8), max_size=8))
def test_the_order_is_total_and_does_not_depend_on_the_first_one(names):
    ordered = sorted(names, key=natural_key)
    names.reverse()
    assert sorted(names, key=natural_key) == ordered
    for a, b in itertools.combinations(set(names), 2):
        assert (natural_key(a) < natural_key(b)) != (natural_key(b) < natural_key(a))


def test_numbers_of_any_length_and_with_zeros():
    long, longer = "9" * 5000, "1" + "0" * 5000
    names = [longer, long, "2", "02", "1", "x"]
    assert sorted(names, key=natural_key) == ["1", "02", "2", long, longer, "x"]


# One file, directories


def test_one_shard(make):
    make("a.tar")
    assert expand("a.tar") == ["a.tar"]
    assert expand(Path("a.tar")) == ["a.tar"]
    assert expand(os.path.abspath("a.tar")) == [os.path.abspath("a.tar")]
    assert list_shards("a.tar") == Listing(["a.tar"], None)


def test_a_directory_gives_its_own_shards_in_natural_order(make):
    numbers = list(range(120))
    random.Random(1).shuffle(numbers)
    make(*[f"d/s-{n}.tar" for n in numbers])
    make("d/s-1.json", "d/README.md", "d/.hidden.tar", "d/x.tar.gz", "d/sub/y.tar")
    make("d/folder.tar/z.tar", "d/X.TAR")
    expected = [f"d/s-{n}.tar" for n in range(120)]
    if os.name == "nt":
        os.remove("d/X.TAR")
    with pytest.warns(UserWarning, match="left out"):
        found = [slashes(expand(folder)) for folder in ("d", "d/", Path("d"))]
    assert found == [expected] * 3


def test_a_directory_with_shards_only_below_it_names_them(make):
    make(*[f"d/{name}/0.tar" for name in ("train-1", "train-2", "train-10", "val")])
    make("d/.git/x.tar", "d/empty/x.json")
    with pytest.raises(FastshardError) as caught:
        expand("d")
    message = str(caught.value).replace(os.sep, "/")
    assert "d/train-1, d/train-2, d/train-10" in message
    assert "d/**" in message
    assert ".git" not in message
    assert len(expand("d/**")) == 4
    assert slashes(expand("d/val")) == ["d/val/0.tar"]


@pytest.mark.parametrize("source", ["d", "d/**", "d/*.tar", "d/**/*.tar"])
def test_no_shard_at_all(make, source):
    make("d/.hidden.tar", "d/sub/.x.tar")
    with pytest.raises(FastshardError, match="no shard"):
        expand(source)


def test_a_link_to_a_shard_is_one_and_a_dangling_link_is_missing(make):
    make("real/a.tar", "d/b.tar")
    linked("../real/a.tar", "d/a.tar")
    assert slashes(expand("d")) == ["d/a.tar", "d/b.tar"]
    os.remove("real/a.tar")
    for source in ("d", "d/**", "d/*.tar", "d/{a,b}.tar"):
        with pytest.raises(FileNotFoundError, match=r"d.a\.tar"):
            expand(source)


# Recursion


def test_recursion_takes_all_below_in_natural_order(make):
    make("d/10/0.tar", "d/2/0.tar", "d/2/b/c/1.tar", "d/x.tar", "d/2/x.mds")
    make("d/.cache/no.tar", "d/2/.no.tar")
    expected = ["d/2/0.tar", "d/2/b/c/1.tar", "d/10/0.tar", "d/x.tar"]
    assert slashes(expand("d/**")) == expected
    assert slashes(expand("d/**/")) == expected
    assert slashes(expand("d/**/*.tar")) == expected
    assert slashes(expand("d/**/**/*.tar")) == expected
    assert slashes(expand("**/*.tar")) == expected
    assert slashes(expand("**")) == expected
    assert slashes(expand("d/2/**/1.tar")) == ["d/2/b/c/1.tar"]
    assert slashes(expand("d/**/c/**")) == ["d/2/b/c/1.tar"]


def test_links_that_loop_do_not_hang(make):
    make(*[f"d/{i}/{i}.tar" for i in range(12)])
    for i in range(12):
        linked("..", f"d/{i}/up", folder=True)
        linked("../" + str(i), f"d/{i}/self", folder=True)
    linked("loop", "d/loop")
    expected = [f"d/{i}/{i}.tar" for i in range(12)]
    assert slashes(expand("d/**")) == expected
    assert slashes(expand("d/**/*.tar")) == expected


def test_a_linked_directory_is_listed_once_and_under_its_own_path_if_it_can_be(make):
    make("d/z/0.tar", "out/1.tar")
    linked("z", "d/a", folder=True)
    linked("../out", "d/b", folder=True)
    linked("../out", "d/c", folder=True)
    assert slashes(expand("d/**")) == ["d/b/1.tar", "d/z/0.tar"]


@pytest.mark.parametrize("source", ["d", "d/**", "d/*/*.tar", "d/**/*.tar", "*/*.tar"])
def test_a_directory_that_cannot_be_read_raises(make, monkeypatch, source):
    make("d/a/0.tar", "d/b/0.tar", "d/0.tar")
    scandir = os.scandir
    locked = "d" if source in ("d", "*/*.tar") else os.path.join("d", "b")

    def refuse(path):
        if path == locked:
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(globs_module.os, "scandir", refuse)
    with pytest.raises(PermissionError):
        expand(source)


# Globs


def test_a_glob_lists_matches_in_natural_order(make):
    make(*[f"d/s-{n}.tar" for n in (1, 2, 10, 11)], "d/t.tar", "d/.s-3.tar")
    make("e/s-1.tar", "e/s-3.tar/x")
    assert slashes(expand("d/s-*.tar")) == [f"d/s-{n}.tar" for n in (1, 2, 10, 11)]
    assert slashes(expand("d/s-?.tar")) == ["d/s-1.tar", "d/s-2.tar"]
    assert slashes(expand("d/s-1[0-9].tar")) == ["d/s-10.tar", "d/s-11.tar"]
    assert slashes(expand("d/s-[!1]*.tar")) == ["d/s-2.tar"]
    assert slashes(expand("?/s-1.tar")) == ["d/s-1.tar", "e/s-1.tar"]
    assert slashes(expand("e/*.tar")) == ["e/s-1.tar"]
    assert slashes(expand("./d//t*")) == ["./d/t.tar"]
    assert slashes(expand("d/.s*")) == ["d/.s-3.tar"]
    assert expand(os.path.abspath("d") + "/t*.tar") == [os.path.abspath("d/t.tar")]
    assert slashes(expand(Path("d") / "t*.tar")) == ["d/t.tar"]


def test_a_name_that_exists_is_not_a_pattern(make):
    make("s[1].tar", "s1.tar", "d{a,b}/x.tar", "da/x.tar", "run[2]/y.tar", "run2/y.tar")
    assert expand("s[1].tar") == ["s[1].tar"]
    assert expand("s[0-9].tar") == ["s1.tar"]
    assert slashes(expand("d{a,b}")) == ["d{a,b}/x.tar"]
    assert slashes(expand("run[2]/*.tar")) == ["run[2]/y.tar"]
    os.remove("s[1].tar")
    assert expand("s[1].tar") == ["s1.tar"]


@pytest.mark.skipif(os.name == "nt", reason="no such names there")
def test_names_with_any_character(make):
    make("d/a\nb.tar", "d/*.tar", "d/a::b.tar", "http:/x/y.tar")
    assert expand("d/*.tar") == ["d/*.tar"]
    assert expand("d/a::b.tar") == ["d/a::b.tar"]
    assert expand("http://x/y.tar") == ["http://x/y.tar"]
    assert expand("d/a?b.tar") == ["d/a\nb.tar"]


def test_a_glob_passes_over_sidecars_and_raises_for_other_files(make):
    make("t-0.tar", "t-0.fsi", "t-0.json", "t-0.idx", "t-0.tar.idx", "t-0.tar.index")
    make("t-0.tar.index.sqlite")
    assert expand("t-*") == ["t-0.tar"]
    for name in ("t-1.mds", "t-1.tar.gz", "t-1"):
        make(name)
        with pytest.raises(FastshardError, match=re.escape(f"{name} is not a shard")):
            expand("t-*")
        os.remove(name)


def test_a_glob_of_directories_says_how_to_ask(make):
    make("d/a/0.tar", "d/b/0.tar")
    with pytest.raises(FastshardError, match="only directories"):
        expand("d/*")
    assert len(expand("d/*/*.tar")) == 2


# Brace lists, lists, several sources


def test_brace_lists_keep_their_order(make):
    make(*[f"d/s-{n:03}.tar" for n in range(12)])
    assert slashes(expand("d/s-{003..001}.tar")) == [
        f"d/s-{n:03}.tar" for n in (3, 2, 1)
    ]
    assert len(expand("d/s-{000..011}.tar")) == 12
    assert slashes(expand("d/s-{01?,000}.tar")) == [
        f"d/s-{n:03}.tar" for n in (10, 11, 0)
    ]


def test_brace_lists_of_directories_and_globs(make):
    make("val/0.tar", "train/0.tar", "train/1.tar", "test/sub/0.tar")
    assert slashes(expand("{val,train}")) == ["val/0.tar", "train/0.tar", "train/1.tar"]
    assert slashes(expand("{val,train}/*.tar")) == slashes(expand("{val,train}"))
    assert slashes(expand("{val,test}/**")) == ["val/0.tar", "test/sub/0.tar"]


def test_missing_shards_are_named_at_once(make):
    make("s-1.tar", "s-3.tar")
    with pytest.raises(FileNotFoundError) as caught:
        expand("s-{0..9}.tar")
    assert "8 of 10" in str(caught.value)
    assert "s-0.tar, s-2.tar, s-4.tar, ..." in str(caught.value)
    with pytest.raises(FileNotFoundError, match=r"x\.tar") as caught:
        expand(["s-1.tar", "x.tar"])
    assert caught.value.filename == "x.tar"
    assert expand("s-{0..3}.tar", check=False) == [f"s-{n}.tar" for n in range(4)]
    assert expand("s-1.tar::y/x.tar", check=False) == ["s-1.tar", "y/x.tar"]


def test_a_list_keeps_its_order_and_takes_patterns(make):
    make("b.tar", "a-2.tar", "a-10.tar", "d/x.tar")
    found = expand(["b.tar", Path("d"), "a-*.tar"])
    assert slashes(found) == ["b.tar", "d/x.tar", "a-2.tar", "a-10.tar"]
    assert expand(("b.tar", "a-{10,2}.tar")) == ["b.tar", "a-10.tar", "a-2.tar"]


def test_double_colons_join_sources(make):
    make("a-0.tar", "a-1.tar", "b.tar", "d/c.tar")
    found = expand("b.tar::a-{0..1}.tar::d")
    assert slashes(found) == ["b.tar", "a-0.tar", "a-1.tar", "d/c.tar"]
    with pytest.raises(ValueError, match="empty path"):
        expand("b.tar::")


@pytest.mark.parametrize(
    "source",
    [
        ["a.tar", "a.tar"],
        ["a.tar", "./a.tar"],
        ["a.tar", "d/../a.tar"],
        "a.tar::{a,b}.tar",
        "{a,a}.tar",
        [".", "a.tar"],
    ],
)
def test_a_file_named_twice_is_refused(make, source):
    make("a.tar", "b.tar", "d/x")
    with pytest.raises(FastshardError, match=r"a\.tar is listed twice"):
        expand(source)


def test_the_same_by_its_absolute_path_is_refused(make):
    make("a.tar")
    with pytest.raises(FastshardError, match="listed twice"):
        expand(["a.tar", os.path.abspath("a.tar")])


@pytest.mark.parametrize("name", ["a.mds", "a.tar.gz", "a", "a.TAR", "a.fsi"])
def test_a_file_of_another_format_is_refused(make, name):
    make(name, "b.tar")
    with pytest.raises(FastshardError, match=re.escape(f"{name} is not a shard")):
        expand(["b.tar", name])


@pytest.mark.parametrize(
    "source", [["a.tar", ["b.tar"]], [1], b"a.tar", 7, None, {"a.tar"}]
)
def test_sources_of_another_type(make, source):
    make("a.tar", "b.tar")
    with pytest.raises(TypeError):
        expand(source)


@pytest.mark.parametrize("source", ["", [], [""], ()])
def test_sources_of_nothing(cwd, source):
    with pytest.raises(ValueError, match=r"empty"):
        expand(source)


def test_a_source_that_is_longer_than_any_name(cwd):
    with pytest.raises(FileNotFoundError):
        expand("x" * 5000 + ".tar")
    with pytest.raises(FileNotFoundError, match="2 of 2"):
        expand("{" + "x" * 5000 + ",y}.tar")


# Remote sources


@pytest.mark.parametrize(
    ("source", "urls"),
    [
        ("http://host/{00..02}.tar", [f"http://host/0{i}.tar" for i in range(3)]),
        ("s3://bucket/a.tar", ["s3://bucket/a.tar"]),
        ("HTTPS://host/a.tar", ["HTTPS://host/a.tar"]),
        ("http://[::1]/a.tar", ["http://[::1]/a.tar"]),
        ("gs://b/a.tar::gs://b/b.tar", ["gs://b/a.tar", "gs://b/b.tar"]),
        ("https://h/a.tar?x={1}", ["https://h/a.tar?x={1}"]),
        (
            ["https://h/b.tar", "https://h/a.tar"],
            ["https://h/b.tar", "https://h/a.tar"],
        ),
    ],
)
def test_urls_of_shards_are_listed_without_asking(source, urls):
    assert expand(source) == urls


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("a.tar::s3://bucket/a.tar", "only local or only remote"),
        (["a.tar", "s3://b/a.tar"], "only local or only remote"),
        ("https://h/a.tar::https://h/a.tar", "listed twice"),
        ("file://host/a.tar", "cannot be read"),
        ("ftp://host/a.tar", "cannot be read"),
        ("https://user:word@host/a.tar", "password"),
        ("https://host/*.tar", "lists no folders"),
    ],
)
def test_urls_that_are_not_shards_are_refused(make, source, message):
    make("a.tar")
    with pytest.raises(FastshardError, match=message):
        expand(source)


def test_a_command_is_not_run(cwd):
    with pytest.raises(FastshardError, match="command"):
        expand("pipe:touch ran")
    assert not Path("ran").exists()


def test_file_urls(make):
    make("a 1.tar", "b%201.tar", "c.tar", "d/x.tar")
    base = "file://" + Path.cwd().as_posix()
    if os.name == "nt":
        base = base.replace("file://", "file:///")
    names = {
        "c.tar": "c.tar",
        "a%201.tar": "a 1.tar",
        "b%201.tar": "b%201.tar",
        "{c,a%201}.tar": "c.tar",
        "d": "d/x.tar",
    }
    for url, name in names.items():
        expected = Path(name).absolute().as_posix()
        assert slashes(expand(f"{base}/{url}"))[0] == expected
    local = base.replace("file://", "file://localhost") + "/c.tar"
    assert slashes(expand(local)) == [Path("c.tar").absolute().as_posix()]


@pytest.mark.parametrize("source", ["file:{}", "FILE:{}", "file:./{}"])
def test_relative_file_urls(make, source):
    make("a 1.tar", "b.tar", "d/x.tar", "file:e.tar")
    names = {
        "b.tar": ["b.tar"],
        "a%201.tar": ["a 1.tar"],
        "{b,a%201}.tar": ["b.tar", "a 1.tar"],
        "?.tar": ["b.tar"],
        "d": ["d/x.tar"],
        "d/**": ["d/x.tar"],
    }
    for url, expected in names.items():
        found = slashes(expand(source.format(url), check=False))
        assert [name.removeprefix("./") for name in found] == expected


def test_file_urls_in_every_form(make):
    make("c.tar", "d/x.tar", "file:e.tar")
    here = Path.cwd().as_posix()
    for start in ("file:", "file://", "file://localhost"):
        for name in ("c.tar", "d/x.tar"):
            assert slashes(expand(f"{start}{here}/{name}")) == [f"{here}/{name}"]
    assert expand("file:c.tar::file:d/x.tar") == ["c.tar", "d/x.tar"]
    assert expand("file:e.tar") == ["file:e.tar"]  # the name of a file
    for url in ("file://host/c.tar", "file://c.tar"):
        with pytest.raises(FastshardError, match="cannot be read"):
            expand(url)


@pytest.mark.parametrize("start", ["file:", "file:{here}/", "file://{here}/"])
def test_file_urls_open_the_same_as_paths(make, start):
    make("d/x")
    here = Path.cwd().as_posix()
    write_tar(Path("d/0.tar"), {"0.txt": b"text"})
    url = start.format(here=here)
    fastshard.build_index(f"{url}d")
    ds = fastshard.open(f"{url}d")
    assert ds["0"].text("txt") == "text"
    assert is_counted(ds)  # the dataset.fsi is found
    with fastshard.open_shard(f"{url}d/0.tar", index=f"{url}d/0.fsi") as shard:
        assert shard["0.txt"] == b"text"
        assert shard.index.endswith("d/0.fsi")
    with MDSWriter(out="rows", columns={"a": "int"}) as writer:
        writer.write({"a": 1})
    assert len(fastshard.open(f"{url}rows")) == 1


# wids indexes


@pytest.fixture
def wids(make):
    """Return a function that writes ``d/index.json``, of (url, samples)."""
    make("d/index.json")

    def write(*shards):
        shardlist = [{"url": url, "nsamples": count} for url, count in shards]
        index = {"wids_version": 1, "shardlist": shardlist}
        Path("d/index.json").write_text(json.dumps(index))

    return write


def test_a_wids_index_gives_shards_and_their_numbers_of_samples(make, wids):
    make("d/b.tar", "d/a.tar", "c.tar")
    wids(("b.tar", 7), ("a.tar", 2), (os.path.abspath("c.tar"), 1))
    listing = list_shards("d/index.json")
    names = [os.path.abspath(name) for name in ("d/b.tar", "d/a.tar")]
    assert listing.paths[:2] == names
    assert listing.paths[2] == os.path.abspath("c.tar")
    assert listing.samples == [7, 2, 1]
    assert expand("d/index.json") == listing.paths


def test_numbers_of_samples_are_given_for_all_shards_or_none(make, wids):
    make("d/a.tar", "b.tar")
    wids(("a.tar", 2))
    assert list_shards(["b.tar", "d/index.json"]).samples is None


def test_names_in_a_wids_index_are_not_patterns(make, wids):
    make("d/a.tar", "d/b.tar")
    for name in ("{a,b}.tar", "*.tar", "a.tar::b.tar", "missing.tar"):
        wids((name, 2))
        with pytest.raises(FileNotFoundError):
            expand("d/index.json")


def test_a_wids_index_is_held_to_the_same_rules(make, wids):
    make("d/a.tar", "d/a.mds")
    for shards, message in [
        ([("ftp://host/a.tar", 1)], "cannot be read"),
        ([("pipe:cat a.tar", 1)], "command"),
        ([("a.tar", 1), ("../d/a.tar", 1)], "listed twice"),
        ([("a.mds", 1)], "not a shard"),
        ([], "lists no shard"),
    ]:
        wids(*shards)
        with pytest.raises(FastshardError, match=message):
            expand("d/index.json")


ODD = [
    "a?b.tar",
    "[x].tar",
    "a[0-9]*.tar",
    "{a,b}.tar",
    "x::y.tar",
    "a#b.tar",
    "%41.tar",
]


def test_a_directory_with_odd_names_opens_and_is_indexed(tmp_path):
    for name in ODD:
        write_tar(tmp_path / name, {f"{ODD.index(name)}.txt": name.encode()})
    for _ in range(2):
        with fastshard.open(tmp_path) as ds:
            assert {sample.text("txt") for sample in ds} == set(ODD)
            assert sorted(map(os.path.basename, ds.shards.paths)) == sorted(ODD)
        assert len(fastshard.build_index(tmp_path)) == len(ODD) + 1
    for source in (tmp_path / "**", tmp_path / "*.tar"):
        assert len(fastshard.open(str(source))) == len(ODD)
    for name in ODD:
        with fastshard.open(tmp_path / name) as ds:
            assert ds[0].text("txt") == name


LEFT_OUT = ("a.TAR", "b.tar.gz", "c.tar.gz", "d.tgz", "e.tar.zst")


@pytest.mark.parametrize("source", ["d", "d/**", ["d"], "{d,e}", "d::e"])
def test_one_warning_names_the_tars_that_are_left_out(make, source):
    make("d/0.tar", "d/1.tar", "e/0.tar", "d/notes.txt", "d/x.gz")
    make(*(f"d/{name}" for name in LEFT_OUT))
    with pytest.warns(UserWarning, match="5 tars are left out") as caught:
        listing = list_shards(source)
    assert [path for path in listing.paths if not path.startswith("e/")] == [
        "d/0.tar",
        "d/1.tar",
    ]
    (warning,) = caught
    text = str(warning.message)
    for part in (
        "1 .TAR, as d/a.TAR, rename it",
        "2 .tar.gz, as d/b.tar.gz, compressed with gzip",
        "`gunzip d/b.tar.gz`",
        "1 .tgz, as d/d.tgz",
        "1 .tar.zst, as d/e.tar.zst, compressed with zstd",
    ):
        assert part in text


def test_the_warning_is_at_the_call_of_open_and_once(make):
    make("d/0.TAR")
    write_tar(Path("d/0.tar"), {"0.txt": b"text"})
    with pytest.warns(UserWarning, match="1 tar is left out") as caught:
        ds = fastshard.open("d", index="rebuild")
    assert len(ds) == 1
    assert len(list(pickle.loads(pickle.dumps(ds)))) == 1
    assert [warning.filename for warning in caught] == [__file__]


@pytest.mark.parametrize("source", ["d/*.tar", "d/0.tar", "d/{0..1}.tar"])
def test_sources_that_name_tars_warn_of_no_others(make, source):
    make("d/0.tar", "d/1.tar", "d/2.TAR", "d/3.tar.gz", "d/.4.tgz")
    assert list_shards(source).paths


@pytest.mark.parametrize(
    ("path", "pattern", "expected"),
    [
        ("0.tar", "*", True),
        ("._0.tar", "*", False),
        ("._0.tar", ".*", True),
        ("a/0.tar", "*", False),
        ("a/0.tar", "**/*", True),
        ("0.tar", "**/*", True),
        (".a/0.tar", "**/*", False),
        ("a/.b/0.tar", "**/*", False),
        ("a/b/0.tar", "a*/**/*", True),
        ("a/0.tar", "**/a/**/*.tar", True),
        ("b/0.tar", "**/a/**/*.tar", False),
        (".a/0.tar", ".*/*.tar", True),
    ],
)
def test_paths_match_patterns_as_files_do(make, path, pattern, expected):
    assert matches_parts(path.split("/"), pattern.split("/")) == expected
    make(path)
    found = [p.replace(os.sep, "/") for p in glob(pattern) if not os.path.isdir(p)]
    assert (path in found) == expected
