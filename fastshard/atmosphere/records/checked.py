"""Checked reading of untrusted records, and their base class."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, timezone
from enum import Enum
from typing import Any, ClassVar, Self

from fastshard.atmosphere.at_uri import AtUri
from fastshard.errors import RecordError

__all__ = [
    "ABSENT",
    "AtRecord",
    "RecordFields",
    "RecordPart",
    "UnknownMember",
    "check_value",
    "utf8_length",
]


class Absence(Enum):
    """The value of a field that is absent; None is a null."""

    ABSENT = "absent"


ABSENT: Any = Absence.ABSENT
LONGEST_URI = 500
LARGEST_INT = 2**53 - 1  # that JSON holds exactly
MAX_DEPTH = 64  # nesting of values
TIME = re.compile(
    r"(\d{4}-\d\d-\d\d)[Tt](\d\d:\d\d:\d\d)(?:\.(\d{1,20}))?([Zz]|[+-]\d\d:\d\d)?",
    re.ASCII,
)


def utf8_length(text: str) -> int:
    """Return the length of a text as lexicons limit it: bytes of UTF-8."""
    return len(text.encode("utf-8", "surrogatepass"))


class RecordFields:
    """The fields of a JSON object of a record, checked as they are read."""

    def __init__(
        self,
        value: object,
        place: str = "",
        path: str = "",
        measure: Callable[[str], int] = len,
    ) -> None:
        self.place = place
        self.path = path
        self.measure = measure
        if not isinstance(value, dict):
            raise self.fail(f"expected an object, got {_name(value)}")
        self.value: dict[str, Any] = value
        self.taken: set[str] = set()

    @property
    def is_to_publish(self) -> bool:
        """True if the record is to be published, False if it was received."""
        return self.measure is not len

    def fail(self, reason: str, name: str = "") -> RecordError:
        """Return the error of a field."""
        return RecordError(reason, self.place, self.path_of(name) or None)

    def path_of(self, name: str) -> str:
        return f"{self.path}.{name}" if self.path and name else self.path or name

    def expect_type(self, type_id: str) -> None:
        """Check the type of a record or of a part of one."""
        self.taken.add("$type")
        found = self.value.get("$type", ABSENT)
        if found != type_id:
            kind = type_id.rpartition(".")[2]
            what = "absent" if found is ABSENT else _show(found)
            article = "an" if kind[0] in "aeiou" else "a"
            raise self.fail(f"not {article} {kind} record: $type is {what}", "$type")

    def get(self, name: str) -> Any:
        """Return a field unchecked; `ABSENT` without one."""
        value = self.value.get(name, ABSENT)
        if value is not None:  # a null is kept with the unknown fields
            self.taken.add(name)
        return value

    def require(self, name: str) -> Any:
        """Return a required field unchecked."""
        value = self.get(name)
        if value is ABSENT:
            raise self.fail("a required field is missing", name)
        return value

    def text(self, name: str, longest: int, *, shortest: int = 0) -> str:
        """Return a text of a bounded length."""
        return self._check_text(self.require(name), name, longest, shortest)

    def text_or_none(self, name: str, longest: int) -> str | None:
        """Return a text of a bounded length, or None without the field."""
        value = self.get(name)
        return None if _is_unset(value) else self._check_text(value, name, longest)

    def texts_or_none(
        self, name: str, longest: int, most: int | None = None
    ) -> list[str] | None:
        """Return a list of texts, or None without the field."""
        value = self.get(name)
        if _is_unset(value):
            return None
        items = self._check_list(value, name, most)
        return [
            self._check_text(item, f"{name}[{i}]", longest)
            for i, item in enumerate(items)
        ]

    def items(self, name: str, most: int | None = None) -> list[Any]:
        """Return a list of a bounded length."""
        return self._check_list(self.require(name), name, most)

    def uri(self, name: str) -> str:
        """Return the address of a record."""
        return self._check_uri(self.text(name, LONGEST_URI), name)

    def uri_or_none(self, name: str) -> str | None:
        value = self.text_or_none(name, LONGEST_URI)
        return None if value is None else self._check_uri(value, name)

    def count_or_none(self, name: str, least: int = 0) -> int | None:
        """Return an integer of at least `least`, or None without the field."""
        value = self.get(name)
        return None if _is_unset(value) else self._check_count(value, name, least)

    def count(self, name: str, least: int = 0) -> int:
        """Return an integer of at least `least`."""
        return self._check_count(self.require(name), name, least)

    def mapping_or_none(self, name: str) -> dict[str, Any] | None:
        """Return an object of any fields, or None without the field."""
        value = self.get(name)
        if _is_unset(value):
            return None
        if not isinstance(value, dict):
            raise self.fail(f"expected an object, got {_name(value)}", name)
        self.check_depth(value, name)
        return value

    def check_depth(self, value: object, name: str) -> None:
        """Raise if values of a field are nested too deeply."""
        inside = [value]
        for _ in range(MAX_DEPTH + 1):
            if not inside:
                return
            inside = [
                item
                for each in inside
                if isinstance(each, dict | list)
                for item in (each.values() if isinstance(each, dict) else each)
            ]
        raise self.fail(f"values are nested deeper than {MAX_DEPTH}", name)

    def time(self, name: str) -> datetime:
        """Return a time; without a zone it is UTC."""
        text = self.text(name, 64)
        match = TIME.fullmatch(text)
        try:
            if match is None:
                raise ValueError
            day, clock, fraction, zone = match.groups()
            moment = datetime.fromisoformat(f"{day}T{clock}")
            micros = int((fraction or "")[:6].ljust(6, "0"))
            return moment.replace(microsecond=micros, tzinfo=_zone(zone))
        except ValueError:
            raise self.fail(f"expected a time, got {_show(text)}", name) from None

    def inside(self, name: str) -> RecordFields:
        """Return the fields of a required object."""
        return self.of(self.require(name), name)

    def of(self, value: object, name: str) -> RecordFields:
        """Return the fields of a value of this object."""
        return RecordFields(value, self.place, self.path_of(name), self.measure)

    def rest(self) -> dict[str, Any]:
        """Return the fields not read so far."""
        return {
            name: value for name, value in self.value.items() if name not in self.taken
        }

    def _check_text(
        self, value: object, name: str, longest: int, shortest: int = 0
    ) -> str:
        if not isinstance(value, str):
            raise self.fail(f"expected a text, got {_name(value)}", name)
        length = self.measure(value)
        if length > longest:
            unit = "characters" if self.measure is len else "bytes"
            reason = f"{length:,} {unit} are more than the {longest:,} allowed"
            raise self.fail(reason, name)
        if length < shortest:
            raise self.fail("expected a text, got an empty one", name)
        return value

    def _check_list(self, value: object, name: str, most: int | None) -> list[Any]:
        if not isinstance(value, list):
            raise self.fail(f"expected a list, got {_name(value)}", name)
        if most is not None and len(value) > most:
            reason = f"{len(value):,} items are more than the {most:,} allowed"
            raise self.fail(reason, name)
        return value

    def _check_uri(self, text: str, name: str) -> str:
        try:
            AtUri.parse(text)
        except ValueError as error:
            raise self.fail(str(error), name) from None
        return text

    def _check_count(self, value: object, name: str, least: int) -> int:
        if not isinstance(value, int) or isinstance(value, bool):
            raise self.fail(f"expected an integer, got {_name(value)}", name)
        if not least <= value <= LARGEST_INT:
            shown = value if abs(value) <= 2**64 else "a larger one"
            raise self.fail(f"expected an integer from {least}, got {shown}", name)
        return value


@dataclass(kw_only=True)
class RecordPart:
    """Base of records and of their parts.

    Parameters
    ----------
    extra : dict, optional
        Fields that this version does not know; `to_record` writes them again.
    """

    extra: dict[str, Any] = field(default_factory=dict)
    # Values by field with their stored form, if writing them again would give another
    # text.
    _stored: dict[str, tuple[Any, Any]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @classmethod
    def from_record(cls, record: Mapping[str, Any], *, uri: str = "") -> Self:
        """Return the object that a JSON object of a record describes.

        Parameters
        ----------
        record : dict
            As `Atmosphere.get_record` returns it, or a part of it.
        uri : str, optional
            Address of the record, for errors.

        Raises
        ------
        RecordError
            A field is missing, of another type, or too long.

        Examples
        --------
        >>> sha = {"algorithm": "sha256", "digest": "00" * 32, "from": "a test"}
        >>> typed.atmosphere.ShardChecksum.from_record(sha).extra
        {'from': 'a test'}
        """
        return cls._read(RecordFields(record, uri))

    @classmethod
    def _read(cls, fields: RecordFields) -> Self:
        """Return the object of checked fields."""
        raise NotImplementedError

    def to_record(self) -> dict[str, Any]:
        """Return the JSON object of a record.

        Returns
        -------
        dict
            Fields without a value are left out.

        Raises
        ------
        RecordError
            A value is one that a record cannot hold.

        Examples
        --------
        >>> typed.atmosphere.DatasetSize(samples=60_000).to_record()
        {'samples': 60000}
        """
        found = {
            name: value for name, value in self._write().items() if value is not None
        }
        for name, (value, raw) in self._stored.items():
            if getattr(self, name) == value:
                key = self._key_of(name)
                found.pop(key, None)
                if raw is not ABSENT:
                    found[key] = raw
        return found | {k: v for k, v in self.extra.items() if k not in found}

    def _write(self) -> dict[str, Any]:
        """Return the JSON object, with None for fields without a value."""
        raise NotImplementedError

    @staticmethod
    def _key_of(name: str) -> str:
        """Return the field of a record for an attribute: ``created_at``."""
        first, *others = name.split("_")
        return first + "".join(map(str.capitalize, others))

    def _keep(self, name: str, fields: RecordFields) -> None:
        """Keep the stored form of a field, to write it again unchanged.

        Also of an absent field.
        """
        value = copy.deepcopy(getattr(self, name))  # which the caller may change
        self._stored[name] = value, fields.get(self._key_of(name))

    def _check(self, name: str) -> Any:
        """Return the value of a field of any type, checked unless it was read."""
        value = getattr(self, name)
        if name in self._stored and self._stored[name][0] == value:
            return self._stored[name][1]
        return check_value(value, self._key_of(name))


@dataclass
class AtRecord(RecordPart):
    """Base of records: with a type and a creation time."""

    TYPE: ClassVar[str]
    FREE: ClassVar[tuple[str, ...]] = ()  # attributes with fields of any values

    @classmethod
    def _read(cls, fields: RecordFields) -> Self:
        fields.expect_type(cls.TYPE)
        found = cls._read_fields(fields)
        for name in ("created_at", *cls.FREE):
            found._keep(name, fields)
        found.extra = fields.rest()
        return found

    @classmethod
    def _read_fields(cls, fields: RecordFields) -> Self:
        raise NotImplementedError

    @staticmethod
    def _write_time(moment: datetime) -> str:
        """Return the text of a time, in UTC if it names no zone."""
        aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        return aware.isoformat(timespec="microseconds")


@dataclass
class UnknownMember(RecordPart):
    """A member of a union of unknown type, kept unchanged.

    Parameters
    ----------
    type : str
        Its ``$type``.
    extra : dict, optional
        All its other fields.
    """

    type: str

    @classmethod
    def _read(cls, fields: RecordFields) -> UnknownMember:
        type_id = fields.text("$type", 1000, shortest=1)
        return cls(type_id, extra=fields.rest())

    def _write(self) -> dict[str, Any]:
        return {"$type": self.type}


def check_value(value: object, path: str, depth: int = 0) -> Any:
    """Convert a caller's value to a record's: bytes as ``$bytes``."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _check_unicode(value, path)
    if depth > MAX_DEPTH:
        raise RecordError(f"values are nested deeper than {MAX_DEPTH}", "", path)
    if isinstance(value, int):
        if abs(value) > LARGEST_INT:
            raise RecordError("a record holds no integer of that size", "", path)
        return int(value)
    if isinstance(value, bytes | bytearray | memoryview):
        from base64 import b64encode

        return {"$bytes": b64encode(bytes(value)).decode().rstrip("=")}
    if isinstance(value, list | tuple):
        return [check_value(v, f"{path}[{i}]", depth + 1) for i, v in enumerate(value)]
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise RecordError(f"keys must be texts, got {_name(key)}", "", path)
            _check_unicode(key, path)
        return {k: check_value(v, f"{path}.{k}", depth + 1) for k, v in value.items()}
    raise RecordError(f"a record holds no {_name(value)}", "", path)


def _check_unicode(text: str, path: str) -> str:
    """Return a text that UTF-8 can encode."""
    try:
        text.encode()
    except UnicodeEncodeError:
        reason = "the text has half a surrogate pair"
        raise RecordError(reason, "", path.removeprefix(".")) from None
    return text


def _is_unset(value: object) -> bool:
    """Return whether an optional field is unset."""
    return value is ABSENT or value is None


def _zone(text: str | None) -> timezone:
    if text is None or text in "Zz":
        return UTC
    sign = -1 if text[0] == "-" else 1
    minutes = int(text[1:3]) * 60 + int(text[4:6])
    return timezone(sign * timedelta(minutes=minutes))  # ValueError from 24 hours


def _name(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "a text", type(None): "null"}
    return names.get(type(value), type(value).__name__)


def _show(value: object) -> str:
    """Return a value for an error, of bounded length."""
    if not isinstance(value, str):
        return _name(value)
    return repr(value) if len(value) <= 100 else f"{value[:100]!r}..."
