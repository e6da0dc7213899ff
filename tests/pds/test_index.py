"""An index and real servers: one call to publish, one to load."""

import pytest

from fastshard import typed


@pytest.fixture
def index(fresh, tmp_path):
    return typed.Index(path=tmp_path / "index.db", atmosphere=fresh)


@pytest.fixture
def anyone(accounts):
    return accounts.anonymous()


def test_samples_are_published_and_loaded_by_their_name(
    index, fresh, anyone, digits, digit_type, tmp_path
):
    name = f"@{fresh.handle}/digits"
    entry = index.write_samples(
        digits, name=name, version="1.0.0", maxcount=4, metadata={"rate": 0.25}
    )
    index.write_samples(digits[:3], name=name, version="2.0.0")
    for path, count in (
        (name, 3),
        (f"{name}@1.0.0", 10),
        (f"{name}@2.0.0", 3),
        (entry.uri, 10),
    ):
        ds = typed.load_dataset(
            path, split="train", atmosphere=anyone, cache_dir=tmp_path / "cache"
        )
        assert [sample.label for sample in ds] == list(range(count))
        declared = typed.load_dataset(
            path,
            digit_type,
            split="train",
            atmosphere=anyone,
            cache_dir=tmp_path / "cache",
        )
        assert declared[2].image.tolist() == [[2] * 4] * 4
        batches = list(declared.shuffled(batch_size=2, seed=1))
        assert sum(len(batch.label) for batch in batches) == count
    with pytest.raises(KeyError):
        typed.load_dataset(f"{name}@3.0.0", atmosphere=anyone)
    assert len(fresh.list_schemas()) == 1


def test_entries_are_promoted(index, fresh, digits, digit_type, tmp_path):
    store = typed.LocalDiskStore(tmp_path / "store")
    local = index.write_samples(digits, name="digits", data_store=store)
    with pytest.raises(ValueError, match="not a URL that others can read"):
        index.promote_entry("digits")
    uri = index.promote_entry("digits", data_store=typed.PDSBlobStore(fresh))
    found = index.get_dataset(f"@{fresh.handle}/digits")
    assert found.uri == uri
    assert sorted(found.checksums.values()) == sorted(local.checksums.values())
    ds = typed.Dataset[digit_type]("https://data.example/{0..1}.tar")
    other = index.promote_dataset(ds, name="urls")
    assert index.get_dataset(other).data_urls == [
        "https://data.example/0.tar",
        "https://data.example/1.tar",
    ]
    assert len(fresh.list_schemas()) == 1
    labels = {name for name, _, _ in index.list_labels(f"@{fresh.handle}")}
    assert labels == {"digits", "urls"}


def test_another_account_is_read_but_not_written(accounts, index, digits, tmp_path):
    carol = accounts.login("carol.test", 1)
    theirs = typed.Index(path=tmp_path / "carol.db", atmosphere=carol)
    entry = theirs.write_samples(digits, name="@carol.test/of carol")
    found = index.get_dataset(entry.uri)
    ds = found.open(cache_dir=tmp_path / "cache")
    assert [sample.label for sample in ds] == list(range(10))
    with pytest.raises(ValueError, match="another account"):
        index.write_samples(digits, name=f"@{carol.did}/mine")
