"""Records that atdata and others published, as a PDS lists them: byte for byte."""

import json

import pytest

from fastshard.atmosphere.cid import encode, generate_cid_from_bytes
from fastshard.errors import SchemaError
from fastshard.typed import atmosphere
from support.typed.index_data import COLLECTIONS, HANDLES

CLASSES = {
    cls.TYPE: cls
    for cls in (
        atmosphere.EntryRecord,
        atmosphere.LabelRecord,
        atmosphere.LensRecord,
        atmosphere.LensVerificationRecord,
        atmosphere.SchemaRecord,
    )
}


def sort_keys(value):
    """Return a value with the keys of maps in the order of DAG-CBOR."""
    if isinstance(value, dict):
        keys = sorted(value, key=lambda key: (len(key.encode()), key.encode()))
        return {key: sort_keys(value[key]) for key in keys}
    return [sort_keys(item) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize("collection", COLLECTIONS)
@pytest.mark.parametrize("handle", HANDLES)
def test_pages_of_records_are_written_again(index_data, handle, collection):
    name = f"records/{handle}/science.alt.dataset.{collection}.json"
    data = (index_data.root / name).read_bytes()
    page = json.loads(data)

    for record in page["records"]:
        value = record["value"]
        if value.get("atdataSchemaVersion") == 99:
            with pytest.raises(SchemaError, match="version 99"):
                CLASSES[value["$type"]].from_record(value, uri=record["uri"])
            continue
        read = CLASSES[value["$type"]].from_record(value, uri=record["uri"])
        record["value"] = sort_keys(read.to_record())
        cid = generate_cid_from_bytes(encode(read.to_record(), record=True))
        assert cid == record["cid"]

    text = json.dumps(page, ensure_ascii=False, separators=(",", ":"))
    assert text.encode() == data


def test_metadata_are_stored_unchanged(index_data):
    metadata = {
        record["uri"]: CLASSES[record["value"]["$type"]]
        .from_record(record["value"])
        .metadata
        for record in index_data.records("alice.test", "entry")
    }
    expected = index_data.expected("records")["entries"]
    assert metadata == {uri: entry["metadata"] for uri, entry in expected.items()}
    assert sum(each is not None for each in metadata.values()) == 2

    by_name = {
        record["value"]["name"]: atmosphere.EntryRecord.from_record(record["value"])
        for record in index_data.records("bob.test", "entry")
    }
    told = {"split": "test", "rate": 0.25, "raw": b"\x00\xff"}
    assert by_name["bytes"].metadata == by_name["bytes3"].metadata == told
    assert by_name["sized"].size == atmosphere.DatasetSize(6, 20480, 2)
    assert by_name["unsummed"].storage.shards[0].checksum is None
    assert by_name["unknown"].storage.extra == {"reels": 2}
