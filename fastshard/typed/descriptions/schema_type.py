"""Sample types made of schemas: one packable class for each reference."""

from __future__ import annotations

import copyreg
import dataclasses
import json
import threading
import types
from typing import Any
from weakref import WeakValueDictionary

from fastshard._util.json import parse_value
from fastshard._util.processes.forks import LockOwner
from fastshard.typed.descriptions.local_schema import from_local_json, to_local_json
from fastshard.typed.descriptions.structure import Structure
from fastshard.typed.fields import declared_fields
from fastshard.typed.kinds.registry import kind_of_type
from fastshard.typed.kinds.value_type import ValueType
from fastshard.typed.sample_type import PackableSample, become_dataclass

__all__ = ["SchemaType", "load_type", "make_type"]

LOCK = LockOwner(threading.RLock)


class SchemaType(type):
    """Class of sample types that are made of schemas: they pickle by content."""


MADE: WeakValueDictionary[tuple[str, str], type[PackableSample]] = (
    WeakValueDictionary()  # by reference and content
)


def make_type(structure: Structure, ref: str | None = None) -> type[PackableSample]:
    """Return the sample type of a structure, cached by content.

    Its fields have the kinds that a declared class would have; an optional one is None
    by default. The arguments of the constructor have the order of the fields; an
    optional one before one that is not is a keyword.
    """
    content = dump(structure)
    key = ref or "", content
    with LOCK.lock:
        made = MADE.get(key)
        if made is None:
            made = MADE[key] = build(structure, ref, content)
    return made


def load_type(content: str, ref: str | None) -> type[PackableSample]:
    """Return the type of a pickle."""
    where = ref or "schema"
    return make_type(from_local_json(parse_value(content, where), where), ref)


def dump(structure: Structure) -> str:
    """Return the content of a structure, from which `load_type` makes the type."""
    found = to_local_json(structure, structure.version or "", "-")
    del found["createdAt"]
    if structure.version is None:
        del found["version"]
    return json.dumps(found, separators=(",", ":"))


def build(structure: Structure, ref: str | None, content: str) -> type[PackableSample]:
    structure.check(ref)
    where = ref or f"schema {structure.name}"
    last = max((i for i, f in enumerate(structure.fields) if not f.optional), default=0)
    annotations: dict[str, Any] = {}
    names: dict[str, Any] = {
        "__module__": __name__,
        "__doc__": docstring(structure.description),
        "__annotations__": annotations,
        "__field_formats__": {
            each.name: each.type.kind
            for each in structure.fields
            if kind_of_type(each.type).is_format
        },
        "__schema_structure__": structure,
        "__schema_content__": content,
        "__schema_ref__": ref,
        "__schema_version__": structure.version,
    }
    for i, each in enumerate(structure.fields):
        hint = hint_of(each.type, f"{where}, field {each.name!r}")
        annotations[each.name] = hint | None if each.optional else hint
        if each.optional:
            names[each.name] = dataclasses.field(default=None, kw_only=i < last)
    made: type[PackableSample] = types.new_class(
        structure.name,
        (PackableSample,),
        {"metaclass": SchemaType},
        lambda body: body.update(names),
    )
    become_dataclass(made)
    declared_fields(made)  # raises for fields that samples cannot have
    return made


def docstring(text: str | None) -> str | None:
    """Return a description without lone surrogates, for a docstring."""
    return None if text is None else text.encode(errors="replace").decode()


def hint_of(value: ValueType, where: str) -> Any:
    """Return the annotation of a field's values."""
    return kind_of_type(value).annotation(value, where, hint_of)


def reduce_type(cls: SchemaType) -> str | tuple[Any, ...]:
    """Pickle a type by its content; a class derived from it by name, as others."""
    own = cls.__dict__
    if "__schema_content__" not in own:
        return cls.__qualname__
    return load_type, (own["__schema_content__"], own["__schema_ref__"])


copyreg.pickle(SchemaType, reduce_type)
