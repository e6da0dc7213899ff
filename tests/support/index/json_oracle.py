"""Oracle of JSON indexes: the standard library's parser and the rules of the format.

Slow, and independent of the parser under test.
"""

from __future__ import annotations

import json
import random
from itertools import groupby
from typing import Any, NamedTuple

KINDS = {
    "offset": "offset",
    "size": "size",
    "length": "size",
    "path": "name",
    "fname": "name",
    "filename": "name",
}
DEPTH, KEYS, BITS = 64, 256, 64


class Integer(str):
    """A number without fraction and exponent, as it is written."""


class Pairs(list):
    """A JSON object with all its pairs, repeated keys included."""


class OracleIndex(NamedTuple):
    """Index as the oracle reads it: name, offset, size and info of each member."""

    members: list[tuple[str, int, int, dict[str, Any]]]
    filesize: int | None


class RefusedError(Exception):
    """The text breaks a rule."""


def need(rule: object) -> None:
    if not rule:
        raise RefusedError


def refuse(constant: str) -> None:
    raise RefusedError


def check(value: object, depth: int = 0) -> None:
    """Check depth and surrogates."""
    if isinstance(value, str) and not isinstance(value, Integer):
        surrogates = {c for c in value if "\ud800" <= c <= "\udfff"}
        need(all("\udc80" <= c <= "\udcff" for c in surrogates))
    elif isinstance(value, list):
        need(depth < DEPTH)
        for part in value:
            for item in part if isinstance(value, Pairs) else [part]:
                check(item, depth + 1)


def parse_json(text: bytes) -> object:
    try:
        value = json.loads(
            text.decode(),  # `loads` refuses a byte-order mark
            object_pairs_hook=Pairs,
            parse_int=Integer,
            parse_constant=refuse,
        )
    except (ValueError, RecursionError):
        raise RefusedError from None
    check(value)
    return value


def plain(value: Any) -> Any:
    if isinstance(value, Integer):
        return int(value) if len(value) < 4000 else str(value)
    if isinstance(value, Pairs):
        return {key: plain(part) for key, part in value}
    return [plain(part) for part in value] if isinstance(value, list) else value


def unsigned(value: object) -> int:
    need(isinstance(value, Integer) and not value.startswith("-"))
    need(len(value) <= 20 and int(value) < 1 << BITS)
    return int(value)


def parse_entry(entry: object, name: str | None, nbytes: int | None):
    """Read one object of `files`."""
    need(isinstance(entry, Pairs))
    kinds = [KINDS[key] for key, _ in entry if key in KINDS]
    need(len(kinds) == len(set(kinds)))
    known = {KINDS[key]: value for key, value in entry if key in KINDS}
    name = known.get("name", name)
    need(isinstance(name, str) and not isinstance(name, Integer))
    need("\0" not in name and "offset" in known and "size" in known)
    offset, size = unsigned(known["offset"]), unsigned(known["size"])
    need(nbytes is None or offset + size <= nbytes)
    raw = name.encode("utf-8", "surrogateescape")
    info = {key: plain(value) for key, value in entry if key not in KINDS}
    return raw.decode("utf-8", "surrogateescape"), offset, size, info


def parse_by_oracle(text: bytes, nbytes: int | None = None) -> OracleIndex | None:
    """Parse an index by the rules; return None if they refuse it."""
    try:
        top = parse_json(text)
        need(isinstance(top, Pairs))
        keys = [key.encode("utf-8", "surrogateescape") for key, _ in top]
        need(len(keys) == len(set(keys)) <= KEYS)
        known = dict(top)
        files = known.get("files")
        need(isinstance(files, list))
        named = files if isinstance(files, Pairs) else [(None, e) for e in files]
        members = [parse_entry(entry, name, nbytes) for name, entry in named]
        by_offset = sorted(members, key=lambda member: member[1])
        if not has_links_alone_behind(members, by_offset):
            members = by_offset
        recorded = unsigned(known["filesize"]) if "filesize" in known else None
    except RefusedError:
        return None
    return OracleIndex(members, recorded)


class Maker:
    """Makes indexes: nearly all that the rules allow, and now and then more."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)

    def space(self) -> str:
        return "".join(self.rng.choices(" \t\n\r", k=self.rng.choice([0, 0, 0, 1, 3])))

    def odd(self, share: float = 0.01) -> bool:
        return self.rng.random() < share

    def string(self, text: str) -> str:
        """Spell a string, with some characters escaped."""
        return '"' + "".join(map(self.character, text)) + '"'

    def character(self, char: str) -> str:
        code = ord(char)
        must = code < 0x20 or char in '"\\' or 0xD800 <= code <= 0xDFFF
        if not must and not self.odd(0.1):
            return char
        short = json.dumps(char)[1:-1]
        if len(short) == 2 and self.odd(0.5):
            return short
        units = char.encode("utf-16-be", "surrogatepass").hex()
        spelt = "".join("\\u" + units[i : i + 4] for i in range(0, len(units), 4))
        return spelt.replace("a", "A") if self.odd(0.3) else spelt

    def text(self) -> str:
        parts = ["a", "b.jpg", "./", "é", "猫", "😀", '"', "\\", "\x7f", "\n", "\u2028"]
        parts += ["0" * 20, "x" * 40, "\udc80", "\udcc3\udca9", "\udcff"]
        if self.odd():
            parts = ["\0", "\ud800", "\udfff", "\udc7f", "\udd00"]
        return "".join(self.rng.choices(parts, k=self.rng.randrange(4)))

    def number(self) -> str:
        odd = [
            "-1",
            "1.0",
            "1e3",
            "01",
            "-0",
            str(2**64),
            "9" * 30,
            "+1",
            '"1"',
            "null",
        ]
        edge = [
            "0",
            "9",
            str(2**64 - 1),
            "9" * 7,
            "1" + "0" * 7,
            "12345678" * 2,
            "1" * 17,
        ]
        if self.odd():
            return self.rng.choice(odd)
        return self.rng.choice([*edge, str(self.rng.randrange(1 << 14) * 512)])

    def value(self, depth: int = 0) -> str:
        """Make a value of any kind."""
        pick = self.rng.randrange(9 if depth < 4 else 5)
        if pick == 0:
            return self.rng.choice(["true", "false", "null"])
        if pick < 3:
            return self.string(self.text())
        if pick < 5:
            odd = ["01", "1.", ".5", "1e", "NaN", "-Infinity", "-", "nul", ""]
            good = ["-0", "0.5", "-1.25e-3", "1E+9", "12", "-7", "3e0", "9" * 40]
            return self.rng.choice(odd if self.odd() else good)
        items = [self.value(depth + 1) for _ in range(self.rng.randrange(3))]
        if pick < 7:
            return "[" + self.joined(items) + "]"
        return self.object([(self.text(), item) for item in items])

    def joined(self, items: list[str]) -> str:
        parts = [self.space() + item + self.space() for item in items]
        return ",".join(parts) + ("," if self.odd(0.003) else "") + self.space()

    def object(self, pairs: list[tuple[str, str]]) -> str:
        spelt = [
            self.string(key) + self.space() + ":" + self.space() + value
            for key, value in pairs
        ]
        return "{" + self.joined(spelt) + "}"

    def member(self, named: bool) -> str:
        pairs = [
            ("offset", self.number()),
            (self.pick("size", "length"), self.number()),
        ]
        if named or self.odd(0.1):
            name = self.string(self.text())
            pairs.append((self.pick("path", "fname", "filename"), name))
        for _ in range(self.rng.choice([0, 0, 1, 2])):
            pairs.append((self.pick("sha256", "width", "", self.text()), self.value()))
        if self.odd(0.02):
            pairs.append(self.rng.choice(pairs))
        if self.odd(0.02):
            pairs.pop(self.rng.randrange(len(pairs)))
        if self.odd(0.5):
            self.rng.shuffle(pairs)
        return self.object(pairs)

    def pick(self, *choices: str) -> str:
        return self.rng.choice(choices)

    def index(self) -> bytes:
        """Make a whole index."""
        listed = self.odd(0.4)
        members = [self.member(listed) for _ in range(self.rng.randrange(6))]
        if listed:
            files = "[" + self.joined(members) + "]"
        else:
            files = self.object([(self.text(), member) for member in members])
        pairs = [("files", files), ("filesize", self.number()), ("é", self.value())]
        pairs += [("path", self.value()), ("files" if self.odd() else "hash", "1")]
        pairs = self.rng.sample(pairs, self.rng.randrange(3, len(pairs) + 1))
        text = self.space() + self.object(pairs) + self.space()
        return text.encode()

    def damaged(self, text: bytes) -> bytes:
        """Change a text in a few places."""
        changed = bytearray(text)
        for _ in range(self.rng.randrange(1, 4)):
            at = self.rng.randrange(len(changed) + 1)
            to = min(len(changed), at + self.rng.choice([0, 0, 1, 2, 9]))
            pieces = [b'"', b"\\", b"{", b"}", b"[", b"]", b",", b":", b"0", b"-", b" "]
            pieces += [
                b"",
                b"\xff",
                b"\xc3",
                b"\xed\xa0\x80",
                b"\0",
                b"\\u00",
                b"\\ud800",
            ]
            pieces += [bytes(changed[at : at + 20]), self.rng.randbytes(1)]
            changed[at:to] = self.rng.choice(pieces)
        return bytes(changed)


def has_links_alone_behind(listed, by_offset):
    """Return whether a listing is one of an archive: links have earlier extents.

    Brute force over which member of each extent is the target.
    """
    groups = [list(one) for _, one in groupby(by_offset, key=lambda m: m[1])]
    if any(len({member[2] for member in group}) > 1 for group in groups):
        return False
    at = -1
    for group in groups:
        own = {id(member) for member in group}
        places = [i for i, m in enumerate(listed) if id(m) in own and i > at]
        if not places:
            return False
        at = places[0]
    return True
