"""A personal data server in this process: accounts, records, blobs, sessions.

Its answers are those of `@atproto/pds`, as recorded in `exchanges.json`.
"""

from __future__ import annotations

import itertools
import json
import re
import time
from base64 import urlsafe_b64encode
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from support.servers.atproto.dag import (
    InvalidRecordError,
    blob_cid,
    blobs_in,
    normalize,
    record_cid,
)
from support.servers.atproto.plc import FakePlc, make_did, make_document
from support.servers.atproto.xrpc import Call, Reply, XrpcError, XrpcServer

__all__ = ["Account", "FakePds"]

MOST_BLOB = 50 << 20  # bytes
MOST_JSON = 1 << 20
KEY = re.compile(r"[A-Za-z0-9._:~-]{1,512}")
LETTERS = "234567abcdefghijklmnopqrstuvwxyz"  # of keys that the server makes
SAFE = {
    "x-content-type-options": "nosniff",
    "content-security-policy": "default-src 'none'; sandbox",
}
numbers = itertools.count(1)


@dataclass
class Account:
    """An account, and its repository.

    Attributes
    ----------
    records : dict
        By collection, the records by key; each as ``(cid, value)``.
    blobs : dict
        Bytes and type by CID, of all uploads.
    """

    did: str
    handle: str
    password: str
    records: dict[str, dict[str, tuple[str, Any]]] = field(default_factory=dict)
    blobs: dict[str, tuple[bytes, str]] = field(default_factory=dict)

    def referred(self) -> set[str]:
        """Return the CIDs of the blobs that records refer to."""
        repository = self.records.values()
        values = [value for c in repository for _, value in c.values()]
        return {cid for value in values for cid in blobs_in(value)}


class FakePds(XrpcServer):
    """Personal data server, inside a ``with``; it starts a directory of its own.

    Parameters
    ----------
    plc : FakePlc, optional
        A directory that runs, for several servers with one.
    access_seconds : float
        Lifetime of an access token.
    """

    def __init__(
        self, plc: FakePlc | None = None, *, access_seconds: float = 7200
    ) -> None:
        super().__init__()
        self._own = FakePlc() if plc is None else None
        self.plc = plc or self._own
        self.access_seconds = access_seconds
        self.accounts: dict[str, Account] = {}  # by DID
        self.tokens: dict[str, tuple[str, str, float]] = {}  # DID, kind, expiry
        self.stack = ExitStack()
        self.last_key = 0

    def __enter__(self) -> FakePds:
        if self._own is not None:
            self.stack.enter_context(self._own)
        super().__enter__()
        return self

    def __exit__(self, *args: object) -> None:
        super().__exit__(*args)
        self.stack.close()

    # Accounts and sessions.

    def create_account(self, handle: str, password: str = "password") -> Account:
        """Create an account, and its document in the directory."""
        account = Account(make_did(f"{handle} {self.port}"), handle, password)
        with self.lock:
            self.accounts[account.did] = account
        self.plc.documents[account.did] = make_document(account.did, handle, self.url)
        return account

    def expire(self) -> None:
        """Let all access tokens expire now."""
        with self.lock:
            for token, (did, kind, _) in list(self.tokens.items()):
                if kind == "access":
                    self.tokens[token] = did, kind, 0.0

    def find(self, repo: str) -> Account | None:
        """Return the account of a DID or a handle."""
        with self.lock:
            for account in self.accounts.values():
                if repo in (account.did, account.handle):
                    return account
        return None

    def issue(self, account: Account) -> dict[str, Any]:
        tokens = {}
        lifetimes = {"access": self.access_seconds, "refresh": 90 * 86400.0}
        for kind, seconds in lifetimes.items():
            claims = {"scope": kind, "sub": account.did, "n": next(numbers)}
            body = urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
            token = f"eyJhbGciOiJIUzI1NiJ9.{body}.c2lnbmF0dXJl{next(numbers)}"
            with self.lock:
                self.tokens[token] = account.did, kind, time.time() + seconds
            tokens[f"{kind}Jwt"] = token
        document = self.plc.documents[account.did]
        who = {"handle": account.handle, "did": account.did, "didDoc": document}
        return {**tokens, **who, "active": True}

    def authorize(self, call: Call, kind: str = "access") -> Account:
        scheme, _, token = call.headers.get("authorization", "").partition(" ")
        if scheme != "Bearer":
            raise XrpcError(401, "AuthMissing", "Authentication Required")
        with self.lock:
            did, known, until = self.tokens.get(token, ("", "", 0.0))
        if known != kind:
            raise XrpcError(400, "InvalidToken", "Token could not be verified")
        if until < time.time():
            raise XrpcError(400, "ExpiredToken", "Token has expired")
        return self.accounts[did]

    # Methods.

    def respond(self, call: Call) -> Reply:
        method = METHODS.get((call.method, call.nsid))
        if method is not None:
            return method(self, call)
        if call.path == "/xrpc/_health":
            return Reply({"version": "0.4.217"})
        raise XrpcError(401, "AuthMissing", "Authentication Required")

    def read_json(self, call: Call) -> dict[str, Any]:
        return json.loads(self.read_body(call, MOST_JSON) or b"{}")

    def create_account_method(self, call: Call) -> Reply:
        given = self.read_json(call)
        account = self.create_account(given["handle"], given["password"])
        return Reply(self.issue(account))

    def create_session(self, call: Call) -> Reply:
        given = self.read_json(call)
        account = self.find(given["identifier"].lower())
        if account is None or account.password != given["password"]:
            raise XrpcError(
                401, "AuthenticationRequired", "Invalid identifier or password"
            )
        return Reply(self.issue(account))

    def refresh_session(self, call: Call) -> Reply:
        if self.read_body(call, MOST_JSON):
            raise XrpcError(
                400, "InvalidRequest", "A request body was provided when none was "
                "expected"
            )  # fmt: skip
        account = self.authorize(call, "refresh")
        with self.lock:
            del self.tokens[call.headers["authorization"].removeprefix("Bearer ")]
        return Reply(self.issue(account))

    def resolve_handle(self, call: Call) -> Reply:
        handle = call.get("handle").lower()
        for did, document in list(self.plc.documents.items()):
            if isinstance(document, dict) and f"at://{handle}" in document.get(
                "alsoKnownAs", ()
            ):
                return Reply({"did": did})
        raise XrpcError(400, "InvalidRequest", "Unable to resolve handle")

    def own_repo(self, call: Call) -> tuple[Account, dict[str, Any]]:
        account = self.authorize(call)
        given = self.read_json(call)
        if self.find(given.get("repo", "")) is not account:
            raise XrpcError(401, "AuthenticationRequired", "Authentication Required")
        key = given.get("rkey")
        if key is not None and (key in (".", "..") or not KEY.fullmatch(key)):
            raise XrpcError(
                400, "InvalidRequest", f'Invalid record key (got "{key}") at $.rkey'
            )
        return account, given

    def create_record(self, call: Call) -> Reply:
        account, given = self.own_repo(call)
        return self.store(account, given, given.get("rkey") or self.next_key())

    def put_record(self, call: Call) -> Reply:
        account, given = self.own_repo(call)
        return self.store(account, given, given["rkey"])

    def store(self, account: Account, given: dict[str, Any], key: str) -> Reply:
        collection = given["collection"]
        try:
            value = normalize(given["record"])
        except InvalidRecordError as error:
            raise XrpcError(400, "InvalidRequest", str(error)) from None
        if value.setdefault("$type", collection) != collection:
            raise XrpcError(
                400, "InvalidRequest", f"Invalid $type: expected {collection}, got "
                f"{value['$type']}"
            )  # fmt: skip
        for cid in blobs_in(value):
            if cid not in account.blobs:
                raise XrpcError(400, "BlobNotFound", f"Could not find blob: {cid}")
        cid = record_cid(value)
        with self.lock:
            account.records.setdefault(collection, {})[key] = cid, normalize(value)
        uri = f"at://{account.did}/{collection}/{key}"
        commit = {"cid": cid, "rev": self.next_key()}
        status = {"validationStatus": "unknown"}
        return Reply({"uri": uri, "cid": cid, "commit": commit, **status})

    def next_key(self) -> str:
        """Return a key that is greater than those before."""
        with self.lock:
            self.last_key = max(self.last_key + 1, time.time_ns() // 1000 << 10)
            number = self.last_key
        return "".join(LETTERS[number >> shift & 31] for shift in range(60, -5, -5))

    def delete_record(self, call: Call) -> Reply:
        account, given = self.own_repo(call)
        with self.lock:
            found = account.records.get(given["collection"], {})
            gone = found.pop(given["rkey"], None)
            kept = account.referred()
            for cid in blobs_in(gone[1] if gone else None):
                if cid not in kept:
                    account.blobs.pop(cid, None)
        return Reply({"commit": {"rev": self.next_key()}} if gone else {})

    def get_record(self, call: Call) -> Reply:
        account = self.find(call.get("repo"))
        if account is None:
            raise XrpcError(502, "UpstreamFailure", "Upstream service unreachable")
        collection, key = call.get("collection"), call.get("rkey")
        uri = f"at://{account.did}/{collection}/{key}"
        with self.lock:
            found = account.records.get(collection, {}).get(key)
        if found is None:
            raise XrpcError(400, "RecordNotFound", f"Could not locate record: {uri}")
        return Reply({"uri": uri, "cid": found[0], "value": found[1]})

    def list_records(self, call: Call) -> Reply:
        limit = int(call.get("limit", "50"))
        if not 1 <= limit <= 100:
            raise XrpcError(500, "InternalServerError", "Internal Server Error")
        repo, collection = call.get("repo"), call.get("collection")
        account = self.find(repo)
        if account is None:
            raise XrpcError(400, "InvalidRequest", f"Could not find repo: {repo}")
        reverse, cursor = call.get("reverse") == "true", call.get("cursor")
        with self.lock:
            found = account.records.get(collection, {})
            keys = sorted(found, reverse=not reverse)
            if cursor:
                keys = [k for k in keys if (k > cursor if reverse else k < cursor)]
            keys = keys[:limit]
            prefix = f"at://{account.did}/{collection}/"
            records = [
                {"uri": prefix + key, "cid": found[key][0], "value": found[key][1]}
                for key in keys
            ]
        page: dict[str, Any] = {"records": records}
        return Reply(page | {"cursor": keys[-1]} if keys else page)

    def upload_blob(self, call: Call) -> Reply:
        account = self.authorize(call)
        data = self.read_body(call, MOST_BLOB)
        kind = call.headers.get("content-type", "application/octet-stream")
        cid = blob_cid(data)
        with self.lock:
            account.blobs[cid] = data, kind
        blob = {"$type": "blob", "ref": {"$link": cid}, "mimeType": kind}
        return Reply({"blob": {**blob, "size": len(data)}})

    def get_blob(self, call: Call) -> Reply:
        did, cid = call.get("did"), call.get("cid")
        account = self.accounts.get(did)
        if account is None:
            raise XrpcError(400, "RepoNotFound", f"Could not find repo for DID: {did}")
        with self.lock:
            found = account.blobs.get(cid) if cid in account.referred() else None
        if found is None:
            raise XrpcError(400, "InvalidRequest", "Blob not found")
        name = {"content-disposition": f'attachment; filename="{cid}"'}
        return Reply(found[0], 200, {**SAFE, **name, "content-type": found[1]})


METHODS: dict[tuple[str, str], Callable[[FakePds, Call], Reply]] = {
    ("POST", "com.atproto.server.createAccount"): FakePds.create_account_method,
    ("POST", "com.atproto.server.createSession"): FakePds.create_session,
    ("POST", "com.atproto.server.refreshSession"): FakePds.refresh_session,
    ("GET", "com.atproto.identity.resolveHandle"): FakePds.resolve_handle,
    ("POST", "com.atproto.repo.createRecord"): FakePds.create_record,
    ("POST", "com.atproto.repo.putRecord"): FakePds.put_record,
    ("POST", "com.atproto.repo.deleteRecord"): FakePds.delete_record,
    ("GET", "com.atproto.repo.getRecord"): FakePds.get_record,
    ("GET", "com.atproto.repo.listRecords"): FakePds.list_records,
    ("POST", "com.atproto.repo.uploadBlob"): FakePds.upload_blob,
    ("GET", "com.atproto.sync.getBlob"): FakePds.get_blob,
}
