"""Predicates on the fields of samples: ``(F.score > 1) & F.label.isin(["cat"])``."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from fastshard.where.columns import ColumnReader, FrameColumns, plain_value

if TYPE_CHECKING:
    import pandas

__all__ = ["F", "FieldProxy", "Fields", "Predicate"]

SYMBOLS = {"gt": ">", "lt": "<", "ge": ">=", "le": "<=", "eq": "==", "ne": "!="}
COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    name: getattr(operator, name) for name in SYMBOLS
}


class Predicate:
    """Condition on the fields of a sample.

    Made by comparisons of fields, and joined by ``&``, ``|`` and ``~``. A comparison
    with a field that is None is false, and ``!=`` is true; ``== None`` finds them.
    A predicate is called with a DataFrame of pandas, too, and returns a Series.

    Examples
    --------
    >>> from fastshard.typed import query_fields
    >>> F = query_fields(ImageSample)
    >>> (F.label == "cat") | ~F.label.isin(["dog", "eel"])
    (Predicate('label' eq 'cat') | ~Predicate('label' isin ['dog', 'eel']))
    """

    __slots__ = ("_child", "_children", "_compiled", "_field", "_kind", "_op", "_value")

    def __init__(
        self,
        kind: str,
        *,
        field: str = "",
        op: str = "",
        value: Any = None,
        children: Sequence[Predicate] = (),
        child: Predicate | None = None,
    ) -> None:
        self._kind = kind
        self._field = field
        self._op = op
        self._value = value
        self._children = list(children)
        self._child = child
        self._compiled: Callable[[pandas.DataFrame], pandas.Series] | None = None

    def __and__(self, other: Predicate) -> Predicate:
        if not isinstance(other, Predicate):
            return NotImplemented
        return self._join("and", other)

    def __or__(self, other: Predicate) -> Predicate:
        if not isinstance(other, Predicate):
            return NotImplemented
        return self._join("or", other)

    def _join(self, kind: str, other: Predicate) -> Predicate:
        parts: list[Predicate] = []
        for each in (self, other):
            parts += each._children if each._kind == kind else [each]
        return Predicate(kind, children=parts)

    def __invert__(self) -> Predicate:
        return Predicate("not", child=self)

    def __bool__(self) -> bool:
        raise TypeError(
            "a predicate has no truth value: join comparisons by & | ~, in "
            "parentheses, and write between(a, b) for a < field < b"
        )

    __hash__ = None  # type: ignore[assignment]

    def compile(self) -> Callable[[pandas.DataFrame], pandas.Series]:
        """Return a function of a DataFrame of pandas that returns a Series of bool.

        Examples
        --------
        >>> import pandas
        >>> from fastshard.typed import query_fields
        >>> condition = (query_fields(ImageSample).label == "cat").compile()
        >>> condition(pandas.DataFrame({"label": ["cat", "dog"]})).tolist()
        [True, False]
        """
        if self._compiled is None:
            self._compiled = self._apply
        return self._compiled

    def __call__(self, frame: pandas.DataFrame) -> pandas.Series:
        """Return which rows of a DataFrame meet the condition."""
        return self.compile()(frame)

    def _apply(self, frame: pandas.DataFrame) -> pandas.Series:
        import pandas

        found = self.select(FrameColumns(frame))
        return pandas.Series(found, index=frame.index, dtype=bool)

    def select(self, rows: ColumnReader) -> list[bool]:
        """Return whether each row meets the condition.

        Examples
        --------
        >>> from fastshard.typed import query_fields
        >>> from fastshard.typed.manifest.rows import ManifestRows
        >>> rows = ManifestRows.of({"label": ["cat", None, "dog"]})
        >>> (query_fields(ImageSample).label != "cat").select(rows)
        [False, True, True]
        """
        if self._kind == "comparison":
            return self._compare(rows.column(self._field))
        if self._kind == "not":
            assert self._child is not None
            return [not found for found in self._child.select(rows)]
        join = all if self._kind == "and" else any
        masks = [child.select(rows) for child in self._children]
        return [join(found) for found in zip(*masks, strict=True)]

    def _compare(self, values: Iterable[Any]) -> list[bool]:
        wanted = self._value
        try:
            if self._op == "isin":
                return select_in(values, wanted)
            if self._op == "contains":
                return [v is not None and wanted in v for v in values]
            if wanted is None and self._op in ("eq", "ne"):
                is_none = self._op == "eq"
                return [(v is None or v != v) == is_none for v in values]
            if self._op == "eq":
                return [v is not None and bool(v == wanted) for v in values]
            if self._op == "ne":
                return [v is None or bool(v != wanted) for v in values]
            compare = COMPARISONS[self._op]
            return [v is not None and bool(compare(v, wanted)) for v in values]
        except TypeError as error:
            raise TypeError(f"field {self._field!r}: {error}") from error

    def fields(self) -> list[str]:
        """Return the names of the fields in the condition.

        Examples
        --------
        >>> from fastshard.typed import query_fields
        >>> (query_fields(ImageSample).label == "cat").fields()
        ['label']
        """
        if self._kind == "comparison":
            return [self._field]
        children = [self._child] if self._child is not None else self._children
        found = [name for child in children for name in child.fields()]
        return list(dict.fromkeys(found))

    def __repr__(self) -> str:
        if self._kind == "comparison":
            return f"Predicate({self._field!r} {self._op} {self._value!r})"
        if self._kind == "not":
            return f"~{self._child!r}"
        sign = " & " if self._kind == "and" else " | "
        return f"({sign.join(map(repr, self._children))})"


def select_in(values: Iterable[Any], wanted: list[Any]) -> list[bool]:
    """Return whether each value is one of those wanted."""
    with_none = any(value is None for value in wanted)
    try:
        known = frozenset(wanted)
        return [(v in known) if v is not None else with_none for v in values]
    except TypeError:  # lists have no hash
        return [(v in wanted) if v is not None else with_none for v in values]


class FieldProxy:
    """A field of samples, to be compared.

    Examples
    --------
    >>> from fastshard.typed import query_fields
    >>> F = query_fields(ImageSample)
    >>> F.label == "cat"
    Predicate('label' eq 'cat')
    """

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def _compare(self, op: str, value: Any) -> Predicate:
        if isinstance(value, FieldProxy):
            raise TypeError("a field is compared with a value, not with another field")
        return Predicate(
            "comparison", field=self._name, op=op, value=plain_value(value)
        )

    def __gt__(self, value: Any) -> Predicate:
        return self._compare("gt", value)

    def __lt__(self, value: Any) -> Predicate:
        return self._compare("lt", value)

    def __ge__(self, value: Any) -> Predicate:
        return self._compare("ge", value)

    def __le__(self, value: Any) -> Predicate:
        return self._compare("le", value)

    def __eq__(self, value: object) -> Predicate:  # type: ignore[override]
        return self._compare("eq", value)

    def __ne__(self, value: object) -> Predicate:  # type: ignore[override]
        return self._compare("ne", value)

    __hash__ = None  # type: ignore[assignment]

    # A field of bool is a condition by itself: ``(F.label == "cat") & F.ok``.

    def __and__(self, other: Any) -> Predicate:
        return self._compare("eq", True) & as_predicate(other)

    def __or__(self, other: Any) -> Predicate:
        return self._compare("eq", True) | as_predicate(other)

    def __rand__(self, other: Any) -> Predicate:
        return as_predicate(other) & self._compare("eq", True)

    def __ror__(self, other: Any) -> Predicate:
        return as_predicate(other) | self._compare("eq", True)

    def __invert__(self) -> Predicate:
        return ~self._compare("eq", True)

    def __bool__(self) -> bool:
        raise TypeError("a field has no truth value: join conditions by & | ~")

    def isin(self, values: Iterable[Any]) -> Predicate:
        """Return the condition that the field is one of several values.

        Examples
        --------
        >>> from fastshard.typed import query_fields
        >>> query_fields(ImageSample).label.isin(["cat", "dog"])
        Predicate('label' isin ['cat', 'dog'])
        """
        if isinstance(values, str):
            raise TypeError("isin takes a list of values, got a str")
        return self._compare("isin", [plain_value(value) for value in values])

    def between(self, low: Any, high: Any) -> Predicate:
        """Return the condition that the field is in a range, its ends included.

        Examples
        --------
        >>> from fastshard.typed import query_fields
        >>> query_fields(ImageSample).label.between("a", "d")
        (Predicate('label' ge 'a') & Predicate('label' le 'd'))
        """
        return self._compare("ge", low) & self._compare("le", high)

    def contains(self, value: Any) -> Predicate:
        """Return the condition that a list of the field has a value.

        Examples
        --------
        >>> from fastshard.where.predicate import F
        >>> F.tags.contains("outdoor")
        Predicate('tags' contains 'outdoor')
        """
        return self._compare("contains", value)

    def __repr__(self) -> str:
        return f"FieldProxy({self._name!r})"


def as_predicate(value: Any) -> Predicate:
    if isinstance(value, FieldProxy):
        return value._compare("eq", True)
    if not isinstance(value, Predicate):
        raise TypeError(f"expected a condition, got {type(value).__name__}")
    return value


class Fields:
    """The queryable fields of a type, as attributes."""

    def __init__(self, names: Iterable[str] | None, title: str) -> None:
        self._names = None if names is None else tuple(names)
        self._title = title

    def __getattr__(self, name: str) -> FieldProxy:
        if name.startswith("__") or not self._has(name):
            known = f"; it has {', '.join(self._names)}" if self._names else ""
            raise AttributeError(f"{self._title} has no field {name!r}{known}")
        return FieldProxy(name)

    def _has(self, name: str) -> bool:
        return not name.startswith("_") if self._names is None else name in self._names

    def __getitem__(self, name: str) -> FieldProxy:
        if self._names is not None and name not in self._names:
            raise KeyError(name)
        return FieldProxy(name)

    def __iter__(self) -> Iterator[str]:
        if self._names is None:
            raise TypeError(f"the names of {self._title} are not known")
        return iter(self._names)

    def __dir__(self) -> list[str]:
        return sorted(self._names or ())

    def __reduce__(self) -> tuple[Any, ...]:
        return Fields, (self._names, self._title)

    def __repr__(self) -> str:
        if self._names is None:
            return self._title
        return f"{self._title}({', '.join(self._names)})"


F = Fields(None, "F")
