"""Entries of an index: added, found by name, opened, removed."""

import os
import shutil
import warnings
from pathlib import Path

import numpy as np
import pytest

from fastshard import typed
from fastshard.catalog.index import Index
from fastshard.errors import FastshardError, IndexRowError
from support.inside.typed import set_metadata
from support.typed.numbers import Number, Vector

REF = "atdata://local/schema/Number@1.0.0"
HUGE = "x" * 1_000_000
URL = "postgresql://me:hunter2@host/db"


def values(ds):
    return [sample.value for sample in ds]


# -- Entries of shards that are there


def test_an_entry_names_the_shards_where_they_are(bare_index, numbers):
    ds = numbers()
    entry = bare_index.insert_dataset(ds, name="n")
    assert entry.name == "n"
    assert entry.schema_ref == REF
    assert entry.data_urls == ds.list_shards()
    assert entry.metadata is None
    assert bare_index.get_dataset("n") == entry
    assert values(bare_index.get_dataset("n").open(Number)) == [0, 1, 2, 3, 4]


def test_a_pattern_stays_one_url(bare_index, numbers, tmp_path, monkeypatch):
    numbers(maxcount=2)
    monkeypatch.chdir(tmp_path)
    pattern = "numbers-{000000..000002}.tar"
    entry = bare_index.insert_dataset(typed.Dataset[Number](pattern), name="n")
    assert entry.data_urls == [pattern]
    assert values(bare_index.get_dataset("n").open()) == [0, 1, 2, 3, 4]


def test_a_list_of_shards_stays_a_list(bare_index, numbers):
    shards = numbers(maxcount=2).list_shards()
    ds = typed.Dataset(shards[::-1], Number)
    assert bare_index.insert_dataset(ds, name="n").data_urls == shards[::-1]
    assert values(bare_index.get_dataset("n").open()) == [4, 2, 3, 0, 1]


def test_shards_on_s3_are_named_as_they_are(bare_index):
    keys = ["a.tar", "b{0,1}.tar"]
    source = typed.S3Source("bucket", keys, access_key="key", secret_key="hunter2")
    entry = bare_index.insert_dataset(typed.Dataset(source, Number), name="n")
    assert entry.data_urls == ["s3://bucket/a.tar", "s3://bucket/b{0,1}.tar"]


def test_files_whose_names_look_like_patterns_are_opened(bare_index, tmp_path):
    path = tmp_path / "a{0,1}[x]*.tar"
    ds = typed.write_samples([Number(value=7)], path)
    typed.write_samples([Number(value=8)], tmp_path / "plain.tar")
    both = typed.Dataset([path, tmp_path / "plain.tar"], Number)
    bare_index.insert_dataset(ds, name="one")
    bare_index.insert_dataset(both, name="two")
    assert values(bare_index.get_dataset("one").open()) == [7]
    assert values(bare_index.get_dataset("two").open()) == [7, 8]


@pytest.mark.parametrize(
    "change",
    [
        lambda ds: ds.filter(lambda sample: sample.value > 2),
        lambda ds: ds.map(lambda sample: sample),
        lambda ds: ds[1:3],
        lambda ds: ds.shuffle(seed=1),
        lambda ds: ds.split_by_rank(0, 2),
    ],
    ids=["filter", "map", "slice", "shuffle", "rank"],
)
def test_a_dataset_that_is_not_all_of_its_shards_is_not_an_entry(
    bare_index, numbers, change
):
    with pytest.raises(ValueError, match="an entry would name all"):
        bare_index.insert_dataset(change(numbers()), name="n")
    assert bare_index.list_datasets() == []
    assert bare_index.provider.get_schema_json("Number", "1.0.0") is None


def test_a_dataset_without_a_type_has_no_schema(bare_index, numbers):
    ds = typed.Dataset(numbers().list_shards())
    with pytest.raises(TypeError, match="schema_ref"):
        bare_index.insert_dataset(ds, name="n")
    entry = bare_index.insert_dataset(ds, name="n", schema_ref=REF)
    assert entry.schema_ref == REF
    with pytest.raises(KeyError, match="Schema not found"):
        bare_index.get_dataset("n").open()
    assert values(entry.open(Number)) == [0, 1, 2, 3, 4]


def test_only_datasets_are_inserted(bare_index):
    with pytest.raises(TypeError, match="must be a typed Dataset, got str"):
        bare_index.insert_dataset("data.tar", name="n")


def test_unknown_options_are_refused(index, bare_index, numbers):
    for each in (index, bare_index):
        with pytest.raises(TypeError, match="maxcunt"):
            each.insert_dataset(numbers(), name="n", maxcunt=3)
        assert each.list_datasets() == []
    entry = bare_index.insert_dataset(numbers(), name="n", maxcount=3)
    assert len(entry.data_urls) == 1  # nothing is copied
    assert len(index.insert_dataset(numbers(), name="n", maxcount=3).data_urls) == 2


def test_metadata_are_those_given_or_those_of_the_dataset(bare_index, numbers):
    ds = numbers()
    set_metadata(ds, {"of": "the dataset"})
    assert bare_index.insert_dataset(ds, name="a").metadata == {"of": "the dataset"}
    given = {"rate": 0.25, "raw": b"\0\xff", "nested": {"list": [1, None]}}
    bare_index.insert_dataset(ds, name="b", metadata=given)
    assert bare_index.get_dataset("b").metadata == given


def test_metadata_at_a_url_are_not_asked_for(bare_index, tmp_path, numbers):
    shards = numbers().list_shards()
    away = str(tmp_path / "nothing.msgpack")
    ds = typed.Dataset(shards, Number, metadata_url=away)
    assert bare_index.insert_dataset(ds, name="a").metadata is None
    with pytest.raises(OSError, match="nothing"):
        ds.metadata  # noqa: B018  asked for


def test_tags_and_license_are_metadata(bare_index, numbers):
    given = {"a": 1}
    entry = bare_index.insert_dataset(
        numbers(), name="n", metadata=given, tags=["x"], license="MIT"
    )
    assert entry.metadata == {"a": 1, "tags": ["x"], "license": "MIT"}
    assert given == {"a": 1}


def test_version_and_description_are_the_label_s(bare_index, numbers):
    entry = bare_index.insert_dataset(
        numbers(), name="n", version="3.0.0", description="of May"
    )
    (row,) = bare_index.provider.iter_label_rows("n")
    assert (row.cid, row.version, row.description) == (entry.cid, "3.0.0", "of May")
    assert bare_index.get_label("n", "3.0.0") == entry


def test_an_entry_without_a_version_has_a_label_too(bare_index, numbers):
    entry = bare_index.insert_dataset(numbers(), name="n")
    assert bare_index.list_labels() == [("n", entry.cid, None)]


# -- Copies


@pytest.mark.parametrize("how", ["store", "argument"])
def test_shards_are_copied_byte_by_byte(index, bare_index, numbers, tmp_path, how):
    ds = numbers(5, "origin", maxcount=2)
    if how == "store":
        entry = index.insert_dataset(ds, name="n")
    else:
        entry = bare_index.insert_dataset(ds, name="n", data_store=index.data_store)
    assert len(entry.data_urls) == 3
    for origin, copy in zip(ds.list_shards(), entry.data_urls, strict=True):
        assert Path(copy).is_relative_to(tmp_path / "store" / "n")
        assert Path(copy).read_bytes() == Path(origin).read_bytes()
    assert set(typed.verify_checksums(entry).values()) == {"ok"}
    assert values(entry.open()) == [0, 1, 2, 3, 4]


def test_copy_without_a_store_goes_to_the_home_folder(
    bare_index, numbers, tmp_path, monkeypatch
):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (url,) = bare_index.insert_dataset(numbers(), name="n", copy=True).data_urls
    assert Path(url).is_relative_to(tmp_path / "home" / ".atdata" / "data" / "n")


def test_a_copy_is_not_decoded(index, tmp_path):
    path = tmp_path / "other.tar"
    typed.write_samples([typed.DictSample(value="no int")], path)
    entry = index.insert_dataset(typed.Dataset(path, Number), name="n")
    assert Path(entry.data_urls[0]).read_bytes() == path.read_bytes()


def test_filtered_samples_are_copied(index, numbers):
    ds = numbers().filter(lambda sample: sample.value > 2)
    assert values(index.insert_dataset(ds, name="n").open()) == [3, 4]


def test_a_prefix_says_where_copies_go(index, numbers, tmp_path):
    entry = index.insert_dataset(numbers(), name="n", prefix="custom/v1")
    assert Path(entry.data_urls[0]).parent == tmp_path / "store" / "custom" / "v1"


def test_add_entry_copies_nothing(index, numbers):
    ds = numbers()
    entry = index.add_entry(ds, name="lab/n", metadata={"a": 1})
    assert entry.data_urls == ds.list_shards()
    assert index.get_entry_by_name("lab/n").metadata == {"a": 1}


# -- Samples


def test_samples_are_written_once(index, tmp_path):
    samples = (Number(value=i) for i in range(5))
    entry = index.write_samples(samples, name="n", maxcount=2)
    assert len(entry.data_urls) == 3  # atdata writes one shard whatever maxcount is
    assert values(index.get_dataset("n").open()) == [0, 1, 2, 3, 4]
    shards = sorted(map(str, (tmp_path / "store").rglob("*.tar")))
    assert sorted(entry.data_urls) == shards
    assert typed.verify_checksums(entry) == dict.fromkeys(shards, "ok")


def test_shards_are_those_that_write_samples_writes(index, tmp_path):
    samples = [Vector(label=f"{i}", x=np.full(i, i, "f4")) for i in range(20)]
    entry = index.write_samples(samples, name="v", maxcount=7)
    alone = typed.write_samples(samples, tmp_path / "alone.tar", maxcount=7)
    for one, other in zip(entry.data_urls, alone.list_shards(), strict=True):
        assert Path(one).read_bytes() == Path(other).read_bytes()


def test_equal_samples_have_equal_checksums(index):
    samples = [Number(value=i) for i in range(5)]
    one = index.write_samples(samples, name="one")
    other = index.write_samples(samples, name="other")
    assert list(one.checksums.values()) == list(other.checksums.values())
    assert one.cid != other.cid


def test_maxsize_and_manifests_are_honoured(index):
    pytest.importorskip("pyarrow")
    samples = [Number(value=i) for i in range(50)]
    entry = index.write_samples(samples, name="n", maxsize="20KB", manifest=True)
    assert len(entry.data_urls) > 1
    assert all(os.path.getsize(url) <= 20_000 for url in entry.data_urls)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a manifest that is not true is passed over
        ds = entry.open(Number)
        assert len(ds.query(ds.fields.value > 39)) == 10
    for url in entry.data_urls:
        assert os.path.exists(f"{url.removesuffix('.tar')}.manifest.json")


def test_nothing_is_written_of_no_samples(index, tmp_path):
    with pytest.raises(ValueError, match="non-empty"):
        index.write_samples(iter([]), name="n")
    assert index.list_datasets() == []
    assert list((tmp_path / "store").rglob("*.tar")) == []


def test_a_failed_write_has_no_entry_and_whole_shards(index, tmp_path):
    def samples():
        yield from (Number(value=i) for i in range(5))
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError, match="no more"):
        index.write_samples(samples(), name="n", maxcount=2)
    assert index.list_datasets() == []
    assert index.list_labels() == []
    left = sorted(path for path in (tmp_path / "store").rglob("*.tar*"))
    assert [len(typed.Dataset(path)) for path in left if path.suffix == ".tar"] == [
        2,
        2,
    ]


def test_samples_of_two_types_are_refused(index):
    with pytest.raises(ValueError, match="of one type"):
        index.write_samples([Number(value=1), Vector("a", np.zeros(1))], name="n")
    assert index.list_datasets() == []


def test_without_a_store_samples_go_to_the_home_folder(
    bare_index, tmp_path, monkeypatch
):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    entry = bare_index.write_samples([Number(value=1)], name="n")
    assert Path(entry.data_urls[0]).is_relative_to(tmp_path / "home" / ".atdata")
    assert values(entry.open()) == [1]


def test_a_store_of_one_s_own_is_written_through(bare_index, tmp_path):
    class Store:
        """A store that only has the three methods."""

        def write_shards(self, ds, *, prefix):
            urls = []
            for i, shard in enumerate(ds.list_shards()):
                urls.append(str(tmp_path / f"{prefix}-{i}.stored"))
                shutil.copy(shard, urls[-1])
            return urls

        def read_url(self, url):
            os.replace(url, url.replace(".stored", ".tar"))
            return url.replace(".stored", ".tar")

        def supports_streaming(self):
            return True

    index = Index(bare_index.provider, data_store=Store(), atmosphere=None)
    index.write_samples([Number(value=i) for i in range(3)], name="n", maxcount=2)
    entry = index.get_dataset("n")
    assert [os.path.basename(url) for url in entry.data_urls] == [
        "n-0.stored",
        "n-1.stored",
    ]
    assert entry.metadata is None
    assert values(entry.open()) == [0, 1, 2]


@pytest.mark.parametrize(
    ("given", "error", "match"),
    [
        ({"name": "a\0b"}, ValueError, "name has a NUL"),
        ({"name": "\ud800"}, ValueError, "name has a lone surrogate"),
        ({"name": 3}, TypeError, "must be a str, got int"),
        ({"metadata": {"x": {1}}}, TypeError, r"metadata\['x'\]"),
        ({"metadata": {1: 2}}, TypeError, "keys of metadata"),
        ({"metadata": "text"}, TypeError, "metadata as a dict, got str"),
        ({"tags": "text"}, TypeError, "tags must be a list"),
        ({"version": "a@b"}, ValueError, "version has an '@'"),
        ({"description": "\ud800"}, ValueError, "description has a lone"),
        ({"schema_ref": "\ud800"}, ValueError, "schema_ref has a lone"),
        ({"schema_ref": 3}, TypeError, "schema_ref as a str, got int"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_invalid_entries_are_refused_before_shards_are_written(
    index, numbers, tmp_path, given, error, match
):
    for call in (
        lambda: index.write_samples([Number(value=1)], **{"name": "n", **given}),
        lambda: index.insert_dataset(numbers(), **{"name": "n", **given}),
    ):
        with pytest.raises(error, match=match):
            call()
    assert list((tmp_path / "store").rglob("*.tar")) == []
    assert list(index.provider.iter_schemas()) == []
    assert index.list_labels() == []


# -- Schemas of entries


def test_equal_fields_make_no_new_schema(index):
    for name in "ab":
        index.write_samples([Number(value=1)], name=name)
    assert [each[:2] for each in index.provider.iter_schemas()] == [("Number", "1.0.0")]


def test_other_fields_make_a_new_version(index):
    first = index.write_samples([Number(value=1)], name="a")

    @typed.packable
    class Other:
        value: int
        more: str

    Other.__name__ = Other.__qualname__ = "Number"
    second = index.write_samples([Other(value=2, more="x")], name="b")
    assert (first.schema_ref, second.schema_ref) == (REF, REF.replace("0@", "1@")) or (
        second.schema_ref == "atdata://local/schema/Number@1.0.1"
    )
    assert index.get_dataset("b").open()[0].more == "x"
    assert not hasattr(index.get_dataset("a").open()[0], "more")


@pytest.mark.parametrize(
    "ref",
    ["local://schemas/custom.Schema@2.0.0", "atdata://local/schema/Schema@2.0.0"],
)
def test_a_schema_is_stored_under_the_reference_that_is_asked_for(index, ref):
    entry = index.write_samples([Number(value=3)], name="n", schema_ref=ref)
    assert entry.schema_ref == ref
    assert index.provider.get_schema_json("Number", "1.0.0") is None
    assert values(index.get_dataset("n").open()) == [3]


def test_a_schema_that_is_there_is_not_replaced(index):
    stored = '{"name": "Number", "version": "1.0.0", "fields": []}'
    index.provider.store_schema("Number", "1.0.0", stored)
    index.write_samples([Number(value=3)], name="n", schema_ref=REF)
    assert index.provider.get_schema_json("Number", "1.0.0") == stored


# -- References and labels


def test_labels_come_before_names(index, numbers):
    plain = index.add_entry(numbers(5, "a"), name="plain")
    remote = index.add_entry(numbers(6, "b"), name="remote")
    index.label("remote", plain.cid, version="9.0.0")
    assert index.get_dataset("remote") == plain
    assert index.get_entry_by_name("remote") == remote
    assert index.get_label("remote", "") == remote


@pytest.mark.parametrize(
    "ref", ["n", "local/n", "@local/n", "atdata://local/dataset/n", "@local/n@1.0.0"]
)
def test_every_reference_finds_the_dataset(index, numbers, ref):
    entry = index.insert_dataset(numbers(), name="n", version="1.0.0")
    assert index.get_dataset(ref) == entry
    assert index.get_label(ref) == entry


def test_a_missing_version_is_not_replaced_by_another(index, numbers):
    index.insert_dataset(numbers(), name="n", version="1.0.0")
    for ref in ("@local/n@3.0.0", "@local/nothing@1.0.0"):
        with pytest.raises(KeyError):
            index.get_dataset(ref)
    with pytest.raises(KeyError):
        index.get_label("n", "3.0.0")
    with pytest.raises(ValueError, match="version"):
        index.get_label("@local/n@1.0.0", "2.0.0")


def test_the_latest_version_is_found(index, numbers):
    entries = {}
    for version in ("1.9.0", "1.10.0", "1.2.0"):
        ds = numbers(3, version)
        entries[version] = index.insert_dataset(ds, name="n", version=version)
    assert index.get_dataset("n") == index.get_label("n") == entries["1.10.0"]


def test_a_label_names_an_entry_that_is_there(index):
    with pytest.raises(KeyError):
        index.label("best", "bafyreinone")
    assert index.list_labels() == []


def test_a_label_whose_entry_is_gone_leads_to_the_name(index, numbers):
    gone = index.add_entry(numbers(5, "a"), name="gone")
    entry = index.add_entry(numbers(6, "b"), name="n")
    index.label("n", gone.cid, version="2.0.0")
    index.provider.remove_entry(gone.cid)
    assert index.get_dataset("n") == entry
    with pytest.raises(KeyError):
        index.get_label("n")


@pytest.mark.parametrize(
    "call",
    [
        lambda index: index.get_dataset(HUGE),
        lambda index: index.get_entry(HUGE),
        lambda index: index.get_label("n", HUGE),
        lambda index: index.list_datasets(HUGE),
        lambda index: index.remove(f"@local/n@{HUGE}"),
        lambda index: index.remove(f"@{HUGE}/n"),
        lambda index: index.get_schema(f"atdata://local/schema/no{HUGE}@1.0.0"),
        lambda index: index.get_lens(f"atdata://local/lens/{HUGE}@1.0.0"),
        lambda index: index.list_schemas(),
    ],
)
def test_messages_are_short(index, call):
    index.provider.store_schema(HUGE, "1.0.0", "no JSON")
    with pytest.raises((KeyError, ValueError)) as caught:
        call(index)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("get", ["get_dataset", "get_entry_by_name", "get_entry"])
def test_a_missing_name_is_a_key_error(index, get):
    with pytest.raises(KeyError, match="nothing"):
        getattr(index, get)("nothing")


@pytest.mark.parametrize(
    "name",
    ["a'b\"c", "*?[x]", "übung/日本", "a@b", " ", "x" * 1000, "..", "a/../b", "-n"],
)
def test_names_are_text(index, numbers, tmp_path, name):
    entry = index.write_samples([Number(value=1)], name=name)
    assert index.get_dataset(name) == entry
    assert index.get_entry_by_name(name) == entry
    inside = (tmp_path / "store").resolve()
    assert all(Path(url).resolve().is_relative_to(inside) for url in entry.data_urls)
    assert values(index.get_dataset(name).open()) == [1]


@pytest.mark.parametrize("name", ["", "local/", "atdata://local/schema/A@1", "@x"])
def test_names_of_nothing_are_refused(index, numbers, name):
    with pytest.raises(ValueError, match=r"name|reference|expected"):
        index.insert_dataset(numbers(), name=name)
    assert index.list_datasets() == []


# -- Repositories


@pytest.fixture
def two(index, tmp_path):
    """Return an index with a repository of its own store."""
    store = typed.LocalDiskStore(tmp_path / "lab")
    lab = typed.create_repository(path=tmp_path / "lab.db", data_store=store)
    return Index(index.provider, data_store=index.data_store, repos={"lab": lab})


def test_a_prefix_is_a_repository(two, tmp_path):
    entry = two.write_samples([Number(value=1)], name="lab/n")
    two.write_samples([Number(value=2)], name="n")
    assert entry.name == "n"
    assert Path(entry.data_urls[0]).is_relative_to(tmp_path / "lab")
    assert two.get_dataset("lab/n") == two.get_dataset("@lab/n") == entry
    assert values(two.get_dataset("lab/n").open()) == [1]
    assert values(two.get_dataset("n").open()) == [2]
    assert [each.name for each in two.list_datasets("lab")] == ["n"]
    assert [values(each.open()) for each in two.list_datasets()] == [[2], [1]]
    assert [values(each.open()) for each in two.datasets] == [[2], [1]]
    assert [values(each.open()) for each in two.entries] == [[2]]
    assert two.all_entries == two.list_entries() == two.list_datasets("local")


def test_a_schema_is_of_the_repository_of_its_entry(two):
    @typed.packable
    class Other:
        text: str

    Other.__name__ = Other.__qualname__ = "Number"
    two.write_samples([Number(value=1)], name="n")
    two.write_samples([Other(text="x")], name="lab/n")
    assert two.get_dataset("n").schema_ref == two.get_dataset("lab/n").schema_ref
    assert two.get_dataset("lab/n").open()[0].text == "x"
    assert two.get_dataset("n").open()[0].value == 1


def test_labels_are_of_a_repository(two):
    entry = two.write_samples([Number(value=1)], name="lab/n")
    two.label("lab/best", entry.cid, version="1.0.0")
    assert two.list_labels("local") == []
    assert sorted(two.list_labels()) == sorted(two.labels)
    assert ("best", entry.cid, "1.0.0") in two.list_labels("lab")
    assert two.get_dataset("lab/best") == entry
    with pytest.raises(KeyError):
        two.label("best", entry.cid)


def test_an_unknown_repository_is_a_key_error(two):
    for call in (two.list_datasets, two.list_labels):
        with pytest.raises(KeyError, match="Unknown repository 'other'"):
            call("other")
    with pytest.raises(KeyError, match="Unknown repository 'other'"):
        two.search(repo="other")


@pytest.mark.parametrize(
    ("repos", "error", "match"),
    [
        ({"local": None}, ValueError, '"local" is reserved'),
        ({"lab": object()}, TypeError, "must be a Repository, got object"),
        ({"a/b": None}, ValueError, "has no /"),
        ({"": None}, ValueError, "has no /"),
    ],
)
def test_repositories_are_checked(tmp_path, repos, error, match):
    with pytest.raises(error, match=match):
        Index(path=tmp_path / "index.db", repos=repos)


# -- Making an index


def test_making_an_index_touches_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    Index()
    Index(path=tmp_path / "folder" / "index.db")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("args", "given", "error", "match"),
    [
        (("mysql",), {}, ValueError, "mysql"),
        ((3,), {}, TypeError, "must be an IndexProvider or backend name"),
        (("sqlite",), {"dsn": "postgresql://h/d"}, TypeError, "takes no dsn"),
        (("redis",), {"path": "x.db"}, TypeError, "takes no path"),
        ((), {"dsn": "postgresql://h/d", "path": "x"}, TypeError, "takes no path"),
        ((), {"atmosphere": "alice.test"}, TypeError, "must be an Atmosphere, got str"),
    ],
)
def test_providers_are_checked(args, given, error, match):
    with pytest.raises(error, match=match):
        Index(*args, **given)


@pytest.mark.parametrize("given", [{"path": URL}, {"provider": URL}])
def test_an_address_is_not_a_path_nor_a_provider(tmp_path, monkeypatch, given):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="given as dsn= or redis=") as caught:
        Index(**given)
    assert "hunter2" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_the_provider_is_that_of_the_arguments(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    for given in ({}, {"path": tmp_path / "x.db"}, {"timeout": 2}):
        assert isinstance(Index(**given).provider, type(Index().provider))
    pytest.importorskip("redis")
    assert Index(host="127.0.0.1", port=1).provider.location.startswith("redis://")
    pytest.importorskip("psycopg")
    dsn = "postgresql://me:hunter2@127.0.0.1:1/db"
    index = Index(dsn=dsn)
    assert index.provider.location == "postgresql://127.0.0.1:1/db"
    assert "hunter2" not in repr(index) + repr(index.repos)


def test_an_open_provider_takes_no_arguments(index, tmp_path):
    with pytest.raises(TypeError, match="takes no path"):
        Index(index.provider, path=tmp_path / "other.db")


# -- Removal


def test_removal_takes_the_entry_and_its_labels(index, numbers):
    ds = numbers()
    entry = index.add_entry(ds, name="n")
    other = index.add_entry(numbers(3, "other"), name="other")
    index.label("best", entry.cid, version="1.0.0")
    index.label("best", other.cid, version="2.0.0")
    index.label("n", other.cid, version="3.0.0")
    index.remove("n")
    assert index.list_datasets() == [other]
    assert sorted(index.list_labels()) == [
        ("best", other.cid, "2.0.0"),
        ("other", other.cid, None),
    ]
    with pytest.raises(KeyError):
        index.get_dataset("n")
    assert values(ds) == [0, 1, 2, 3, 4]


def test_every_entry_of_a_name_is_removed(index):
    for i in range(3):
        index.write_samples([Number(value=i)], name="n")
    assert len(index.list_datasets()) == 3
    index.remove("n")
    assert index.list_datasets() == []


def test_a_name_that_is_only_a_label_loses_its_labels(index, numbers):
    entry = index.add_entry(numbers(), name="n")
    index.label("best", entry.cid, version="1.0.0")
    index.label("best", entry.cid, version="2.0.0")
    index.remove("best")
    assert index.list_labels() == [("n", entry.cid, None)]
    assert index.list_datasets() == [entry]


def test_missing_names_cannot_be_removed(two):
    two.write_samples([Number(value=1)], name="lab/n")
    for name in ("n", "lab/other"):
        with pytest.raises(KeyError, match="No dataset"):
            two.remove(name)
    two.remove("lab/n")
    assert two.list_datasets() == []


def test_a_version_is_not_removed(index):
    index.write_samples([Number(value=1)], name="n", version="1.0.0")
    with pytest.raises(ValueError, match="names a version"):
        index.remove("@local/n@1.0.0")
    assert len(index.list_datasets()) == 1


# -- Hostile entries


def test_a_command_is_never_run(index, tmp_path):
    entry = typed.DatasetEntry("n", REF, [f"pipe:touch {tmp_path}/touched"])
    index.provider.store_entry(entry)
    with pytest.raises(FastshardError, match="commands are never run"):
        index.get_dataset("n").open(Number)
    assert not (tmp_path / "touched").exists()


def test_an_entry_without_shards_is_an_error(index):
    index.provider.store_entry(typed.DatasetEntry("n", REF, []))
    with pytest.raises(FileNotFoundError):
        len(index.get_dataset("n").open(Number))


@pytest.mark.parametrize("change", [{"data_urls": ["/other.tar"]}, {"schema_ref": "x"}])
def test_an_entry_whose_cid_does_not_fit_is_refused(index, numbers, change):
    entry = index.add_entry(numbers(), name="n")
    given = {"schema_ref": entry.schema_ref, "data_urls": entry.data_urls, **change}
    index.provider.store_entry(typed.DatasetEntry("n", cid=entry.cid, **given))
    for look_up in (
        lambda: index.get_dataset("n"),
        lambda: index.get_label("n"),
        lambda: index.get_entry(entry.cid),
        lambda: index.get_entry_by_name("n"),
    ):
        with pytest.raises(IndexRowError, match=r"cid of entry 'n'.*index\.db"):
            look_up()
    assert [each.has_own_cid() for each in index.list_datasets()] == [False]
    index.remove("n")
    assert index.list_datasets() == []


@pytest.mark.parametrize("call", ["list_datasets", "list_labels"])
def test_a_missing_repository_is_named_without_a_network(bare_index, call):
    with pytest.raises(KeyError, match="Unknown repository 'nothing'"):
        getattr(bare_index, call)("nothing")
