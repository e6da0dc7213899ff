"""JSON parser for untrusted bytes: the only caller of `json` to parse.

Documents (indexes, answers, schemas) are bounded, finite and text. Values of users are
any output of Python's `json`: NaN, Infinity, halves of surrogate pairs. Of equal keys
the last one counts. The parser of JSON indexes of tars, `fastshard._core.parse.json`,
makes tables of extents without objects.
"""

from __future__ import annotations

import json
import math
import re
from typing import TYPE_CHECKING, Any, NoReturn

from fastshard.errors import FormatError

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["parse_json", "parse_value", "scan_json"]

MAX_BYTES = 256 << 20  # of a document
MAX_DEPTH = 100  # nesting of a document
MARK = "\ufeff"  # byte order mark
HALF = re.compile(r"\\u[dD][89a-fA-F]")  # of a surrogate pair, escaped


def parse_json(
    data: Buffer | str,
    path: str,
    at: int = 0,
    *,
    limit: int = MAX_BYTES,
    depth: int | None = MAX_DEPTH,
    surrogates: bool = False,
) -> Any:
    """Parse a document in UTF-8, which a byte order mark may precede.

    Its first byte is byte `at` of `path`, a file or a URL. FormatError: it has more
    bytes (or characters of a `str`) than `limit`, lists and objects deeper than `depth`
    (None: than the interpreter allows), a number that is not finite or has too many
    digits, or half a surrogate pair without `surrogates`, which names of files have
    that are not UTF-8.
    """
    text = data if isinstance(data, str) else _decode(data, path, at, limit)
    if len(text) > limit:
        raise _too_large(len(text), path, at, limit)
    value = _parse(STRICT, text, path, at)
    if depth is not None:
        _check_depth(value, depth, path, at)
    is_plain = text.isascii() or text is not data  # decoded UTF-8 has no surrogates
    if not (surrogates or (is_plain and HALF.search(text) is None)):
        _check_texts(value, path, at)
    return value


def parse_value(data: Buffer | str, path: str, at: int = 0) -> Any:
    """Parse a value as `json.loads` does; raise FormatError where that fails."""
    try:  # `json.loads` without the search for white space around the value
        text = data if isinstance(data, str) else str(data, "utf-8")
        value, end = scan_json(text, 0)
        if end == len(text):
            return value
    except (ValueError, RecursionError, StopIteration):
        pass
    text = data if isinstance(data, str) else _decode(data, path, at)
    return _parse(LENIENT, text, path, at)


def _decode(data: Buffer, path: str, at: int, limit: int | None = None) -> str:
    """Decode UTF-8 of at most `limit` bytes."""
    if limit is not None and (nbytes := memoryview(data).nbytes) > limit:
        raise _too_large(nbytes, path, at, limit)
    try:
        return str(data, "utf-8")
    except UnicodeDecodeError as error:
        reason = f"not UTF-8: {error.reason}"
        raise FormatError(reason, path, at + error.start) from error


def _parse(decoder: json.JSONDecoder, text: str, path: str, at: int) -> Any:
    if text[:1] == MARK:
        text, at = text[1:], at + 3
    try:
        return decoder.decode(text)
    except json.JSONDecodeError as error:
        at += len(text[: error.pos].encode("utf-8", "surrogatepass"))
        raise FormatError(f"not JSON: {error.msg}", path, at) from error
    except RecursionError as error:
        raise FormatError("not JSON: nested too deeply", path, at) from error
    except ValueError as error:  # of a number
        raise FormatError(f"not JSON: {error}", path, at) from error


def _too_large(nbytes: int, path: str, at: int, limit: int) -> FormatError:
    reason = f"{nbytes:,} bytes of JSON; at most {limit:,} are read"
    return FormatError(reason, path, at + limit)


def _check_depth(value: Any, depth: int, path: str, at: int) -> None:
    level = [value]
    for _ in range(depth):
        inner: list[Any] = []
        for each in level:
            if isinstance(each, dict):
                inner += [x for x in each.values() if isinstance(x, dict | list)]
            elif isinstance(each, list):
                inner += [x for x in each if isinstance(x, dict | list)]
        if not inner:
            return
        level = inner
    raise FormatError(f"not JSON: nested deeper than {depth} levels", path, at)


def _check_texts(value: Any, path: str, at: int) -> None:
    """Raise for texts with half a surrogate pair, which UTF-8 cannot encode."""
    pending = [value]
    while pending:
        each = pending.pop()
        if isinstance(each, dict):
            pending += [*each, *each.values()]
        elif isinstance(each, list):
            pending += each
        elif isinstance(each, str) and not each.isascii():
            try:
                each.encode()
            except UnicodeEncodeError:
                reason = "not JSON: half a surrogate pair in a text"
                raise FormatError(reason, path, at) from None


def _refuse(number: str) -> NoReturn:
    raise ValueError(f"{number:.40} is not a finite number")


def _parse_float(number: str) -> float:
    value = float(number)
    return value if math.isfinite(value) else _refuse(number)


STRICT = json.JSONDecoder(parse_constant=_refuse, parse_float=_parse_float)
LENIENT = json.JSONDecoder()
# A value at a character of a text, and the end of it: nothing around it is skipped.
scan_json: Any = vars(LENIENT)["scan_once"]
