"""Scans of all keys of one kind, with their values, in few round trips."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import GenericAlias
from typing import Any

from fastshard.errors import RemoteError
from fastshard.typed.kinds.decoders import load_msgspec

__all__ = ["Ask", "ScannedRow", "Scanner"]

COUNT = 500  # keys that the server looks at for one answer
# One step of a scan and the values of its keys as msgpack, whose strings are bytes.
# A key of another type is a string in place of a row.
SCRIPT = """
local found = redis.call('SCAN', ARGV[1], 'MATCH', ARGV[2], 'COUNT', ARGV[3])
local rows = {}
for i, key in ipairs(found[2]) do
  local row
  if #ARGV > 3 then
    row = redis.pcall('HMGET', key, unpack(ARGV, 4))
  else
    row = redis.pcall('GET', key)
    if type(row) ~= 'table' then
      row = {row}
    end
  end
  if row.err then
    rows[i] = row.err
  else
    row[#row + 1] = key
    rows[i] = row
  end
end
return {found[1], cmsgpack.pack(rows)}
"""
HEADS = {0xD9: 2, 0xDA: 3, 0xDB: 5}  # bytes before those of a long msgpack string
FALSE = 0xC2

Ask = Callable[[Sequence[tuple[Any, ...]]], list[Any]]
ScannedRow = tuple[bytes, list[bytes | None]]


class Scanner:
    """Reads keys and values by a script, or, where scripts are refused, in pipelines.

    Parameters
    ----------
    ask : callable
        Runs commands in one pipeline and returns their results.
    """

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._decode: Callable[[bytes], list[list[Any]]] | None = None

    def hashes(self, pattern: str, fields: Sequence[str]) -> Iterator[ScannedRow]:
        """Yield the keys that match, and fields of each; None for one that is missing.

        Parameters
        ----------
        pattern : str
            Of keys; those that another program adds or removes meanwhile may be among
            them, each once.
        fields : sequence of str
        """
        return self._scan(pattern, fields)

    def strings(self, pattern: str) -> Iterator[ScannedRow]:
        """Yield the keys that match, and the value of each in a list."""
        return self._scan(pattern, ())

    def _scan(self, pattern: str, fields: Sequence[str]) -> Iterator[ScannedRow]:
        seen: set[bytes] = set()
        for rows in self._steps(pattern, fields):
            for row in rows:
                if row[0] not in seen:
                    seen.add(row[0])
                    yield row

    def _steps(
        self, pattern: str, fields: Sequence[str]
    ) -> Iterator[Iterable[ScannedRow]]:
        """Yield the rows of each step; the server takes the next one meanwhile."""
        cursor: Any = 0
        with ThreadPoolExecutor(1, "fastshard-scan") as thread:
            step = self._step(cursor, pattern, fields)
            while step is not None:
                after, data = step
                is_last = int(after) == 0
                if not is_last:
                    coming = thread.submit(self._step, after, pattern, fields)
                yield self._unpack(data) or self._read_step(cursor, pattern, fields)[1]
                if is_last:
                    return
                cursor, step = after, coming.result()
        while True:  # without scripts
            cursor, rows = self._read_step(cursor, pattern, fields)
            yield rows
            if int(cursor) == 0:
                return

    def _read_step(
        self, cursor: Any, pattern: str, fields: Sequence[str]
    ) -> tuple[Any, list[ScannedRow]]:
        """Return the next cursor, and rows whose values are asked for one by one."""
        command = ("SCAN", cursor, "MATCH", pattern, "COUNT", COUNT)
        after, keys = self._ask([command])[0]
        return after, self._read(keys, fields)

    def _step(
        self, cursor: Any, pattern: str, fields: Sequence[str]
    ) -> tuple[Any, Any] | None:
        """Return the next cursor and msgpack; None if the server runs no scripts."""
        command = ("EVAL", SCRIPT, 0, cursor, pattern, COUNT, *fields)
        try:
            after, data = self._ask([command])[0]
        except RemoteError as error:
            if error.transient:
                raise
            return None
        return after, data

    def _unpack(self, data: Any) -> list[ScannedRow] | None:
        msgspec = load_msgspec()
        if self._decode is None:
            rows_of_raw = GenericAlias(list, GenericAlias(list, msgspec.Raw))
            self._decode = msgspec.msgpack.Decoder(rows_of_raw).decode
        try:
            rows = [
                [_string(raw) for raw in map(bytes, row)] for row in self._decode(data)
            ]
        except (msgspec.MsgspecError, LookupError, TypeError):
            return None  # a key of another type
        return [(row.pop() or b"", row) for row in rows]

    def _read(self, keys: Sequence[bytes], fields: Sequence[str]) -> list[ScannedRow]:
        if fields:
            found = self._ask([("HMGET", key, *fields) for key in keys])
            return list(zip(keys, found, strict=True))
        found = self._ask([("GET", key) for key in keys])
        return [(key, [value]) for key, value in zip(keys, found, strict=True)]


def _string(raw: bytes) -> bytes | None:
    """Return the bytes of a msgpack string; None for false, which Lua has for nil."""
    lead = raw[0]
    if lead == FALSE:
        return None
    return raw[HEADS.get(lead, 1) :]
