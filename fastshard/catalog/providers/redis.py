"""An index in Redis, with the keys that atdata writes.

Beside them are three keys of ours, so that a name is found without a scan of all keys:
``fastshard:names`` (hash: name to CID), ``fastshard:labels`` (sorted set of names and
versions) and ``fastshard:keys`` (number of keys of the database when the other two were
complete: another number means that another program has written). Their content is
checked, and a scan makes them again. ``fastshard:versions`` is watched by those who
choose a version.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from time import monotonic
from typing import Any

from fastshard._core.typed.msgpack import unpack_map
from fastshard.catalog.entry import DatasetEntry
from fastshard.catalog.providers.protocol import (
    ChooseVersion,
    IndexProvider,
    LabelRow,
    latest_label,
    newest_version,
)
from fastshard.catalog.providers.redis_scan import Scanner
from fastshard.catalog.providers.rows import (
    Row,
    check_label,
    check_text,
    check_version,
    is_text,
    no_entry,
    no_label,
    pack_entry,
)
from fastshard.codecs.libraries import import_library
from fastshard.errors import ClosedError, RemoteError
from fastshard.typed.kinds.decoders import load_msgspec

__all__ = ["RedisProvider"]

TIMEOUT = 10.0  # seconds
ENTRIES, SCHEMAS, LENSES, LABELS = (
    "LocalDatasetEntry",
    "LocalSchema",
    "LocalLens",
    "Label",
)
ENTRY_FIELDS = ("cid", "name", "schema_ref", "data_urls", "metadata", "legacy_uuid")
LABEL_FIELDS = ("name", "cid", "version", "description", "created_at")
NAME_INDEX = "fastshard:names"
LABEL_INDEX = "fastshard:labels"
KEY_COUNT = "fastshard:keys"
GUARD = "fastshard:versions"
UNKNOWN = -1  # number of keys in incomplete indexes
BATCH = 1000  # commands of a pipeline
Command = tuple[Any, ...]


class RedisProvider(IndexProvider):
    """Index in a Redis database, preferably one of its own.

    A connection that was lost is made again. With a password it does not pickle.
    """

    def __init__(
        self, redis: Any = None, *, timeout: float = TIMEOUT, **options: Any
    ) -> None:
        self._library = _load_redis()
        self._recipe: tuple[Any, ...] | None = (redis, timeout, options)
        self._is_own = redis is None or isinstance(redis, str)
        if self._is_own:
            redis = _make_client(self._library, redis, timeout, options)
        else:
            self._recipe = None
        self._redis = redis
        self._timeout = timeout
        self._closed = False
        self._scanner = Scanner(self._ask)

    @property
    def redis(self) -> Any:
        """The client."""
        return self._redis

    @property
    def location(self) -> str:
        """The server and its database, without user and password."""
        pool = getattr(self._redis, "connection_pool", None)
        options = getattr(pool, "connection_kwargs", {})
        if "path" in options:
            return f"unix://{options['path']}?db={options.get('db') or 0}"
        host = str(options.get("host", "localhost"))
        host = f"[{host}]" if ":" in host else host
        return f"redis://{host}:{options.get('port', 6379)}/{options.get('db') or 0}"

    def __repr__(self) -> str:
        return f"RedisProvider({self.location!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        if self._recipe is None:
            raise TypeError(
                f"{self!r} does not pickle: it was given a client, not a URL"
            )
        pool = self._redis.connection_pool
        secrets = ("password", "credential_provider", "ssl_password")
        if any(pool.connection_kwargs.get(name) for name in secrets):
            raise TypeError(f"{self!r} does not pickle: it has a password")
        return _open_provider, self._recipe

    # Entries

    def store_entry(self, entry: DatasetEntry) -> None:
        values = pack_entry(entry)
        key = f"{ENTRIES}:{values[0]}"
        given = dict(zip(ENTRY_FIELDS, values, strict=True))
        self._store_hash(key, given, ("HSET", NAME_INDEX, values[1], values[0]))

    def get_entry_by_cid(self, cid: str) -> DatasetEntry:
        found = self._find_entry(cid)
        if found is None:
            raise no_entry("cid", cid, self.location)
        return found

    def get_entry_by_name(self, name: str) -> DatasetEntry:
        if is_text(name):
            cid = self._ask([("HGET", NAME_INDEX, name)])[0]
            found = self._indexed(cid, name)
            if found is None:
                cid = self._index()[0].get(name)
                found = self._indexed(cid and cid.encode(), name)
            if found is not None:
                return found
        raise no_entry("name", name, self.location)

    def iter_entries(self) -> Iterator[DatasetEntry]:
        location = self.location
        unpack_urls = load_msgspec().msgpack.Decoder(list[str]).decode
        start = len(ENTRIES) + 1
        for key, values in self._scanner.hashes(f"{ENTRIES}:*", ENTRY_FIELDS):
            cid, name, schema_ref, urls, metadata, uuid = values
            entry: DatasetEntry | None
            try:  # most entries are valid
                entry = DatasetEntry(
                    name.decode(),  # type: ignore[union-attr]
                    schema_ref.decode(),  # type: ignore[union-attr]
                    unpack_urls(urls),
                    None if metadata is None else unpack_map(metadata),
                    key[start:].decode(),
                )
            except (ValueError, TypeError, AttributeError, RecursionError):
                entry = None
            if entry is None or cid != key[start:] or uuid is not None:
                entry = _entry(location, key, values)  # names the fault
            if entry is not None:
                yield entry

    def remove_entry(self, cid: str) -> None:
        key = f"{ENTRIES}:{cid}"
        if not is_text(cid):
            raise no_entry("cid", cid, self.location)
        name = self._ask([("HGET", key, "name")])[0]
        commands: list[Command] = [("DEL", key)]
        if isinstance(name, bytes):  # an entry of the same name is found by a scan
            commands.append(("HDEL", NAME_INDEX, name))
        if not self._write(commands)[0]:
            raise no_entry("cid", cid, self.location)

    def _indexed(self, cid: Any, name: str) -> DatasetEntry | None:
        """Return the entry of a name in `fastshard:names`, if it is right."""
        if not isinstance(cid, bytes):
            return None
        found = self._find_entry(cid.decode("utf-8", "surrogateescape"))
        return found if found is not None and found.name == name else None

    def _find_entry(self, cid: str) -> DatasetEntry | None:
        if not is_text(cid):
            return None
        key = f"{ENTRIES}:{cid}"
        values = self._ask([("HMGET", key, *ENTRY_FIELDS)])[0]
        return _entry(self.location, key.encode(), values)

    # Labels

    def store_label(
        self,
        name: str,
        cid: str,
        version: str | None = None,
        description: str | None = None,
    ) -> None:
        name, cid, version, description = check_label(name, cid, version, description)
        seconds, micros = self._ask([("TIME",)])[0]
        now = datetime.fromtimestamp(int(seconds), UTC).replace(microsecond=int(micros))
        values = name, cid, version, description, now.isoformat()
        given = dict(zip(LABEL_FIELDS, values, strict=True))
        member = _member(name, version)
        self._store_hash(
            f"{LABELS}:{name}@{version}", given, ("ZADD", LABEL_INDEX, 0, member)
        )

    def get_label(
        self, name: str, version: str | None = None
    ) -> tuple[str, str | None]:
        found = None
        if is_text(name) and (version is None or is_text(version)):
            if version is None:
                found = latest_label(self._labels_of(name))
            else:
                found = next(iter(self._read_labels(name, [version])), None)
        if found is None:
            raise no_label(name, version, self.location)
        return found.cid, found.version

    def iter_labels(self) -> Iterator[tuple[str, str, str | None]]:
        return (row[:3] for row in self.iter_label_rows())

    def iter_label_rows(self, name: str | None = None) -> Iterator[LabelRow]:
        if name is not None:
            yield from self._labels_of(name) if is_text(name) else ()
            return
        location = self.location
        for key, values in self._scanner.hashes(f"{LABELS}:*", LABEL_FIELDS):
            row = _label(location, key, values)
            if row is not None:
                yield row

    def remove_label(self, name: str, version: str | None = None) -> None:
        removed = 0
        if is_text(name) and is_text(version or ""):
            key = f"{LABELS}:{name}@{version or ''}"
            member = _member(name, version or "")
            removed = self._write([("DEL", key), ("ZREM", LABEL_INDEX, member)])[0]
        if not removed:
            raise no_label(name, version, self.location)

    def _labels_of(self, name: str) -> list[LabelRow]:
        """Return the labels of a name, the last one written first."""
        first = _member(name, "")
        members, count, known = self._ask(
            [
                ("ZRANGEBYLEX", LABEL_INDEX, b"[" + first, b"(" + first + b"\xff"),
                ("DBSIZE",),
                ("GET", KEY_COUNT),
            ]
        )
        if isinstance(members, list) and _number(known) == count:
            versions = [
                each[len(first) :].decode("utf-8", "replace") for each in members
            ]
        else:
            versions = self._index()[1].get(name, [])
        rows = self._read_labels(name, versions)
        # atdata's have no time; their order does not depend on that of a scan.
        rows.sort(key=lambda row: (row.created_at or "", row.version or ""))
        return rows[::-1]

    def _read_labels(self, name: str, versions: Sequence[str]) -> list[LabelRow]:
        keys = [f"{LABELS}:{name}@{version}" for version in versions]
        found = self._ask([("HMGET", key, *LABEL_FIELDS) for key in keys])
        rows = []
        for key, version, values in zip(keys, versions, found, strict=True):
            row = _label(self.location, key.encode(), values)
            # Of two labels with one key the hash itself says which one it is.
            if row is not None and (row.name, row.version or "") == (name, version):
                rows.append(row)
        return rows

    # Schemas and lenses

    def store_schema(self, name: str, version: str, schema_json: str) -> None:
        self._store_json(SCHEMAS, name, version, schema_json)

    def get_schema_json(self, name: str, version: str) -> str | None:
        return self._get_json(SCHEMAS, name, version)

    def iter_schemas(self) -> Iterator[tuple[str, str, str]]:
        return self._iter_json(SCHEMAS)

    def find_latest_version(self, name: str) -> str | None:
        return newest_version(self._versions(SCHEMAS, name))

    def store_schema_version(self, name: str, choose: ChooseVersion) -> str:
        return self._store_version(SCHEMAS, name, choose)

    def store_lens(self, name: str, version: str, lens_json: str) -> None:
        self._store_json(LENSES, name, version, lens_json)

    def get_lens_json(self, name: str, version: str) -> str | None:
        return self._get_json(LENSES, name, version)

    def iter_lenses(self) -> Iterator[tuple[str, str, str]]:
        return self._iter_json(LENSES)

    def find_latest_lens_version(self, name: str) -> str | None:
        return newest_version(self._versions(LENSES, name))

    def store_lens_version(self, name: str, choose: ChooseVersion) -> str:
        return self._store_version(LENSES, name, choose)

    def _store_json(self, kind: str, name: str, version: str, text: str) -> None:
        self._write([_set_json(kind, name, version, text)])

    def _get_json(self, kind: str, name: str, version: str) -> str | None:
        if not is_text(name) or not is_text(version):
            return None
        key = f"{kind}:{name}@{version}"
        value = self._ask([("GET", key)])[0]
        return None if value is None else _json(self.location, key.encode(), value)[2]

    def _iter_json(self, kind: str) -> Iterator[tuple[str, str, str]]:
        location = self.location
        for key, (value,) in self._scanner.strings(f"{kind}:*"):
            if value is not None and b"@" in key:  # another key has no version
                yield _json(location, key, value)

    def _versions(self, kind: str, name: str) -> dict[str, str]:
        return {
            version: text
            for each, version, text in self._iter_json(kind)
            if each == name
        }

    def _store_version(self, kind: str, name: str, choose: ChooseVersion) -> str:
        check_text(name, "name")
        deadline = monotonic() + self._timeout
        while True:
            with self._asking() as client, client.pipeline() as pipeline:
                pipeline.watch(GUARD)
                version, text = choose(self._versions(kind, name))
                if text is None:
                    return version
                commands = [_set_json(kind, name, version, text), ("INCR", GUARD)]
                try:
                    self._write(commands, pipeline)
                    return version
                except self._library.WatchError:  # another process chose it
                    if monotonic() > deadline:
                        raise RemoteError(
                            "other processes store versions too often", self.location
                        ) from None

    # Commands

    def _store_hash(self, key: str, given: dict[str, Any], index: Command) -> None:
        """Store a hash and its place in an index."""
        present = [
            each for item in given.items() if item[1] is not None for each in item
        ]
        absent = [field for field, value in given.items() if value is None]
        commands: list[Command] = [("HSET", key, *present)]
        if absent:
            commands.append(("HDEL", key, *absent))
        self._write([*commands, index])

    def _write(
        self,
        commands: Sequence[Command],
        pipeline: Any = None,
        scanned: int | None = None,
    ) -> list[Any]:
        """Run commands in one transaction; return their results."""
        with self._asking() as client:
            pipeline = pipeline or client.pipeline(transaction=True)
            with pipeline:
                if pipeline.watching:
                    pipeline.multi()
                pipeline.execute_command("DBSIZE")
                for command in commands:
                    pipeline.execute_command(*command)
                pipeline.execute_command("DBSIZE")
                pipeline.execute_command("GET", KEY_COUNT)
                found: list[Any] = pipeline.execute()
            before, *results, after, known = found
            if scanned is None:
                was_complete = before == 0 or _number(known) == before
            else:
                was_complete = before == scanned
            count = after + (known is None)
            if was_complete and _number(known) != count:
                client.execute_command("SET", KEY_COUNT, count)
            elif not was_complete and _number(known) == count:
                # As many keys were removed as another program added.
                client.execute_command("SET", KEY_COUNT, UNKNOWN)
            return results

    def _index(self) -> tuple[dict[str, str], dict[str, list[str]]]:
        """Scan all entries and labels, and store their index."""
        count = self._ask([("DBSIZE",)])[0]
        several: dict[str, set[str]] = {}
        labels: dict[str, list[str]] = {}
        commands: list[Command] = []
        for key, (name,) in self._scanner.hashes(f"{ENTRIES}:*", ("name",)):
            cid = key.partition(b":")[2]
            if name is not None and _is_utf8(name) and _is_utf8(cid):
                several.setdefault(name.decode(), set()).add(cid.decode())
        for key, values in self._scanner.hashes(f"{LABELS}:*", ("name", "version")):
            texts = [key, *(value for value in values if value is not None)]
            if len(texts) == 3 and all(map(_is_utf8, texts)):  # others fail when read
                _, each, version = (text.decode() for text in texts)
                labels.setdefault(each, []).append(version)
        names = self._choose(several)
        commands += _in_batches(("HSET", NAME_INDEX), list(names.items()))
        members = [
            (0, _member(name, version))
            for name, versions in labels.items()
            for version in versions
        ]
        commands += _in_batches(("ZADD", LABEL_INDEX), members)
        with suppress(RemoteError):  # a replica, or a read-only user
            self._write(commands, scanned=count)
        return names, labels

    def _choose(self, several: dict[str, set[str]]) -> dict[str, str]:
        """Return one CID for each name: of several, the one in the index."""
        names = {name: min(cids) for name, cids in several.items()}
        doubtful = [name for name, cids in several.items() if len(cids) > 1]
        known = self._ask([("HGET", NAME_INDEX, name) for name in doubtful])
        for name, cid in zip(doubtful, known, strict=True):
            if (
                isinstance(cid, bytes)
                and _is_utf8(cid)
                and cid.decode() in several[name]
            ):
                names[name] = cid.decode()
        return names

    def _ask(self, commands: Sequence[Command]) -> list[Any]:
        """Run commands in a pipeline; return their results as bytes, not decoded."""
        results: list[Any] = []
        with self._asking() as client:
            for i in range(0, len(commands), BATCH):
                with client.pipeline(transaction=False) as pipeline:
                    for command in commands[i : i + BATCH]:
                        pipeline.execute_command(*command, NEVER_DECODE=[])
                    results += pipeline.execute(raise_on_error=False)
            for command, result in zip(commands, results, strict=True):
                if isinstance(result, Exception):
                    self._check(command, result)
        return results

    def _check(self, command: Command, error: Exception) -> None:
        if str(error).startswith("WRONGTYPE"):
            name = command[1]
            text = name.decode("utf-8", "replace") if type(name) is bytes else str(name)
            kind, _, key = text.partition(":")
            Row(self.location, kind, key).refuse(
                f"a key of the wrong type for {command[0]}"
            )
        raise error

    @contextmanager
    def _asking(self) -> Iterator[Any]:
        """Lend the client; translate its errors."""
        if self._closed:
            raise ClosedError(f"the index at {self.location} is closed")
        try:
            yield self._redis
        except self._library.WatchError:
            raise
        except self._library.RedisError as error:
            transient = isinstance(
                error, (self._library.ConnectionError, self._library.TimeoutError)
            )
            raise RemoteError(
                self._redact(str(error)), self.location, transient=transient
            ) from None
        except BaseException:  # of a signal: the next call would read its replies
            with suppress(Exception):
                self._redis.connection_pool.disconnect(inuse_connections=False)
            raise

    def _redact(self, text: str) -> str:
        pool = getattr(self._redis, "connection_pool", None)
        password = getattr(pool, "connection_kwargs", {}).get("password")
        return text.replace(str(password), "***") if password else text

    def close(self) -> None:
        if not self._closed and self._is_own:
            self._redis.close()
        self._closed = True


def _load_redis() -> Any:
    need = "an index in Redis needs redis"
    return import_library("redis", need, "'fastshard[redis]'")


def _make_client(
    library: Any, url: str | None, timeout: float, options: dict[str, Any]
) -> Any:
    """Make a client that reconnects once, without a time-out."""
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    settings = {
        "socket_timeout": timeout,
        "socket_connect_timeout": timeout,
        "retry": Retry(NoBackoff(), 1, (library.ConnectionError,)),
        **options,
    }
    if url is None:
        return library.Redis(**settings)
    return library.Redis.from_url(url, **settings)


def _open_provider(
    redis: str | None, timeout: float, options: dict[str, Any]
) -> RedisProvider:
    """Unpickle a provider."""
    return RedisProvider(redis, timeout=timeout, **options)


def _entry(
    location: str, key: bytes, values: Sequence[bytes | None]
) -> DatasetEntry | None:
    """Return the entry of a hash; None if it is gone."""
    if not any(value is not None for value in values):
        return None
    row, own = _row(location, key)
    cid, name, schema_ref, urls, metadata, uuid = values
    if cid and cid != key.partition(b":")[2]:
        row.refuse("the key has another CID", "cid")
    return row.entry(
        own,
        _text(name),
        _text(schema_ref),
        urls,
        metadata,
        _text(uuid) or None,
    )


def _label(
    location: str, key: bytes, values: Sequence[bytes | None]
) -> LabelRow | None:
    """Return the label of a hash; None if it is gone."""
    if not any(value is not None for value in values):
        return None
    row, _ = _row(location, key)
    name, cid, version, description, created_at = map(_text, values)
    return LabelRow(
        row.text(name, "name"),
        row.text(cid, "cid"),
        row.text("" if version is None else version, "version") or None,
        row.optional_text(description, "description"),
        row.optional_text(created_at, "created_at"),
    )


def _json(location: str, key: bytes, value: bytes) -> tuple[str, str, str]:
    """Return name, version and JSON; of a name ``module.Class`` its last part."""
    row, own = _row(location, key)
    name, _, version = row.text(own, "key").rpartition("@")
    if key.startswith(SCHEMAS.encode()):
        name = name.rpartition(".")[2]
    return name, version, row.text(_text(value), "value")


def _row(location: str, key: bytes) -> tuple[Row, str]:
    kind, _, own = key.decode("utf-8", "surrogateescape").partition(":")
    return Row(location, kind, own), own


def _text(value: bytes | None) -> str | None:
    """Return bytes as text, with surrogates for those that `Row.text` refuses."""
    return None if value is None else value.decode("utf-8", "surrogateescape")


def _is_utf8(value: bytes) -> bool:
    return is_text(value.decode("utf-8", "surrogateescape"))


def _number(value: Any) -> int | None:
    """Return a number that a key has as text; None for any other text."""
    try:
        return int(value)
    except (TypeError, ValueError):
        return None


def _member(name: str, version: str) -> bytes:
    """Return the member of `fastshard:labels`; with "" the prefix of a name's ones."""
    data = name.encode()
    return b"%d:%b:%b" % (len(data), data, version.encode())


def _set_json(kind: str, name: str, version: str, text: str) -> Command:
    name, version = check_text(name, "name"), check_version(version)
    return "SET", f"{kind}:{name}@{version}", check_text(text, "the JSON")


def _in_batches(command: Command, pairs: Sequence[tuple[Any, Any]]) -> list[Command]:
    """Return commands with many pairs each."""
    return [
        (*command, *(each for pair in pairs[i : i + BATCH] for each in pair))
        for i in range(0, len(pairs), BATCH)
    ]
