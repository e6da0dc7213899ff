"""Scans of all keys of one kind, with their values, in few round trips."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import GenericAlias
from typing import Any

from fastshard.errors import RemoteError
from fastshard.typed.kinds.decoders import load_msgspec

__all__ = ["Ask", "ScannedRow", "Scanner"]

COUNT = 500  # keys that the server visits per answer
# One step of a scan and the values of its keys as msgpack, whose strings are bytes.
# A key of another type has true for each value.
SCRIPT = """
local found = redis.call('SCAN', ARGV[1], 'MATCH', ARGV[2], 'COUNT', ARGV[3])
local width = math.max(#ARGV - 3, 1)
local out, n = {}, 0
for _, key in ipairs(found[2]) do
  local row
  if #ARGV > 3 then
    row = redis.pcall('HMGET', key, unpack(ARGV, 4))
  else
    row = redis.pcall('GET', key)
    if type(row) ~= 'table' then
      row = {row}
    end
  end
  n = n + 1
  out[n] = key
  for i = 1, width do
    n = n + 1
    out[n] = row.err and true or row[i]
  end
end
return {found[1], cmsgpack.pack(out)}
"""
HEADS = {0xD9: 2, 0xDA: 3, 0xDB: 5}  # bytes before those of a long msgpack string
FALSE, TRUE = 0xC2, 0xC3

Ask = Callable[[Sequence[tuple[Any, ...]]], list[Any]]
ScannedRow = tuple[bytes, list[bytes | None]]


class Scanner:
    """Reads keys and values by a script, or in pipelines where scripts are refused."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._decode: Callable[[bytes], list[Any]] | None = None

    def hashes(self, pattern: str, fields: Sequence[str]) -> Iterator[ScannedRow]:
        """Yield the keys that match, and fields of each; None for a missing one."""
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
        """Yield the rows of each step; the server runs the next one concurrently."""
        cursor: Any = 0
        with ThreadPoolExecutor(1, "fastshard-scan") as thread:
            step = self._step(cursor, pattern, fields)
            while step is not None:
                after, data = step
                is_last = int(after) == 0
                if not is_last:
                    coming = thread.submit(self._step, after, pattern, fields)
                width = 1 + (len(fields) or 1)
                found = self._unpack(data, width)
                yield found or self._read_step(cursor, pattern, fields)[1]
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
        """Return the next cursor, and rows with values requested one by one."""
        command = ("SCAN", cursor, "MATCH", pattern, "COUNT", COUNT)
        after, keys = self._ask([command])[0]
        return after, self._read(keys, fields)

    def _step(
        self, cursor: Any, pattern: str, fields: Sequence[str]
    ) -> tuple[Any, Any] | None:
        """Return the next cursor and msgpack; None if the server refuses scripts."""
        command = ("EVAL", SCRIPT, 0, cursor, pattern, COUNT, *fields)
        try:
            after, data = self._ask([command])[0]
        except RemoteError as error:
            if error.transient:
                raise
            return None
        return after, data

    def _unpack(self, data: Any, width: int) -> Iterator[ScannedRow] | None:
        """Return the rows of a step; None if a key is of another type."""
        msgspec = load_msgspec()
        if self._decode is None:
            values = GenericAlias(list, msgspec.Raw)
            self._decode = msgspec.msgpack.Decoder(values).decode
        try:
            found = [*map(_string, map(bytes, self._decode(data)))]
        except (msgspec.MsgspecError, TypeError):
            return None
        return (
            (found[i] or b"", found[i + 1 : i + width])
            for i in range(0, len(found), width)
        )

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
    if lead == TRUE:
        raise TypeError
    return raw[HEADS.get(lead, 1) :]
