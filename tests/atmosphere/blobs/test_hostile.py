"""Servers of blobs that answer with something else, in bounded time."""

import time

import pytest

from fastshard import typed
from fastshard.errors import FormatError, RemoteError, RemoteNotFoundError
from support.servers.atproto.pds import FakePds
from support.servers.atproto.xrpc import Reply
from support.threads import SOON
from support.typed.blobs import Caption, store_blob, wait_for


@pytest.fixture(autouse=True)
def is_quick():
    begun = time.monotonic()
    yield
    assert time.monotonic() - begun < SOON


def read(stored, **options):
    return stored.dataset(**{"timeout": 1.0, **options}).head(1)[0]


def answer(stored, reply):
    """Answer each download so."""

    def hook(call):
        return reply(call) if call.nsid.endswith("getBlob") else None

    stored.server.hook = hook


def data_of(stored, call):
    return stored.account.blobs[call.get("cid")][0]


def write_raw(call, head, *pieces):
    """Write an answer by hand, and close the connection."""
    connection = call.handler.connection
    connection.sendall(head)
    for piece in pieces:
        connection.sendall(piece)
    raise ConnectionError


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda data: data[:-512], "bytes"),
        (lambda data: data + b"\0" * 512, "larger than"),
        (lambda data: data[:600] + b"X" + data[601:], "CID"),
        (lambda _: b"", "bytes"),
        (lambda _: b"<html>sign in</html>", "bytes"),
        (lambda _: b'{"error": "InternalServerError"}', "bytes"),
    ],
    ids=["shorter", "longer", "changed", "empty", "html", "error"],
)
def test_other_bytes_are_refused(stored, change, text):
    answer(stored, lambda call: Reply(change(data_of(stored, call))))

    with pytest.raises(RemoteError, match=text) as caught:
        read(stored)

    assert stored.refs[0]["cid"] in str(caught.value) or "getBlob" in str(caught.value)
    assert stored.files() == []
    wait_for(lambda: stored.unfinished() == [])


@pytest.mark.parametrize("change", [lambda data: data[:-1], lambda _: b"<html>"])
def test_other_bytes_of_no_announced_size_are_refused(stored, change):
    for ref in stored.refs:
        del ref["size"]
    answer(stored, lambda call: Reply(change(data_of(stored, call))))

    with pytest.raises(RemoteError, match="CID"):
        read(stored)


@pytest.mark.parametrize("size", [1, 511, 10**12])
def test_a_size_that_is_not_the_blobs_is_refused(stored, size):
    stored.refs[0]["size"] = size

    with pytest.raises(RemoteError, match="bytes"):
        read(stored)


def test_a_wrong_size_of_a_cached_blob_is_refused(stored):
    read(stored)
    stored.refs[0]["size"] += 1

    with pytest.raises(RemoteError, match="as the record says"):
        read(stored)


def test_half_a_blob_is_an_error(stored):
    def half(call):
        data = data_of(stored, call)
        head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(data)}\r\n\r\n".encode()
        write_raw(call, head, data[: len(data) // 2])

    answer(stored, half)
    with pytest.raises(RemoteError):
        read(stored)
    assert stored.files() == []


def test_half_a_blob_and_then_all_of_it_is_read(stored, captions):
    def once(call):
        data = data_of(stored, call)
        if stored.downloads > 1:
            return
        head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(data)}\r\n\r\n".encode()
        write_raw(call, head, data[:700])

    answer(stored, once)
    assert read(stored) == captions[0]


def test_a_chunked_blob_is_read(stored, captions):
    def chunked(call):
        data = data_of(stored, call)
        head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
        pieces = [data[at : at + 700] for at in range(0, len(data), 700)]
        body = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces)
        write_raw(call, head, body + b"0\r\n\r\n")

    answer(stored, chunked)
    assert read(stored) == captions[0]


def test_an_endless_blob_ends_at_the_size_of_the_record(stored):
    sent = []

    def endless(call):
        call.handler.connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        while not stored.server.stopping.is_set():
            call.handler.connection.sendall(b"x" * 65536)
            sent.append(65536)
        raise ConnectionError

    answer(stored, endless)
    with pytest.raises(RemoteError, match="larger"):
        read(stored)
    assert stored.files() == []


def test_a_server_that_says_nothing_is_an_error(stored):
    def silent(_):
        stored.server.stopping.wait(10)
        raise ConnectionError

    answer(stored, silent)
    with pytest.raises(RemoteError):
        read(stored)


@pytest.mark.parametrize("status", [400, 404, 410])
def test_a_missing_blob_is_not_found(stored, status):
    error = {"error": "InvalidRequest", "message": "Blob not found"}
    answer(stored, lambda _: Reply(error, status))

    with pytest.raises(RemoteNotFoundError, match="Blob not found"):
        read(stored)


def test_a_busy_server_is_asked_again(stored, captions):
    def busy(_):
        if stored.downloads > 1:
            return None
        return Reply({"error": "RateLimitExceeded"}, 429, {"retry-after": "0"})

    answer(stored, busy)
    assert read(stored) == captions[0]


def test_a_server_that_is_busy_for_long_is_an_error(stored):
    late = Reply({"error": "RateLimitExceeded"}, 429, {"retry-after": "3600"})
    answer(stored, lambda _: late)

    with pytest.raises(RemoteError, match="3,600"):
        read(stored)


def test_redirects_lead_to_the_bytes_of_the_cid_or_nowhere(stored, captions):
    with FakePds() as other:
        account = other.create_account("alice.test")
        other.accounts[stored.account.did] = account
        for ref in stored.refs:
            store_blob(account, stored.account.blobs[ref["cid"]][0])

        def elsewhere(call):
            query = f"did={call.get('did')}&cid={call.get('cid')}"
            url = f"{other.url}/xrpc/com.atproto.sync.getBlob?{query}"
            return Reply(b"", 302, {"location": url})

        answer(stored, elsewhere)
        assert read(stored) == captions[0]
        assert not any("authorization" in call.headers for call in other.calls)


@pytest.mark.parametrize(
    "cid",
    [
        "bafyreia3upfjwgxmdq3ekwaqeo3gdslo64ge2ysq2mxe3u5mn2zkh2m524",
        "bafkrei",
        "..",
        "../../etc/passwd",
        "Qm" + "a" * 44,
        "b" * 100_000,
        "bafkreicdff6beodzj23e7triejvyylcfronm2mfwfwthyfw6emy3rnkqv%00",
    ],
)
def test_a_non_cid_of_a_blob_is_refused(stored, cid):
    if "/" in cid:
        with pytest.raises(ValueError, match="reference"):
            typed.BlobSource([{"did": "did:plc:abc", "cid": cid}])
        return
    stored.refs[:] = [{"did": stored.account.did, "cid": cid}]

    with pytest.raises(RemoteError) as caught:
        read(stored)

    assert len(str(caught.value)) < 1500
    assert stored.downloads == 0


@pytest.mark.parametrize(
    "did", ["did:", "alice.test", "did:plc:a b", "x" * 10**6, ".."]
)
def test_a_non_did_is_refused(stored, did):
    stored.refs[:] = [{"did": did, "cid": stored.refs[0]["cid"]}]

    with pytest.raises(RemoteError, match="not a DID"):
        read(stored)


def test_a_blob_that_is_not_a_tar_names_its_url(stored):
    stored.refs[:] = [store_blob(stored.account, b"<html>" * 500)]

    with pytest.raises(FormatError, match=stored.refs[0]["cid"]):
        read(stored)


def test_a_fault_in_a_payload_names_the_blob(stored, tmp_path):
    class Other(typed.PackableSample):
        missing: int

    ds = typed.Dataset[Other](stored.source())
    with pytest.raises(typed.SchemaError, match=stored.refs[0]["cid"]):
        ds.head(1)


def test_the_server_of_a_did_is_that_of_its_document(stored, captions):
    server = stored.server
    options = {"pds_endpoint": None, "plc_url": server.plc.url}

    assert read(stored, **options) == captions[0]
    assert 1 <= server.plc.count() <= 3  # of threads that download at the same time

    server.plc.documents[stored.account.did]["service"] = []
    stored.cache_dir = stored.cache_dir.with_name("another")
    with pytest.raises(ValueError, match="names no server"):
        read(stored, **options)


@pytest.mark.parametrize(
    "endpoint",
    [
        "http://169.254.169.254",
        "http://10.0.0.1",
        "https://localhost",
        "ftp://host",
        "",
    ],
)
def test_a_document_that_names_a_private_server_is_refused(stored, endpoint):
    document = stored.server.plc.documents[stored.account.did]
    document["service"][0]["serviceEndpoint"] = endpoint

    with pytest.raises((ValueError, RemoteError)):
        read(
            stored,
            pds_endpoint=None,
            plc_url=stored.server.plc.url,
            private_hosts=False,
        )


def test_errors_of_one_blob_leave_the_others(stored):
    bad = stored.refs[1]["cid"]

    def hook(call):
        if call.get("cid") == bad:
            return Reply({"error": "InvalidRequest", "message": "Blob not found"}, 400)
        return None

    stored.server.hook = hook
    ds = typed.Dataset[Caption](stored.source(timeout=1))
    samples = iter(ds.ordered())

    assert [next(samples).number for _ in range(4)] == [0, 1, 2, 3]
    with pytest.raises(RemoteNotFoundError):
        next(samples)
