"""Lenses as JSON in an index, and lenses made of it."""

from __future__ import annotations

import dataclasses
import dis
import importlib
import inspect
import types
from collections.abc import Callable, Mapping, Sequence, Set
from datetime import UTC, datetime
from typing import Any

from fastshard.errors import DescriptionError
from fastshard.typed.kinds.value_type import list_of, map_of, shorten, text_of
from fastshard.typed.lenses.lens import Lens, compose, make_lens
from fastshard.typed.sample_type import become_dataclass, is_generated, new_sample

__all__ = ["from_lens_json", "mapping_lens", "mapping_of", "to_lens_json"]

AnyLens = Lens[Any, Any]
Pairs = tuple[tuple[str, str], ...]  # field that is read, field that is written

# Instructions of a function that only calls a class with fields of its arguments:
# no branch, no operator, no constant but the names of keywords.
COPYING = {
    *("RESUME", "NOP", "CACHE", "PUSH_NULL", "PRECALL", "KW_NAMES", "EXTENDED_ARG"),
    *("COPY_FREE_VARS", "LOAD_FAST", "LOAD_FAST_BORROW", "LOAD_FAST_LOAD_FAST"),
    *("LOAD_FAST_BORROW_LOAD_FAST_BORROW", "LOAD_ATTR", "LOAD_CONST", "RETURN_VALUE"),
    *("LOAD_GLOBAL", "LOAD_DEREF", "CALL", "CALL_KW"),
}
CALLS = ("CALL", "CALL_KW")
NAMES = ("LOAD_GLOBAL", "LOAD_DEREF")


def to_lens_json(
    lens: AnyLens,
    *,
    name: str,
    version: str,
    description: str | None = None,
    source_schema: str | None = None,
    view_schema: str | None = None,
) -> dict[str, Any]:
    """Return the JSON of a lens.

    A lens that is known to copy fields, and to do nothing else, is stored as a mapping;
    another one as a reference to its code where a module has it, else as opaque.
    """
    getter, putter = mapping_of(lens) or (None, None)
    found: dict[str, Any] = {
        "name": name,
        "version": version,
        "source_schema": source_schema or lens.source_type.__name__,
        "view_schema": view_schema or lens.view_type.__name__,
        "getter": describe_function(lens._getter, getter),
        "putter": describe_function(lens._putter, putter),
        "created_at": datetime.now(UTC).isoformat(),
    }
    if description:
        found["description"] = description
    return found


def describe_function(
    function: Callable[..., Any] | None, pairs: Pairs | None
) -> dict[str, Any]:
    """Return the JSON of a getter or a putter."""
    if pairs is not None:
        return {
            "kind": "field_mapping",
            "mappings": [
                {"source_field": one, "view_field": other, "transform": None}
                for one, other in pairs
            ],
        }
    module = getattr(function, "__module__", None)
    path = getattr(function, "__qualname__", None)
    if isinstance(module, str) and isinstance(path, str) and "<" not in path:
        return {"kind": "code_reference", "module": module, "qualname": path}
    return {"kind": "opaque"}


def mapping_of(lens: AnyLens) -> tuple[Pairs, Pairs | None] | None:
    """Return the fields that a lens copies; None if it may do more."""
    recipe = lens._recipe
    if recipe is not None:
        make, arguments = recipe
        if make is mapping_lens:
            return arguments[2], arguments[3]
        if make is Lens.identity:
            same = tuple((name, name) for name in sorted(field_names(arguments[0])))
            return same, same
        if make is compose:
            return joined_mapping(*map(mapping_of, arguments))
        return None
    try:
        source, view = lens.source_type, lens.view_type
    except TypeError:
        return None
    getter = copied_fields(lens._getter, view, (source,))
    if getter is None:
        return None
    pairs = tuple((name, each) for each, (_, name) in getter.items())
    return pairs, putter_pairs(lens, source, view, pairs)


def joined_mapping(
    first: tuple[Pairs, Pairs | None] | None, second: tuple[Pairs, Pairs | None] | None
) -> tuple[Pairs, Pairs | None] | None:
    """Return the mapping of one lens and then another."""
    if first is None or second is None:
        return None
    origin = {view: source for source, view in first[0]}
    if any(name not in origin for name, _ in second[0]):
        return None  # a default of the type between
    getter = tuple((origin[name], view) for name, view in second[0])
    if first[1] is None or second[1] is None:
        return getter, None
    goal = dict(first[1])
    if any(name not in goal for _, name in second[1]):
        return getter, None
    return getter, tuple((view, goal[name]) for view, name in second[1])


def putter_pairs(
    lens: AnyLens, source: type, view: type, getter: Pairs
) -> Pairs | None:
    """Return the fields that a putter copies back; None if it may do more."""
    found = copied_fields(lens._putter, source, (view, source))
    if found is None or {*found} != field_names(source):
        return None
    pairs = tuple((name, each) for each, (i, name) in found.items() if i == 0)
    kept = all(name == each for each, (i, name) in found.items() if i == 1)
    is_inverse = {*pairs} == {(b, a) for a, b in getter}
    return pairs if kept and is_inverse else None


def field_names(cls: type) -> set[str]:
    return {each.name for each in dataclasses.fields(cls) if each.init}


def required_names(cls: type) -> set[str]:
    """Return the fields of a class that have no default."""
    return {
        each.name
        for each in dataclasses.fields(cls)
        if each.init
        and each.default is dataclasses.MISSING
        and each.default_factory is dataclasses.MISSING
    }


def copied_fields(
    function: object, result: type, arguments: Sequence[type]
) -> dict[str, tuple[int, str]] | None:
    """Return the source of each copied field in a function's result."""
    if not isinstance(function, types.FunctionType):
        return None
    if not all(is_plain(each) for each in (result, *arguments)):
        return None
    readable = {name for each in arguments for name in field_names(each)}
    count = count_copied(function, result, readable)
    if count is None:
        return None
    # No instruction looks at the values: any can stand for them.
    origins: dict[int, tuple[int, str]] = {}
    given = []
    for i, cls in enumerate(arguments):
        sample: Any = new_sample(cls)
        for name in field_names(cls):
            value = object()
            object.__setattr__(sample, name, value)
            origins[id(value)] = i, name
        given.append(sample)
    try:
        made = function(*given)
        values = {name: getattr(made, name) for name in field_names(result)}
    except Exception:  # of a user's own constructor
        return None
    found = {
        each.name: origins[id(values[each.name])]
        for each in dataclasses.fields(result)
        if id(values.get(each.name)) in origins
    }
    return found if type(made) is result and len(found) == count else None


def is_plain(cls: type) -> bool:
    """Return whether fields of a class are stored as given."""
    if not dataclasses.is_dataclass(cls):
        return False
    become_dataclass(cls)
    return (
        cls.__getattribute__ is object.__getattribute__
        and is_generated(cls.__init__)
        and not any(
            hasattr(inspect.getattr_static(cls, name, None), "__set__")
            for name in field_names(cls)
        )
    )


def count_copied(
    function: types.FunctionType, result: type, readable: Set[str]
) -> int | None:
    """Return the number of arguments if a function only calls a class, else None."""
    code = function.__code__
    if code.co_flags & (inspect.CO_GENERATOR | inspect.CO_COROUTINE):
        return None
    counts, names, attributes = [], [], 0
    for each in dis.get_instructions(code):
        if each.opname not in COPYING:
            return None
        if each.opname == "LOAD_CONST" and not is_keywords(each.argval):
            return None
        if each.opname in CALLS:
            counts.append(each.arg)
        elif each.opname in NAMES:
            names.append(each.argval)
        elif each.opname == "LOAD_ATTR":
            attributes += 1
            if each.argval not in readable:
                return None
    # One more attribute: a method of the class is called instead.
    if len(names) != 1 or counts != [attributes]:
        return None
    return counts[0] if value_of_name(function, names[0]) is result else None


def is_keywords(value: object) -> bool:
    return isinstance(value, tuple) and all(isinstance(each, str) for each in value)


def value_of_name(function: types.FunctionType, name: str) -> object:
    """Return the present value of a name in a function."""
    cells = dict(
        zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    )
    try:
        return (
            cells[name].cell_contents if name in cells else function.__globals__[name]
        )
    except (KeyError, ValueError):  # a variable without a value
        return None


def from_lens_json(
    data: object,
    *,
    source_type: type | None = None,
    view_type: type | None = None,
    allow_code: bool = False,
    where: str = "lens",
) -> AnyLens:
    """Return the lens described by an index's JSON."""
    record = map_of(data, "a lens", where)
    name = text_of(record, "name", where)
    getter = map_of(record.get("getter"), "'getter'", where)
    putter = map_of(record.get("putter", {"kind": "opaque"}), "'putter'", where)
    kind, putter_kind = (text_of(each, "kind", where) for each in (getter, putter))
    if kind == "field_mapping":
        if putter_kind == "code_reference" and not allow_code:
            refuse_code(putter, where)
        return load_mapping(name, getter, putter, source_type, view_type, where)
    if kind == "code_reference":
        if not allow_code:
            refuse_code(getter, where)
        return load_code(name, getter, putter, (source_type, view_type), where)
    raise DescriptionError(
        f"Cannot reconstitute the lens {shorten(name)}: its getter is of the kind "
        f"{shorten(kind)}; declare it with @lens",
        where,
    )


def refuse_code(data: Mapping[str, Any], where: str) -> None:
    code = f"{shorten(data.get('module'))}, {shorten(data.get('qualname'))}"
    raise DescriptionError(
        f"the lens is code of a module ({code}), which is imported only with "
        "allow_code=True",
        where,
    )


def load_mapping(
    name: str,
    getter: Mapping[str, Any],
    putter: Mapping[str, Any],
    source: type | None,
    view: type | None,
    where: str,
) -> AnyLens:
    """Return a lens that copies fields."""
    for what, cls in (("view_type", view), ("source_type", source)):
        if cls is None:
            raise DescriptionError(
                f"{what} is required to reconstitute the lens {shorten(name)}, which "
                "maps fields",
                where,
            )
        if not (isinstance(cls, type) and dataclasses.is_dataclass(cls)):
            raise TypeError(f"{what} must be a packable class, got {cls!r:.60}")
    assert source is not None
    assert view is not None
    pairs = parse_pairs(getter, source, view, where)
    missing = required_names(view) - {new for _, new in pairs}
    if missing:
        raise DescriptionError(
            f"maps nothing to the field {shorten(min(missing))} of {view.__qualname__}",
            where,
        )
    back = None
    if putter["kind"] == "field_mapping":
        back = parse_pairs(putter, view, source, where)
    lens = mapping_lens(source, view, pairs, back, name)
    if putter["kind"] == "code_reference":
        lens.putter(import_code(putter, where))
    return lens


def parse_pairs(data: Mapping[str, Any], source: type, view: type, where: str) -> Pairs:
    """Return the fields of a mapping from one type to another."""
    pairs = []
    seen = set()
    for each in list_of(data.get("mappings"), "'mappings'", where):
        one = map_of(each, "a mapping", where)
        pair = text_of(one, "source_field", where), text_of(one, "view_field", where)
        if one.get("transform") is not None:
            raise DescriptionError(
                f"unknown transform {shorten(one['transform'])} of the field "
                f"{shorten(pair[0])}",
                where,
            )
        for field, cls in zip(pair, (source, view), strict=True):
            if field not in field_names(cls):
                raise DescriptionError(
                    f"{cls.__qualname__} has no field {shorten(field)}", where
                )
        if pair[1] in seen:
            raise DescriptionError(f"maps to the field {pair[1]!r} twice", where)
        seen.add(pair[1])
        pairs.append(pair)
    return tuple(pairs)


def mapping_lens(
    source: type, view: type, getter: Pairs, putter: Pairs | None, name: str
) -> AnyLens:
    """Return a lens that copies fields and pickles as a mapping."""

    def get(sample: Any) -> Any:
        return view(**{new: getattr(sample, old) for old, new in getter})

    def put(part: Any, sample: Any) -> Any:
        values = {each: getattr(sample, each) for each in kept}
        for old, new in putter or ():
            values[new] = getattr(part, old)
        return source(**values)

    written = {new for _, new in putter or ()}
    kept = [each for each in field_names(source) if each not in written]
    return make_lens(
        get,
        None if putter is None else put,
        types=(source, view),
        name=name,
        recipe=(mapping_lens, (source, view, getter, putter, name)),
    )


def load_code(
    name: str,
    getter: Mapping[str, Any],
    putter: Mapping[str, Any],
    given: tuple[type | None, type | None],
    where: str,
) -> AnyLens:
    """Return a lens of functions in modules."""
    source, view = given
    found = import_code(getter, where)
    if isinstance(found, Lens):
        lens: AnyLens = found
    else:
        put = None
        if putter["kind"] == "code_reference":
            put = import_code(putter, where)
        lens = Lens(found, put)
        if source is not None and view is not None and not has_types(lens):
            lens = function_lens(found, put, source, view, name)
    for expected, what in zip(given, ("source_type", "view_type"), strict=True):
        if expected is not None and getattr(lens, what) is not expected:
            raise DescriptionError(
                f"the {what} of the lens {shorten(name)} is "
                f"{getattr(lens, what).__qualname__}, not {expected.__qualname__}",
                where,
            )
    return lens


def has_types(lens: AnyLens) -> bool:
    """Return whether the annotations of a lens's function give its types."""
    try:
        return isinstance(lens.source_type, type) and isinstance(lens.view_type, type)
    except TypeError:
        return False


def function_lens(
    get: Callable[..., Any],
    put: Callable[..., Any] | None,
    source: type,
    view: type,
    name: str,
) -> AnyLens:
    """Return a lens of functions without annotations."""
    return make_lens(
        get,
        put,
        types=(source, view),
        name=name,
        recipe=(function_lens, (get, put, source, view, name)),
    )


def import_code(data: Mapping[str, Any], where: str) -> Any:
    """Return the function or the lens that JSON refers to."""
    module = text_of(data, "module", where)
    path = text_of(data, "qualname", where)
    parts = [*module.split("."), *path.split(".")]
    if not all(part.isidentifier() for part in parts):
        raise DescriptionError(
            f"{shorten(module)}, {shorten(path)} names no code", where
        )
    found: Any = importlib.import_module(module)
    for part in path.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        raise DescriptionError(
            f"the module {shorten(module)} has no function {shorten(path)}", where
        )
    return found
