"""atdata reads and writes the stores that are written here, and the other way round."""

import pytest

from fastshard.catalog.entry import DatasetEntry

pytest.importorskip("atdata")

ENTRY = DatasetEntry(
    "plain", "atdata://local/schema/Vec@1.0.0", ["a.tar"], {"n": 1, "raw": b"\xff"}
)


@pytest.fixture
def theirs(kind, options):
    """Return atdata's provider of the same store."""
    from atdata.providers import create_provider

    if kind == "redis":
        redis = pytest.importorskip("redis")
        options = {"redis": redis.Redis(**options)}
    provider = create_provider(kind, **options)
    yield provider
    provider.close()


def test_atdata_reads_our_payloads(provider, theirs):
    provider.store_entry(ENTRY)
    provider.store_label("plain", ENTRY.cid, "1.0.0", "words")
    provider.store_label("best", ENTRY.cid)
    provider.store_schema_version("Vec", lambda known: ("1.0.0", '{"name": "Vec"}'))
    provider.store_lens("lens", "1.0.0", '{"source_schema": "Vec"}')

    for found in (
        theirs.get_entry_by_cid(ENTRY.cid),
        theirs.get_entry_by_name("plain"),
        *theirs.iter_entries(),
    ):
        assert (found.name, found.schema_ref) == (ENTRY.name, ENTRY.schema_ref)
        assert (found.data_urls, found.metadata) == (ENTRY.data_urls, ENTRY.metadata)
        assert found.cid == ENTRY.cid
    assert theirs.get_label("plain") == (ENTRY.cid, "1.0.0")
    assert theirs.get_label("best") == (ENTRY.cid, None)
    assert sorted(theirs.iter_labels(), key=str) == sorted(
        provider.iter_labels(), key=str
    )
    assert list(theirs.iter_schemas()) == list(provider.iter_schemas())
    assert theirs.find_latest_version("Vec") == "1.0.0"
    assert list(theirs.iter_lenses()) == list(provider.iter_lenses())
    assert theirs.find_lenses_by_schemas("Vec") == provider.find_lenses_by_schemas(
        "Vec"
    )


def test_payloads_of_atdata_are_read(provider, theirs):
    from atdata.local import LocalDatasetEntry

    entry = LocalDatasetEntry(
        name=ENTRY.name,
        schema_ref=ENTRY.schema_ref,
        data_urls=ENTRY.data_urls,
        metadata=ENTRY.metadata,
    )
    provider.store_label("before", "cid")  # both write
    theirs.store_entry(entry)
    theirs.store_label("plain", entry.cid, "1.0.0", "words")
    theirs.store_schema("Vec", "1.0.0", "{}")
    theirs.store_lens("lens", "1.0.0", "{}")
    assert provider.get_entry_by_name("plain") == ENTRY
    assert list(provider.iter_entries()) == [ENTRY]
    assert provider.get_label("plain") == (ENTRY.cid, "1.0.0")
    assert [row.description for row in provider.iter_label_rows("plain")] == ["words"]
    assert list(provider.iter_schemas()) == [("Vec", "1.0.0", "{}")]
    assert list(provider.iter_lenses()) == [("lens", "1.0.0", "{}")]
    provider.store_label("plain", ENTRY.cid, "2.0.0")
    assert provider.get_label("plain") == (ENTRY.cid, "2.0.0")
