"""The same calls of an index on every kind of store."""

import multiprocessing
import threading

import numpy as np
import pytest
from numpy.typing import NDArray

from fastshard import typed
from fastshard.catalog.index import Index
from support.marks import not_sanitized
from support.typed import lens_module
from support.typed.numbers import Number

pytestmark = not_sanitized  # tests no C code


@pytest.fixture(params=["sqlite", "redis", "postgres"])
def connect(request, tmp_path):
    """Return a function that makes an index on one new store."""
    kind = request.param
    if kind == "sqlite":
        options = {"path": tmp_path / "index.db"}
    else:
        options = request.getfixturevalue(f"{kind}_server").new()
    store = typed.LocalDiskStore(tmp_path / "store")
    made = []

    def make():
        made.append(Index(kind, data_store=store, atmosphere=None, **options))
        return made[-1]

    yield make
    for index in made:
        index.provider.close()


def numbers(n):
    return [Number(value=i) for i in range(n)]


def values(ds):
    return [sample.value for sample in ds]


def test_a_dataset_lives_and_goes(connect):
    index = connect()
    first = index.write_samples(numbers(5), name="it's/a*", version="1.9.0", maxcount=2)
    second = index.write_samples(numbers(3), name="it's/a*", version="1.10.0")
    other = index.insert_dataset(first.open(Number), name="other", tags=["a"])
    index.label("best", first.cid, version="1.0.0", description="of May")

    again = connect()
    assert again.get_dataset("it's/a*") == second
    assert again.get_dataset("@local/it's/a*@1.9.0") == first
    assert again.get_entry(other.cid) == again.get_entry_by_name("other") == other
    assert values(again.get_dataset("best").open()) == [0, 1, 2, 3, 4]
    loaded = typed.load_dataset("other", Number, index=again, split="train")
    assert values(loaded) == [0, 1, 2, 3, 4]
    assert sorted(entry.cid for entry in again.list_datasets()) == sorted(
        entry.cid for entry in (first, second, other)
    )
    assert sorted(each[:1] + each[2:] for each in again.list_labels()) == [
        ("best", "1.0.0"),
        ("it's/a*", "1.10.0"),
        ("it's/a*", "1.9.0"),
        ("other", None),
    ]
    assert [found.name for found in again.search(tags=["a"])] == ["other"]
    assert typed.verify_checksums(other) == dict.fromkeys(other.data_urls, "ok")

    again.remove("it's/a*")
    assert [entry.name for entry in index.list_datasets()] == ["other"]
    assert [label[0] for label in index.list_labels()] == ["other"]
    with pytest.raises(KeyError):
        index.get_dataset("it's/a*")


def test_metadata_come_back_as_they_were(connect):
    given = {
        "rate": 0.25,
        "raw": b"\0\xff",
        "título": "日本",
        "nested": {"a": [1, None]},
    }
    index = connect()
    index.write_samples(numbers(1), name="n", metadata=given)
    found = dict(connect().get_dataset("n").metadata)
    assert found.pop("checksums") == index.get_dataset("n").checksums
    assert found == given


def test_threads_share_an_index(connect):
    index = connect()
    failed = []

    def write(number):
        try:
            for i in range(4):
                index.write_samples(numbers(1), name=f"{number}-{i}")
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert len(index.list_datasets()) == len(index.list_labels()) == 16
    assert len(index.list_schemas()) == 1


@pytest.mark.skipif(
    "fork" not in multiprocessing.get_all_start_methods(), reason="no fork"
)
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_an_index_is_used_after_a_fork(connect):
    index = connect()
    index.write_samples(numbers(1), name="before")

    def write(number):
        index.write_samples(numbers(number), name=f"child {number}")

    fork = multiprocessing.get_context("fork")
    children = [fork.Process(target=write, args=(number,)) for number in (1, 2, 3)]
    for child in children:
        child.start()
    index.write_samples(numbers(4), name="parent")
    for child in children:
        child.join(60)
    assert [child.exitcode for child in children] == [0, 0, 0]
    assert len(index.list_datasets()) == 5
    assert values(index.get_dataset("child 3").open()) == [0, 1, 2]
    assert len(index.list_schemas()) == 1


def shared(i):
    """Return a type of the name that all publish, with other fields for each number."""
    fields = {f"field_{i}": int, "x": NDArray[np.float32], "note": str | None}
    return type("Shared", (typed.PackableSample,), {"__annotations__": fields})


def test_schemas_live_in_the_store(connect):
    index = connect()
    refs = [index.publish_schema(shared(i)) for i in (0, 1, 0)]
    assert refs == [f"atdata://local/schema/Shared@1.0.{i}" for i in (0, 1, 0)]
    again = connect()
    assert again.publish_schema(shared(1)) == refs[1]
    assert sorted(each["$ref"] for each in again.list_schemas()) == refs[:2]
    assert again.get_schema(refs[1]) == index.get_schema(refs[1])
    made = again.get_schema_type(refs[1])
    assert made is index.get_schema_type(refs[1])
    assert typed.schema_of(made) == typed.schema_of(shared(1))
    with pytest.raises(KeyError):
        again.get_schema_type("atdata://local/schema/Shared@1.0.2")


def test_lenses_live_in_the_store(connect):
    index = connect()
    refs = [index.store_lens(lens_module.length, name="it's/l*") for _ in range(2)]
    again = connect()
    assert [again.get_lens(ref)["version"] for ref in refs] == ["1.0.0", "1.0.1"]
    assert sorted(each["$ref"] for each in again.list_lenses()) == refs
    assert again.list_lenses() == again.find_lenses("Person", "Length")
    assert again.find_lenses("Person", "Person") == again.find_lenses("P*") == []
    lens = again.load_lens(refs[0], allow_code=True)
    assert lens(lens_module.Person("abc", 1)) == lens_module.Length(3)


@pytest.mark.skipif(
    "fork" not in multiprocessing.get_all_start_methods(), reason="no fork"
)
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_processes_that_publish_the_same_schemas(connect):
    fork = multiprocessing.get_context("fork")
    barrier, published = fork.Barrier(4), fork.Queue()

    def publish():
        index = connect()
        barrier.wait(60)
        for i in range(6):
            published.put((i, index.publish_schema(shared(i))))

    processes = [fork.Process(target=publish) for _ in range(4)]
    for each in processes:
        each.start()
    found = {published.get(timeout=60) for _ in range(24)}
    for each in processes:
        each.join(60)
    assert [each.exitcode for each in processes] == [0] * 4
    refs = sorted(ref for _, ref in found)
    assert refs == sorted(each["$ref"] for each in connect().list_schemas())
    assert len(refs) == 6
