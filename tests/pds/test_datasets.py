"""Datasets on real servers: published, found, promoted, read by others."""

import hashlib

import pytest

from fastshard import typed
from fastshard.errors import FormatError, RemoteError
from fastshard.typed import atmosphere
from support.inside.typed import options_of

NSID = "science.alt.dataset"


def labels_of(ds):
    return [sample.label for sample in ds]


def test_samples_are_published_and_read(fresh, digits, digit_type, tmp_path):
    index = typed.AtmosphereIndex(fresh)
    entry = index.write_samples(
        digits,
        name="digits",
        version="1.0.0",
        description="ten digits",
        tags=["a", "b"],
        license="MIT",
        maxcount=4,
        metadata={"rate": 0.25, "raw": b"\x00\xff"},
    )
    reader = typed.Atmosphere(fresh.base_url, plc_url=options_of(fresh)["plc_url"])
    found = typed.AtmosphereIndex(reader).get_dataset(f"@{fresh.handle}/digits@1.0.0")
    assert found == entry
    assert found.metadata == {"rate": 0.25, "raw": b"\x00\xff"}
    assert labels_of(found.open(cache_dir=tmp_path)) == list(range(10))
    ds = found.open(digit_type, cache_dir=tmp_path)
    assert ds[9].image.tolist() == [[9] * 4] * 4
    assert sorted(labels_of(ds.shuffle(seed=3))) == list(range(10))
    for url, digest in found.checksums.items():
        blob = reader.get_blob(fresh.did, url.rpartition("=")[2])
        assert hashlib.sha256(blob).hexdigest() == digest


def test_names_among_more_than_a_hundred_records(fresh, digits):
    index = typed.AtmosphereIndex(fresh)
    entries = [
        index.write_samples(digits[: i + 1], name="digits", version=f"{i}.0.0")
        for i in range(3)
    ]
    for i in range(240):
        index.label(f"other {i}", entries[0].uri, version="1.0.0")
    loader = typed.LabelLoader(fresh)
    for i, entry in enumerate(entries):
        assert loader.resolve(fresh.handle, "digits", f"{i}.0.0") == entry.uri
    assert loader.resolve(fresh.did, "digits") == entries[2].uri
    assert index.get_dataset(f"@{fresh.handle}/other 7") == entries[0]
    with pytest.raises(KeyError):
        loader.resolve(fresh.handle, "digits", "3.0.0")
    index.label("digits", entries[1].uri, version="3.0.0")
    assert loader.resolve(fresh.handle, "digits") == entries[1].uri


def test_promotion_makes_no_schema_and_no_record_twice(
    fresh, digits, digit_type, tmp_path
):
    local = typed.Index(path=tmp_path / "index.db", atmosphere=None)
    store = typed.LocalDiskStore(tmp_path / "store")
    entry = local.write_samples(digits, name="digits", maxcount=4, data_store=store)
    with pytest.raises(ValueError, match="not a URL that others can read"):
        typed.promote_to_atmosphere(entry, local, fresh)
    blobs = typed.PDSBlobStore(fresh)
    uri = typed.promote_to_atmosphere(entry, local, fresh, data_store=blobs)
    assert typed.promote_to_atmosphere(entry, local, fresh, data_store=blobs) == uri

    urls = ["https://data.example/0.tar", "s3://bucket/0.tar"]
    for name, url in zip(("http", "s3"), urls, strict=True):
        ds = typed.Dataset[digit_type](url)
        other = local.insert_dataset(ds, name=name)
        typed.promote_to_atmosphere(other, local, fresh)
    assert len(fresh.list_schemas()) == 1
    assert len(fresh.list_datasets()) == len(fresh.list_labels()) == 3

    index = typed.AtmosphereIndex(fresh)
    found = index.get_dataset(uri)
    assert sorted(found.checksums.values()) == sorted(entry.checksums.values())
    assert labels_of(found.open(cache_dir=tmp_path)) == list(range(10))
    assert index.get_dataset(f"@{fresh.handle}/s3").data_urls == urls[1:]


def test_a_dataset_of_another_server(accounts, alice, digits, digit_type, tmp_path):
    carol = accounts.login("carol.test", 1)
    assert carol.base_url != alice.base_url
    theirs = typed.AtmosphereIndex(carol).write_samples(digits, name="theirs")

    index = typed.AtmosphereIndex(alice)
    found = index.get_dataset(theirs.uri)
    assert found == theirs
    assert found.data_urls[0].startswith(f"{carol.base_url}/")
    assert labels_of(found.open(digit_type, cache_dir=tmp_path)) == list(range(10))
    assert [entry.uri for entry in index.list_datasets(carol.did)] == [theirs.uri]
    assert typed.LabelLoader(alice).resolve(carol.did, "theirs") == theirs.uri

    index.label("of carol", theirs.uri)
    assert index.get_dataset("@alice.test/of carol") == theirs
    with pytest.raises(ValueError, match="not a record of alice"):
        alice.delete_record(theirs.uri)


def test_lenses_and_verifications(fresh, digit_type):
    schema = typed.SchemaPublisher(fresh).find_or_publish(digit_type)
    uri = typed.LensPublisher(fresh).publish(
        name="a",
        source_schema_uri=schema,
        target_schema_uri=schema,
        code_repository="https://git.example/lenses",
        code_commit="0" * 40,
        getter_path="a:get",
        putter_path="a:put",
    )
    lenses = typed.LensLoader(fresh)
    assert lenses.find_by_schemas(str(schema), str(schema)) == [lenses.get(uri)]
    typed.VerificationPublisher(fresh).publish(
        lens_uri=uri,
        lens_commit=lenses.get(uri).cid,
        verification_method="signedHash",
        code_hash=atmosphere.CodeHash("sha256", "ab" * 32),
    )
    (found,) = typed.VerificationLoader(fresh).list_for_lens(str(uri))
    assert found["lensCommit"] == lenses.get(uri).cid


def test_a_dataset_whose_blobs_are_gone(fresh, digits, tmp_path):
    index = typed.AtmosphereIndex(fresh)
    entry = index.write_samples(digits, name="digits")
    fresh.delete_record(entry.uri)
    with pytest.raises(RemoteError):
        labels_of(entry.open(type(digits[0]), cache_dir=tmp_path))
    with pytest.raises(KeyError):
        index.get_dataset(f"@{fresh.handle}/digits")
    again = index.write_samples(digits, name="digits")
    assert labels_of(again.open(cache_dir=tmp_path)) == list(range(10))


def test_damaged_records_are_named(fresh):
    record = {"$type": f"{NSID}.entry", "name": "a", "storage": {"$type": "x"}}
    uri = fresh.create_record(f"{NSID}.entry", record)
    entry = typed.AtmosphereIndex(fresh).get_dataset(uri)
    assert entry.data_urls == []
    with pytest.raises(FormatError, match="schemaRef") as caught:
        entry.open()
    assert caught.value.path == str(uri)
