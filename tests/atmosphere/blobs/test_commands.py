"""``fastshard cache`` of at:// URLs."""

import json

import pytest

from fastshard.cli import main


@pytest.fixture
def entry(stored, monkeypatch):
    """Return the URI of a record whose shards are the blobs."""
    monkeypatch.setenv("ATDATA_PLC_URL", stored.server.plc.url)
    monkeypatch.setenv("ATDATA_PDS_URL", stored.server.url)
    blobs = [
        {"blob": {**blob["blob"]}}
        for _, blob in stored.account.records["test.blobs"].values()
    ]
    record = {
        "$type": "science.alt.dataset.entry",
        "name": "captions",
        "schemaRef": f"at://{stored.account.did}/science.alt.dataset.schema/x",
        "storage": {"$type": "science.alt.dataset.storageBlobs", "blobs": blobs},
        "createdAt": "2026-01-01T00:00:00Z",
    }
    collection = "science.alt.dataset.entry"
    stored.account.records[collection] = {"captions": ("bafyrei", record)}
    return f"at://{stored.account.did}/{collection}/captions"


def run(capsys, *args):
    status = main(["cache", *map(str, args)])
    captured = capsys.readouterr()
    assert not captured.err or status == 0, captured.err
    return status, captured.out


@pytest.mark.parametrize("authority", ["did", "handle"])
def test_blobs_of_an_entry_are_downloaded_listed_and_removed(
    stored, entry, capsys, captions, authority
):
    where = ["--cache-dir", stored.cache_dir]
    uri = (
        entry if authority == "did" else entry.replace(stored.account.did, "alice.test")
    )

    status, out = run(capsys, "warm", uri, "--json", *where)
    assert status == 0
    shards = [json.loads(line) for line in out.splitlines()]
    assert [each["bytes"] for each in shards] == [ref["size"] for ref in stored.refs]

    status, out = run(capsys, "ls", "--json", *where)
    listed = [json.loads(line) for line in out.splitlines()]
    assert {each["url"] for each in listed} == {each["shard"] for each in shards}
    assert all(each["whole"] for each in listed)

    stored.server.forget()
    assert list(stored.dataset(offline=True).ordered()) == captions
    assert stored.server.count() == 0

    assert run(capsys, "clear", shards[0]["shard"], *where)[0] == 0
    assert len(stored.files()) == 2
    assert run(capsys, "clear", uri, *where)[0] == 0
    assert stored.files() == []


def test_one_blob_is_downloaded_into_the_users_cache(
    stored, entry, capsys, monkeypatch
):
    monkeypatch.setenv("FASTSHARD_CACHE", str(stored.cache_dir))
    ref = stored.refs[1]

    status, _ = run(capsys, "warm", f"at://{ref['did']}/blob/{ref['cid']}")

    assert status == 0
    assert [path.stat().st_size for path in stored.files()] == [ref["size"]]


def test_a_blob_that_cannot_be_downloaded_is_an_error(stored, entry, capsys):
    stored.account.blobs.clear()
    where = ["--cache-dir", stored.cache_dir]

    status = main(["cache", "warm", entry, *map(str, where)])

    captured = capsys.readouterr()
    assert status == 1
    assert "Blob not found" in captured.err
    assert "Traceback" not in captured.err


@pytest.mark.parametrize(
    "url",
    [
        "at://",
        "at://did:plc:abc",
        "at://alice.test/blob/x",
        "at://alice.test/science.alt.dataset.entry/gone",
        "at://nobody.test/science.alt.dataset.entry/captions",
    ],
)
def test_a_missing_name_is_an_error(stored, entry, capsys, url):
    status = main(["cache", "warm", url, "--cache-dir", str(stored.cache_dir)])

    captured = capsys.readouterr()
    assert status in (1, 2)
    assert captured.err.startswith("fastshard")
    assert "Traceback" not in captured.err
