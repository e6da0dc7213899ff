"""Client of the AT Protocol: sessions, records, blobs, identities, AppViews.

Reads go to the server of the repository's owner and carry no token. Writes go to the
session's server, with its access token.
"""

from __future__ import annotations

import copy
import itertools
import os
import time
from collections.abc import Iterator, Mapping
from hashlib import sha256
from typing import Any
from urllib.parse import urlencode

from fastshard._util.paths.remote_options import RemoteOptions
from fastshard._util.paths.urls import origin_of
from fastshard._util.processes.forks import LockOwner
from fastshard._util.secret import Secret
from fastshard.atmosphere.appview import AppView
from fastshard.atmosphere.at_uri import AtUri, is_did, is_handle
from fastshard.atmosphere.cid import RAW, cid_of_blob, parse_cid
from fastshard.atmosphere.identity import IdentityResolver
from fastshard.atmosphere.lexicon import ENTRY, LABEL, LENS, NAMESPACE, SCHEMA
from fastshard.atmosphere.session import Session
from fastshard.atmosphere.stored_record import StoredRecord
from fastshard.atmosphere.xrpc import (
    AnswerFields,
    Service,
    XrpcClient,
    check_service,
    is_loopback,
)
from fastshard.errors import (
    AppViewRequiredError,
    RemoteError,
    SessionError,
    XrpcError,
)
from fastshard.remote.addresses import is_public
from fastshard.remote.exchange.body import Body, BytesBody, FileBody, JsonBody
from fastshard.remote.exchange.exchange import HttpExchange, Sink
from fastshard.remote.options import Settings

__all__ = ["MAX_BLOB", "Atmosphere"]

DEFAULT_PDS = "https://bsky.social"
DEFAULT_PLC = "https://plc.directory"
PAGE = 100  # records of a page, which servers allow at most
MAX_RECORDS = 200_000  # of a listing
MAX_LISTED = 256 << 20  # bytes of its pages
SHORT_PAGES = 100  # of a listing; more of them have 10 records each on average
MAX_BLOB = 52_428_800  # bytes that servers take, by default
CONNECTIONS = 8


class Atmosphere:
    """Client of servers of the AT Protocol.

    Without a session it reads records and blobs. `login` and `from_session` return one
    that also writes to the account's repository. It may be shared by threads, and used
    after a fork. Pickled, it loses its session: tokens are not pickled.

    Parameters
    ----------
    base_url : str, optional
        Personal data server for handles and new sessions.
        The default is ``ATDATA_PDS_URL``, then https://bsky.social.
    appview : str, optional
        URL or ``did:web:`` of an AppView, a server that indexes records.
    plc_url : str, optional
        Directory of DIDs. The default is ``ATDATA_PLC_URL``, then
        https://plc.directory.
    private_hosts : bool, optional
        Whether documents of DIDs may name servers on private networks. By default only
        if `base_url` or `plc_url` is an address of such a network.
    timeout : float, default 60
        Seconds for a request with its retries, plus one for each 100 KB.

    Raises
    ------
    ValueError
        An address is not a URL of a server.

    Examples
    --------
    >>> from fastshard import typed
    >>> client = typed.Atmosphere()
    >>> client.is_authenticated
    False
    """

    def __init__(
        self,
        base_url: str | None = None,
        *,
        appview: str | None = None,
        plc_url: str | None = None,
        private_hosts: bool | None = None,
        timeout: float = 60,
    ) -> None:
        base = base_url or os.environ.get("ATDATA_PDS_URL") or DEFAULT_PDS
        plc = plc_url or os.environ.get("ATDATA_PLC_URL") or DEFAULT_PLC
        self._service = Service(check_service(base, "base_url"), True)
        self._directory = Service(check_service(plc, "plc_url"), True)
        self._options = {
            "base_url": self._service.url,
            "appview": appview,
            "plc_url": self._directory.url,
            "private_hosts": private_hosts,
            "timeout": timeout,
        }
        services = [self._service.url, self._directory.url]
        allowed = private_hosts
        if allowed is None:
            allowed = any(map(_is_private, services))
        self._timeout = float(timeout)
        exchange = HttpExchange(
            _settings(timeout, allowed),
            _settings(timeout, True),
            by_proxy=private_hosts is None,
        )
        self._xrpc = XrpcClient(exchange)
        self._appview = AppView(appview, self._xrpc) if appview is not None else None
        known = frozenset(map(origin_of, services)) if private_hosts is None else ()
        self._identities = IdentityResolver(
            self._xrpc, self._service, self._directory, allowed, frozenset(known)
        )
        self._session: Session | None = None
        self._lock = LockOwner()  # of a refresh
        self._failure: tuple[float, RemoteError | None] = 0.0, None  # of the last one

    # Sessions.

    @classmethod
    def login(
        cls,
        handle: str,
        password: str,
        *,
        base_url: str | None = None,
        appview: str | None = None,
        plc_url: str | None = None,
        private_hosts: bool | None = None,
        timeout: float = 60,
    ) -> Atmosphere:
        """Return a client with a new session.

        Parameters
        ----------
        handle : str
            Of the account, or its DID.
        password : str
            An app password, rather than that of the account.
        base_url, appview, plc_url : str, optional
        private_hosts : bool, optional
        timeout : float, default 60
            As for `Atmosphere`.

        Raises
        ------
        ValueError
            The handle or the password is empty, or would be sent over ``http://`` to
            another host than this one.
        XrpcError
            The server refuses them.
        RemoteError
            The server cannot be reached.

        Examples
        --------
        >>> client = typed.Atmosphere.login("alice.test", "app-password")
        >>> client.handle
        'alice.test'
        """
        secret = Secret(password)
        del password
        client = cls(
            base_url,
            appview=appview,
            plc_url=plc_url,
            private_hosts=private_hosts,
            timeout=timeout,
        )
        client._log_in(handle, secret)
        return client

    @classmethod
    def from_session(
        cls,
        text: str,
        *,
        base_url: str | None = None,
        appview: str | None = None,
        plc_url: str | None = None,
        private_hosts: bool | None = None,
        timeout: float = 60,
    ) -> Atmosphere:
        """Return a client with a session that was exported; no server is asked.

        Parameters
        ----------
        text : str
            Result of `export_session`. The session's server is the one in it.
        base_url, appview, plc_url : str, optional
        private_hosts : bool, optional
        timeout : float, default 60
            As for `Atmosphere`; `base_url` is by default the session's server.

        Raises
        ------
        SessionError
            The text is not one of a session.

        Examples
        --------
        >>> text = typed.Atmosphere.login("alice.test", "app-password").export_session()
        >>> typed.Atmosphere.from_session(text).handle
        'alice.test'
        """
        if not isinstance(text, str):
            raise TypeError(f"a session must be a str, got {type(text).__name__}")
        secret = Secret(text)
        del text
        default = base_url or os.environ.get("ATDATA_PDS_URL") or DEFAULT_PDS
        session = Session.parse(secret, check_service(default, "base_url"))
        client = cls(
            base_url or session.service.url,
            appview=appview,
            plc_url=plc_url,
            private_hosts=private_hosts,
            timeout=timeout,
        )
        _check_transport(session.service)
        client._session = session
        return client

    @classmethod
    def from_env(
        cls,
        *,
        base_url: str | None = None,
        plc_url: str | None = None,
        private_hosts: bool | None = None,
        timeout: float = 60,
    ) -> Atmosphere:
        """Log in with credentials from the environment.

        It has the account in ``ATDATA_HANDLE`` and ``ATDATA_PASSWORD``, and may have
        the servers in ``ATDATA_PDS_URL``, ``ATDATA_PLC_URL`` and ``ATDATA_APPVIEW``.

        Parameters
        ----------
        base_url : str, optional
            The server where ``ATDATA_PDS_URL`` is not set.
        plc_url : str, optional
        private_hosts : bool, optional
        timeout : float, default 60
            As for `Atmosphere`.

        Raises
        ------
        OSError
            ``ATDATA_HANDLE`` or ``ATDATA_PASSWORD`` is not set.
        XrpcError
            The server refuses them.

        Examples
        --------
        >>> import os
        >>> os.environ["ATDATA_HANDLE"] = "alice.test"
        >>> os.environ["ATDATA_PASSWORD"] = "app-password"
        >>> typed.Atmosphere.from_env().handle
        'alice.test'
        """
        handle = os.environ.get("ATDATA_HANDLE")
        if not handle or not os.environ.get("ATDATA_PASSWORD"):
            raise OSError("ATDATA_HANDLE and ATDATA_PASSWORD must be set")
        return cls.login(
            handle,
            os.environ["ATDATA_PASSWORD"],
            base_url=os.environ.get("ATDATA_PDS_URL") or base_url,
            appview=os.environ.get("ATDATA_APPVIEW") or None,
            plc_url=plc_url,
            private_hosts=private_hosts,
            timeout=timeout,
        )

    def _log_in(self, handle: str, password: Secret) -> None:
        if not isinstance(handle, str):
            raise TypeError(f"handle must be a str, got {type(handle).__name__}")
        if not isinstance(password.reveal(), str):
            raise TypeError("password must be a str")
        if not handle or not password.reveal():
            raise ValueError("the handle and the password must not be empty")
        identifier = handle.removeprefix("@")
        if not (is_did(identifier) or is_handle(identifier) or "@" in identifier):
            raise ValueError(f"{handle[:300]!r} is not a handle")
        _check_transport(self._service)
        answer = self._xrpc.procedure(
            self._service,
            "com.atproto.server.createSession",
            JsonBody({"identifier": identifier, "password": password}),
        )
        session = Session.of_answer(answer, self._service)
        if is_did(identifier) and session.did != identifier:
            raise answer.error("the session is of another account")
        self._session = session

    def export_session(self) -> str:
        """Return the session as a text, which holds its tokens: keep it secret.

        Returns
        -------
        str
            For `from_session`.

        Raises
        ------
        SessionError
            There is no session.

        Examples
        --------
        >>> client = typed.Atmosphere.login("alice.test", "app-password")
        >>> text = client.export_session()
        """
        return self._require_session().export()

    @property
    def is_authenticated(self) -> bool:
        """True for a client with a session."""
        return self._session is not None

    @property
    def did(self) -> str:
        """DID of the session's account."""
        return self._require_session().did

    @property
    def handle(self) -> str:
        """Handle of the session's account."""
        return self._require_session().handle

    @property
    def base_url(self) -> str:
        """URL of the session's server; without a session that of the constructor."""
        session = self._session
        return self._service.url if session is None else session.service.url

    def _require_session(self) -> Session:
        session = self._session
        if session is None:
            raise SessionError(
                "Not authenticated: use Atmosphere.login or .from_session"
            )
        return session

    def _write(
        self,
        nsid: str,
        body: Body,
        *,
        repeatable: bool = False,
        seconds: float | None = None,
    ) -> AnswerFields:
        """Call a procedure with the session's token; refresh the session once."""
        session = self._require_session()
        for attempt in range(2):
            try:
                return self._xrpc.procedure(
                    session.service,
                    nsid,
                    body,
                    token=session.access,
                    repeatable=repeatable,
                    seconds=seconds,
                )
            except XrpcError as error:
                if error.error != "ExpiredToken" or attempt:
                    raise
            session = self._refresh(session)
        raise AssertionError

    def _refresh(self, expired: Session) -> Session:
        """Return a session with new tokens; one thread makes it.

        Waiting threads get its error.
        """
        asked = time.monotonic()
        with self._lock.lock:
            session = self._require_session()
            if session is not expired:
                return session
            failed_at, failure = self._failure
            if failure is not None and failed_at >= asked:
                raise copy.copy(failure)
            try:
                self._session = self._renew(session)
            except RemoteError as error:
                self._failure = time.monotonic(), copy.copy(error)
                raise
            return self._session

    def _renew(self, session: Session) -> Session:
        """Return a session with new tokens of the server."""
        answer = self._xrpc.procedure(
            session.service,
            "com.atproto.server.refreshSession",
            None,
            token=session.refresh,
        )
        renewed = Session.of_answer(answer, session.service)
        if renewed.did != session.did:
            raise answer.error("the session is of another account")
        return renewed

    # Records.

    def create_record(
        self,
        collection: str,
        record: Mapping[str, Any],
        *,
        rkey: str | None = None,
        validate: bool = False,
    ) -> AtUri:
        """Create a record in the account's repository.

        Parameters
        ----------
        collection : str
            Its name, as ``science.alt.dataset.entry``.
        record : Mapping
            JSON values without floats; bytes are ``{"$bytes": base64}``, CIDs
            ``{"$link": cid}``.
        rkey : str, optional
            Key of the record. By default the server makes one.
        validate : bool, default False
            Whether the server checks the record, which needs to know its collection.

        Raises
        ------
        SessionError
            There is no session.
        XrpcError
            The server refuses the record.
        RemoteError
            The server cannot be reached.

        Examples
        --------
        >>> client = typed.Atmosphere.login("alice.test", "app-password")
        >>> uri = client.create_record("com.example.note", {"text": "one"})
        >>> client.get_record(uri)["text"]
        'one'
        """
        return self._store("createRecord", collection, rkey, record, validate, None)

    def put_record(
        self,
        collection: str,
        rkey: str,
        record: Mapping[str, Any],
        *,
        validate: bool = False,
        swap_commit: str | None = None,
    ) -> AtUri:
        """Create or replace the record of a key.

        Parameters
        ----------
        collection, rkey : str
        record : Mapping
        validate : bool, default False
            As for `create_record`.
        swap_commit : str, optional
            CID of the repository's last commit; the server refuses the record if
            there is a later one.

        Raises
        ------
        SessionError
            There is no session.
        XrpcError
            The server refuses the record.
        RemoteError
            The server cannot be reached.

        Examples
        --------
        >>> client = typed.Atmosphere.login("alice.test", "app-password")
        >>> uri = client.put_record("com.example.note", "first", {"text": "one"})
        >>> uri.rkey
        'first'
        """
        return self._store("putRecord", collection, rkey, record, validate, swap_commit)

    def _store(
        self,
        method: str,
        collection: str,
        rkey: str | None,
        record: Mapping[str, Any],
        validate: bool,
        swap_commit: str | None,
    ) -> AtUri:
        did = self.did
        AtUri(did, collection, "self" if rkey is None else rkey)  # validates
        given: dict[str, Any] = {
            "repo": did,
            "collection": collection,
            "record": {"$type": collection, **record},
            "validate": validate,
        }
        if rkey is not None:
            given["rkey"] = rkey
        if swap_commit is not None:
            given["swapCommit"] = swap_commit
        answer = self._write(f"com.atproto.repo.{method}", JsonBody(given))
        try:
            uri = AtUri.parse(answer.take("uri", str))
        except ValueError as error:
            raise answer.error(f"'uri': {error}") from None
        if uri != AtUri(did, collection, uri.rkey if rkey is None else rkey):
            raise answer.error(f"the server created another record, {uri}")
        return uri

    def get_record(self, uri: str | AtUri) -> StoredRecord:
        """Return a record, from its owner's server.

        Returns
        -------
        StoredRecord
            A dict, with the record's `uri` and `cid` as attributes.

        Raises
        ------
        RecordNotFoundError
            The repository has no such record; also a KeyError.
        IdentityError
            The owner's server is not known, or is refused.
        ValueError
            The address is not one of a record.
        XrpcError
            The server's answer is not a record.
        RemoteError
            A server cannot be reached.

        Examples
        --------
        >>> client = typed.Atmosphere.login("alice.test", "app-password")
        >>> uri = client.create_record("com.example.note", {"text": "one"})
        >>> typed.Atmosphere().get_record(uri)
        {'text': 'one', '$type': 'com.example.note'}
        """
        parsed = AtUri.parse(uri)
        did = self._identities.did_of(parsed.authority)
        collection, rkey = parsed.collection, parsed.rkey
        answer = self._xrpc.query(
            self._service_of(did),
            "com.atproto.repo.getRecord",
            {"repo": did, "collection": collection, "rkey": rkey},
        )
        return StoredRecord.of_answer(answer, did, collection, rkey)

    def delete_record(
        self, uri: str | AtUri, *, swap_commit: str | None = None
    ) -> None:
        """Delete a record of the account's repository.

        Parameters
        ----------
        uri : str or AtUri
        swap_commit : str, optional
            As for `put_record`.

        Raises
        ------
        SessionError
            There is no session.
        ValueError
            The record is not one of the account's repository.
        XrpcError
            The server refuses.
        RemoteError
            The server cannot be reached.

        Examples
        --------
        >>> client = typed.Atmosphere.login("alice.test", "app-password")
        >>> client.delete_record(client.create_record("com.example.note", {}))
        """
        parsed, session = AtUri.parse(uri), self._require_session()
        if parsed.authority not in (session.did, session.handle):
            raise ValueError(f"{parsed} is not a record of {session.handle}")
        given = {"repo": session.did, "collection": parsed.collection}
        given["rkey"] = parsed.rkey
        if swap_commit is not None:
            given["swapCommit"] = swap_commit
        self._write("com.atproto.repo.deleteRecord", JsonBody(given), repeatable=True)

    def list_records(
        self,
        collection: str,
        *,
        repo: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> tuple[list[StoredRecord], str | None]:
        """Return a page of a collection's records, the newest first.

        Parameters
        ----------
        collection : str
        repo : str, optional
            Owner, a DID or a handle; by default the session's account.
        limit : int, default 100
            Maximum number of records; servers return 100 at most.
        cursor : str, optional
            Of the page before.

        Returns
        -------
        records : list of StoredRecord
        cursor : str or None
            For the next page. The last page with records may have one, too.

        Raises
        ------
        SessionError
            There is no `repo`, and no session.
        ValueError
            `limit` is below 1.
        IdentityError
            The owner's server is not known, or is refused.
        XrpcError
            The server refuses, or its answer is not a page of these records.
        RemoteError
            A server cannot be reached.

        Examples
        --------
        >>> client = typed.Atmosphere.login("alice.test", "app-password")
        >>> records, cursor = client.list_records("com.example.nothing")
        >>> len(records), cursor
        (0, None)
        """
        _check_limit(limit)
        did = self.did if repo is None else self._identities.did_of(repo)
        return self._page(did, collection, min(limit, PAGE), cursor)[:2]

    def _page(
        self,
        did: str,
        collection: str,
        limit: int,
        cursor: str | None,
    ) -> tuple[list[StoredRecord], str | None, int]:
        """Return the records of a page, the cursor of the next one, and the size."""
        params = {"repo": did, "collection": collection, "limit": limit}
        answer = self._xrpc.query(
            self._service_of(did),
            "com.atproto.repo.listRecords",
            {**params, "cursor": cursor},
        )
        records = []
        for each in answer.take("records", list):
            if not isinstance(each, dict):
                raise answer.error("'records' has an item that is not an object")
            fields = AnswerFields(each, answer.url)
            records.append(StoredRecord.of_answer(fields, did, collection))
        following = None
        if answer.fields.get("cursor") is not None:
            following = answer.take("cursor", str, 1000)
        if records and following and following == cursor:
            raise answer.error("the next page has the cursor of this one")
        return records, following or None, answer.nbytes

    def iter_records(
        self, collection: str, *, repo: str | None = None
    ) -> Iterator[StoredRecord]:
        """Iterate over all records of a collection, the newest first.

        Pages are requested one by one, as needed.

        Parameters
        ----------
        collection : str
        repo : str, optional
            Owner, a DID or a handle; by default the session's account.

        Raises
        ------
        SessionError
            There is no `repo`, and no session.
        IdentityError
            The owner's server is not known, or is refused.
        XrpcError
            The server refuses, its pages do not end, or one has a record again.
        RemoteError
            A server cannot be reached.

        Examples
        --------
        >>> client = typed.Atmosphere.login("alice.test", "app-password")
        >>> for i in range(3):
        ...     _ = client.create_record("com.example.number", {"i": i})
        >>> [each["i"] for each in client.iter_records("com.example.number")]
        [2, 1, 0]
        """
        did = self.did if repo is None else self._identities.did_of(repo)
        return self._iterate(did, collection)

    def _iterate(self, did: str, collection: str) -> Iterator[StoredRecord]:
        """Yield records; the time spent waiting for pages is limited, too."""
        cursor, seen, left = None, set[str](), 5 * self._timeout
        total = 0
        for pages in itertools.count(1):
            begun = time.monotonic()
            records, cursor, nbytes = self._page(did, collection, PAGE, cursor)
            left -= time.monotonic() - begun
            total += nbytes
            for record in records:
                if record.uri.rkey in seen:
                    raise self._endless(did, f"{record.uri} is listed twice")
                seen.add(record.uri.rkey)
                yield record
            if cursor is None or not records:
                return
            too_many = len(seen) >= MAX_RECORDS or pages > SHORT_PAGES + len(seen) // 10
            if too_many or total >= MAX_LISTED or left <= 0:
                raise self._endless(
                    did, f"the pages do not end after {len(seen):,} records"
                )

    def _endless(self, did: str, reason: str) -> XrpcError:
        service = self._service_of(did)
        return XrpcError(reason, f"{service.url}/xrpc/com.atproto.repo.listRecords")

    def list_schemas(
        self, repo: str | None = None, limit: int | None = None
    ) -> list[StoredRecord]:
        """Return records of schemas, the newest first.

        Parameters
        ----------
        repo : str, optional
            Owner, a DID or a handle; by default the session's account.
        limit : int, optional
            Maximum number of records; by default all.

        Raises
        ------
        SessionError, IdentityError, XrpcError, RemoteError
            As `iter_records`.

        Examples
        --------
        >>> client = typed.Atmosphere.login("alice.test", "app-password")
        >>> client.list_schemas()
        []
        """
        return self._list(SCHEMA, repo, limit)

    def list_datasets(
        self, repo: str | None = None, limit: int | None = None
    ) -> list[StoredRecord]:
        """Return records of datasets, the newest first.

        Parameters
        ----------
        repo : str, optional
            Owner, a DID or a handle; by default the session's account.
        limit : int, optional
            Maximum number of records; by default all.

        Raises
        ------
        SessionError, IdentityError, XrpcError, RemoteError
            As `iter_records`.

        Examples
        --------
        >>> typed.Atmosphere().list_datasets("alice.test")
        []
        """
        return self._list(ENTRY, repo, limit)

    def list_lenses(
        self, repo: str | None = None, limit: int | None = None
    ) -> list[StoredRecord]:
        """Return records of lenses, the newest first.

        Parameters
        ----------
        repo : str, optional
            Owner, a DID or a handle; by default the session's account.
        limit : int, optional
            Maximum number of records; by default all.

        Raises
        ------
        SessionError, IdentityError, XrpcError, RemoteError
            As `iter_records`.

        Examples
        --------
        >>> typed.Atmosphere().list_lenses("alice.test")
        []
        """
        return self._list(LENS, repo, limit)

    def list_labels(
        self, repo: str | None = None, limit: int | None = None
    ) -> list[StoredRecord]:
        """Return records of labels, the newest first.

        Parameters
        ----------
        repo : str, optional
            Owner, a DID or a handle; by default the session's account.
        limit : int, optional
            Maximum number of records; by default all.

        Raises
        ------
        SessionError, IdentityError, XrpcError, RemoteError
            As `iter_records`.

        Examples
        --------
        >>> typed.Atmosphere().list_labels("alice.test")
        []
        """
        return self._list(LABEL, repo, limit)

    def _list(
        self, collection: str, repo: str | None, limit: int | None
    ) -> list[StoredRecord]:
        if limit is not None:
            _check_limit(limit)
        if limit is not None and limit <= PAGE:
            return self.list_records(collection, repo=repo, limit=limit)[0]
        found = []
        for record in self.iter_records(collection, repo=repo):
            found.append(record)
            if len(found) == limit:
                break
        return found

    # Blobs.

    def upload_blob(
        self,
        data: bytes | bytearray | memoryview | os.PathLike[str],
        mime_type: str = "application/octet-stream",
        *,
        timeout: float | None = None,
        force: bool = False,
    ) -> dict[str, Any]:
        """Upload bytes, or a file; a server drops them unless a record refers to them.

        Parameters
        ----------
        data : bytes-like or path-like
            At most 52,428,800 bytes, unless `force`. A file is read while it is sent.
        mime_type : str, default "application/octet-stream"
        timeout : float, optional
            Seconds. By default that of the client, plus one for each 100 KB sent.
        force : bool, default False
            Send more bytes, to a server that takes them.

        Returns
        -------
        dict
            The blob for a record: ``{"$type": "blob", "ref": {"$link": cid},
            "mimeType", "size"}``.

        Raises
        ------
        SessionError
            There is no session.
        ValueError
            The blob is too large; nothing is sent.
        XrpcError
            The server refuses the blob, or has stored other bytes.
        RemoteError
            The server cannot be reached.

        Examples
        --------
        >>> client = typed.Atmosphere.login("alice.test", "app-password")
        >>> client.upload_blob(b"some bytes")["size"]
        10
        """
        self._require_session()
        if not isinstance(mime_type, str):
            raise TypeError(f"mime_type must be a str, got {type(mime_type).__name__}")
        if not (mime_type.isascii() and mime_type.isprintable() and mime_type.strip()):
            raise ValueError(f"{mime_type[:100]!r} is not a type of content")
        body: BytesBody | FileBody
        if isinstance(data, bytes | bytearray | memoryview):
            body = BytesBody(data, mime_type)
        elif isinstance(data, os.PathLike):
            body = FileBody(data, mime_type)
        else:
            kind = type(data).__name__
            raise TypeError(f"a blob must be bytes or a path-like, got {kind}")
        if body.nbytes > MAX_BLOB and not force:
            raise ValueError(
                f"a blob has at most {MAX_BLOB:,} bytes, this one {body.nbytes:,}"
            )
        nsid = "com.atproto.repo.uploadBlob"
        answer = self._write(nsid, body, repeatable=True, seconds=timeout)
        blob = AnswerFields(answer.take("blob", dict), answer.url)
        cid = blob.take("ref", dict).get("$link")
        if cid != cid_of_blob(body.digest()) or blob.take("size", int) != body.nbytes:
            raise answer.error("the server has stored other bytes than were sent")
        return {
            "$type": "blob",
            "ref": {"$link": cid},
            "mimeType": blob.take("mimeType", str, 300),
            "size": body.nbytes,
        }

    def get_blob(self, did: str, cid: str) -> bytes:
        """Return the bytes of a blob, compared with its CID.

        Parameters
        ----------
        did : str
            DID or handle of the repository's owner.
        cid : str

        Returns
        -------
        bytes
            At most 52,428,800.

        Raises
        ------
        BlobNotFoundError
            The server has no such blob; also a KeyError.
        ValueError
            The CID is not one of a blob.
        IdentityError
            The owner's server is not known, or is refused.
        XrpcError
            The bytes are not those of the CID.
        RemoteError
            A server cannot be reached.

        Examples
        --------
        >>> client = typed.Atmosphere.login("alice.test", "app-password")
        >>> blob = client.upload_blob(b"some bytes")
        >>> _ = client.create_record("com.example.file", {"blob": blob})
        >>> client.get_blob(client.did, blob["ref"]["$link"])
        b'some bytes'
        """
        pieces: list[bytes] = []

        def open_sink() -> Sink:
            pieces.clear()
            return pieces.append

        expected = _blob_digest(cid)
        self.download_blob(did, cid, open_sink)
        data = b"".join(pieces)
        if sha256(data).digest() != expected:
            url = self.get_blob_url(did, cid).partition("?")[0]
            raise XrpcError(f"the bytes are not those of the CID {cid}", url, 200)
        return data

    def download_blob(
        self, did: str, cid: str, open_sink: Any, *, most: int = MAX_BLOB
    ) -> None:
        """Download a blob piece by piece, without comparing it with its CID.

        Parameters
        ----------
        did : str
            DID or handle of the repository's owner.
        cid : str
        open_sink : callable
            Called for each attempt; returns a function that takes the bytes.
        most : int, default 52_428_800
            Maximum number of bytes.

        Raises
        ------
        BlobNotFoundError
            The server has no such blob; also a KeyError.
        ValueError
            The CID is not one of a blob.
        IdentityError
            The owner's server is not known, or is refused.
        RemoteError
            A server cannot be reached, or the blob is larger.

        Examples
        --------
        >>> client = typed.Atmosphere.login("alice.test", "app-password")
        >>> blob = client.upload_blob(b"some bytes")
        >>> _ = client.create_record("com.example.file", {"blob": blob})
        >>> pieces = []
        >>> def open_sink():
        ...     pieces.clear()
        ...     return pieces.append
        >>> client.download_blob(client.did, blob["ref"]["$link"], open_sink)
        >>> pieces
        [b'some bytes']
        """
        _blob_digest(cid)
        owner = self._identities.did_of(did)
        self._xrpc.download(
            self._service_of(owner),
            "com.atproto.sync.getBlob",
            {"did": owner, "cid": cid},
            open_sink,
            most=most,
        )

    def get_blob_url(self, did: str, cid: str) -> str:
        """Return the URL of a blob at its owner's server.

        Parameters
        ----------
        did : str
            DID or handle of the repository's owner.
        cid : str

        Raises
        ------
        ValueError
            The CID is not one of a blob.
        IdentityError
            The owner's server is not known, or is refused.
        RemoteError
            A server cannot be reached.

        Examples
        --------
        >>> client = typed.Atmosphere.login("alice.test", "app-password")
        >>> cid = client.upload_blob(b"some bytes")["ref"]["$link"]
        >>> client.get_blob_url(client.did, cid)
        'http://127.0.0.1:.../xrpc/com.atproto.sync.getBlob?did=did%3Aplc%3A...'
        """
        _blob_digest(cid)
        owner = self._identities.did_of(did)
        query = urlencode({"did": owner, "cid": cid})
        service = self._service_of(owner)
        return f"{service.url}/xrpc/com.atproto.sync.getBlob?{query}"

    # Identities.

    def resolve_did(self, handle: str) -> str:
        """Return the DID of a handle, whose document has the handle.

        Parameters
        ----------
        handle : str
            A DID is returned unchanged.

        Raises
        ------
        HandleNotFoundError
            No account has the handle; also a KeyError.
        IdentityError
            It is not a handle, or the document of its DID does not have it.
        RemoteError
            A server cannot be reached.

        Examples
        --------
        >>> typed.Atmosphere().resolve_did("alice.test")
        'did:plc:...'
        """
        return self._identities.did_of(handle)

    def resolve_pds(self, did: str) -> str:
        """Return the URL of the server that hosts an account's repository.

        Parameters
        ----------
        did : str
            DID or handle.

        Raises
        ------
        IdentityError
            The document of the DID names no server, or one that is refused.
        RemoteError
            A server cannot be reached.

        Examples
        --------
        >>> typed.Atmosphere().resolve_pds("alice.test")
        'http://127.0.0.1:...'
        """
        return self._service_of(self._identities.did_of(did)).url

    def _service_of(self, did: str) -> Service:
        """Return the server of a repository, the session's for its own account."""
        session = self._session
        if session is not None and session.did == did:
            return session.service
        return self._identities.service_of(did)

    # AppViews.

    @property
    def has_appview(self) -> bool:
        """True with an AppView."""
        return self._appview is not None

    @property
    def appview_url(self) -> str | None:
        """URL of the AppView, or None."""
        return None if self._appview is None else self._appview.url

    @property
    def appview_did(self) -> str | None:
        """DID of the AppView, or None."""
        return None if self._appview is None else self._appview.did

    def xrpc_query(
        self, nsid: str, params: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Call a query of the AppView; it gets no token.

        Parameters
        ----------
        nsid : str
            Name of the method.
        params : Mapping, optional

        Raises
        ------
        AppViewRequiredError
            There is no AppView.
        AppViewUnavailableError
            It does not answer, or not with JSON.
        XrpcError
            It refuses the query.

        Examples
        --------
        >>> try:
        ...     typed.Atmosphere().xrpc_query("science.alt.dataset.listEntries")
        ... except fastshard.errors.AppViewRequiredError as error:
        ...     print(error.operation)
        science.alt.dataset.listEntries
        """
        return self._require_appview(nsid).query(nsid, dict(params or {}))

    def xrpc_procedure(
        self,
        nsid: str,
        input: Mapping[str, Any] | None = None,  # noqa: A002
    ) -> dict[str, Any]:
        """Call a procedure of the AppView, through the session's server.

        Parameters
        ----------
        nsid : str
            Name of the method.
        input : Mapping, optional

        Raises
        ------
        AppViewRequiredError
            There is no AppView.
        SessionError
            There is no session.
        AppViewUnavailableError
            It does not answer, or not with JSON.
        XrpcError
            A server refuses the procedure.

        Examples
        --------
        >>> try:
        ...     typed.Atmosphere().xrpc_procedure("science.alt.dataset.publishSchema")
        ... except fastshard.errors.AppViewRequiredError as error:
        ...     print(error.operation)
        science.alt.dataset.publishSchema
        """
        appview = self._require_appview(nsid)
        given = dict(input or {})
        session = self._require_session()
        for attempt in range(2):
            try:
                return appview.procedure(nsid, given, session.service, session.access)
            except XrpcError as error:
                if error.error != "ExpiredToken" or attempt:
                    raise
            session = self._refresh(session)
        raise AssertionError

    def _require_appview(self, operation: str) -> AppView:
        if self._appview is None:
            raise AppViewRequiredError(operation)
        return self._appview

    def search_datasets(
        self,
        q: str,
        *,
        tags: list[str] | None = None,
        schema_ref: str | None = None,
        repo: str | None = None,
        limit: int = 25,
    ) -> list[dict[str, Any]]:
        """Search datasets by words, with the AppView.

        Parameters
        ----------
        q : str
            Words.
        tags : list of str, optional
            All of which a dataset has.
        schema_ref : str, optional
            Address of its schema.
        repo : str, optional
            DID of its owner.
        limit : int, default 25
            Maximum number of results, up to 100.

        Raises
        ------
        AppViewError
            There is no AppView, or it fails.

        Examples
        --------
        >>> try:
        ...     typed.Atmosphere().search_datasets("vectors")
        ... except fastshard.errors.AppViewError as error:
        ...     print(error)
        science.alt.dataset.searchDatasets requires an AppView: ...
        """
        params = {"q": q, "limit": min(limit, 100), "tags": tags}
        params |= {"schemaRef": schema_ref, "repo": repo}
        return self._search("searchDatasets", "entries", params)

    def search_lenses(
        self,
        *,
        source_schema: str | None = None,
        target_schema: str | None = None,
        limit: int = 25,
    ) -> list[dict[str, Any]]:
        """Search lenses by their schemas, with the AppView.

        Parameters
        ----------
        source_schema, target_schema : str, optional
            Addresses of schemas.
        limit : int, default 25
            Maximum number of results, up to 100.

        Raises
        ------
        AppViewError
            There is no AppView, or it fails.

        Examples
        --------
        >>> try:
        ...     typed.Atmosphere().search_lenses()
        ... except fastshard.errors.AppViewError as error:
        ...     print(error)
        science.alt.dataset.searchLenses requires an AppView: ...
        """
        params = {"sourceSchema": source_schema, "targetSchema": target_schema}
        return self._search(
            "searchLenses", "lenses", {**params, "limit": min(limit, 100)}
        )

    def get_entries(self, uris: list[str]) -> list[dict[str, Any]]:
        """Return entries by their addresses, from the AppView.

        Parameters
        ----------
        uris : list of str
            At most 25.

        Raises
        ------
        ValueError
            There are more than 25.
        AppViewError
            There is no AppView, or it fails.

        Examples
        --------
        >>> try:
        ...     typed.Atmosphere().get_entries([])
        ... except fastshard.errors.AppViewError as error:
        ...     print(error)
        science.alt.dataset.getEntries requires an AppView: ...
        """
        if len(uris) > 25:
            raise ValueError(f"getEntries takes at most 25 addresses, got {len(uris)}")
        return self._search("getEntries", "entries", {"uris": [*map(str, uris)]})

    def get_entry_stats(self, uri: str, period: str = "week") -> dict[str, Any]:
        """Return the counters of an entry's views and finds, from the AppView.

        Parameters
        ----------
        uri : str
        period : str, default "week"
            "day", "week" or "month".

        Raises
        ------
        AppViewError
            There is no AppView, or it fails.

        Examples
        --------
        >>> try:
        ...     typed.Atmosphere().get_entry_stats("at://a.test/b.c.d/e")
        ... except fastshard.errors.AppViewError as error:
        ...     print(error)
        science.alt.dataset.getEntryStats requires an AppView: ...
        """
        params = {"uri": str(uri), "period": period}
        return self.xrpc_query(f"{NAMESPACE}.getEntryStats", params)

    def describe_service(self) -> dict[str, Any]:
        """Return the AppView's description of itself.

        Raises
        ------
        AppViewError
            There is no AppView, or it fails.

        Examples
        --------
        >>> try:
        ...     typed.Atmosphere().describe_service()
        ... except fastshard.errors.AppViewError as error:
        ...     print(error)
        science.alt.dataset.describeService requires an AppView: ...
        """
        return self.xrpc_query(f"{NAMESPACE}.describeService")

    def _search(
        self, method: str, field: str, params: dict[str, Any]
    ) -> list[dict[str, Any]]:
        """Call a query of the AppView whose answer is a list of objects."""
        nsid = f"{NAMESPACE}.{method}"
        found = self.xrpc_query(nsid, params).get(field, [])
        appview = self._require_appview(nsid)
        if not isinstance(found, list) or not all(isinstance(x, dict) for x in found):
            raise appview.invalid(f"{field!r} is not a list of objects")
        return found

    def __repr__(self) -> str:
        session = self._session
        who = "anonymous" if session is None else session.handle
        return f"<Atmosphere {who} at {self.base_url}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (dict(self._options),)


def _restore(options: dict[str, Any]) -> Atmosphere:
    """Unpickle a client, without a session."""
    return Atmosphere(**options)


def _check_limit(limit: int) -> None:
    """Raise for an invalid number of records."""
    if not isinstance(limit, int) or isinstance(limit, bool):
        raise TypeError(f"limit must be an int, got {type(limit).__name__}")
    if limit < 1:
        raise ValueError(f"limit must be positive, got {limit}")


def _settings(timeout: float, private_hosts: bool) -> Settings:
    options: RemoteOptions = {"timeout": timeout, "connections": CONNECTIONS}
    return Settings({**options, "private_hosts": private_hosts})


def _is_private(url: str) -> bool:
    """Return whether a URL's host is private: an address or a name."""
    if is_loopback(url):
        return True
    try:
        return not is_public(origin_of(url).host.strip("[]"))
    except ValueError:  # a name
        return False


def _check_transport(service: Service) -> None:
    """Raise unless a secret is sent encrypted, or to this machine."""
    if service.url.startswith("http:") and not service.is_loopback:
        raise ValueError(
            f"{service.url}: passwords and tokens are sent over https:// only, or to "
            "this machine"
        )


def _blob_digest(cid: str) -> bytes:
    """Return the SHA-256 of a blob's CID."""
    codec, digest = parse_cid(cid)
    if codec != RAW:
        raise ValueError(f"{cid} is not the CID of a blob")
    return digest
