"""Sample types: the base class, the decorator, and the protocol that both meet."""

from __future__ import annotations

import copyreg
import dataclasses
import functools
import inspect
import re
import sys
import threading
import types
import uuid
from collections.abc import Callable, Mapping
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Protocol,
    TypeVar,
    dataclass_transform,
    runtime_checkable,
)

from fastshard._util.processes.forks import LockOwner
from fastshard.typed.fields import declared_fields, encoder_of, plan_of, unpack
from fastshard.typed.kinds.equality import equal_values

if TYPE_CHECKING:
    from typing import Self

    from typing_extensions import Buffer

__all__ = ["Packable", "PackableSample", "new_key", "packable"]

T = TypeVar("T")
OPTIONS = ("eq", "order", "kw_only")  # dataclass options of derived classes
MAX_FRAMES = 16  # between a class statement and the base's `__init_subclass__`
LOCK = LockOwner(threading.RLock)  # of classes that become dataclasses


@runtime_checkable
class Packable(Protocol):
    """Protocol of samples: both kinds of declared classes, and `DictSample`.

    Examples
    --------
    >>> from fastshard import typed
    >>> class Caption(typed.PackableSample):
    ...     text: str
    >>> isinstance(Caption(text="a cat"), typed.Packable)
    True
    """

    @classmethod
    def from_data(cls, data: dict[str, Any], /) -> Packable:
        """Make a sample of its fields' values."""
        raise NotImplementedError

    @classmethod
    def from_bytes(cls, data: bytes, /) -> Packable:
        """Make a sample of its msgpack payload."""
        raise NotImplementedError

    @property
    def packed(self) -> bytes:
        """The sample's msgpack payload."""
        raise NotImplementedError

    @property
    def as_wds(self) -> dict[str, Any]:
        """The sample as WebDataset's writers take it."""
        raise NotImplementedError


class LazyFields:
    """`dataclasses.fields` of a class that becomes a dataclass at first use."""

    def __get__(self, instance: object, cls: type) -> Any:
        become_dataclass(cls)
        return cls.__dict__["__dataclass_fields__"]


class LazySignature:
    """The signature of a class, with the parameters of its fields."""

    def __get__(self, instance: object, cls: type) -> inspect.Signature:
        if instance is not None:
            raise AttributeError("__signature__")
        become_dataclass(cls)
        method: Any = cls.__dict__.get("__init__", cls.__init__)  # type: ignore[misc]
        found = inspect.signature(method)
        return inspect.Signature([*found.parameters.values()][1:])


@dataclass_transform(field_specifiers=(dataclasses.field, dataclasses.Field))
class PackableSample:
    """Base class of sample types: a class with annotated fields is a dataclass.

    A subclass needs no decorator; with ``@dataclass(...)`` its options hold. Fields are
    ``str int float bool bytes``, arrays (``NDArray[np.float32]``, ``NDArray``,
    ``np.ndarray``), lists, tuples, dicts, ``Any``, other sample types, ``Literal``,
    enumerations, and unions with None; ``__field_formats__ = {"m": "sparse"}`` names
    fields that are stored as ``sparse``, ``structured``, ``arrow_tensor``,
    ``dataframe`` or ``safetensors``. Annotations are resolved when they are first
    needed.

    Samples are equal if they have one type and equal fields: arrays by dtype, shape and
    items, where NaN equals nothing, as in NumPy. A class's own ``__eq__`` holds, as
    does ``eq=False``; hashes are those of dataclasses.

    Examples
    --------
    >>> import numpy as np
    >>> from numpy.typing import NDArray
    >>> from fastshard import typed
    >>> class ImageSample(typed.PackableSample):
    ...     image: NDArray[np.uint8]
    ...     label: str
    ...     bbox: NDArray[np.float32] | None = None
    >>> sample = ImageSample(image=np.zeros((2, 2), "u1"), label="cat")
    >>> again = ImageSample.from_bytes(sample.packed)
    >>> again.label, again.image.shape, again.bbox
    ('cat', (2, 2), None)
    """

    __slots__ = ()
    __signature__: ClassVar[Any] = LazySignature()

    def __init_subclass__(
        cls,
        *,
        eq: bool = True,
        order: bool = False,
        kw_only: bool = False,
        **options: Any,
    ) -> None:
        super().__init_subclass__(**options)
        keep_locals(cls)
        own = cls.__dict__
        if "__dataclass_fields__" not in own:
            chosen = {"eq": eq, "order": order, "kw_only": kw_only}
            cls.__fastshard_options__ = chosen  # type: ignore[attr-defined]
            cls.__dataclass_fields__ = LazyFields()  # type: ignore[attr-defined]
        if is_planted(own.get("__init__")) or "__init__" not in own:
            cls.__init__ = planted_init(cls)  # type: ignore[method-assign]
        if is_planted(own.get("__eq__")) or "__eq__" not in own:
            plant_equality(cls)
        post_init = own.get("__post_init__")
        if post_init is not None and not hasattr(post_init, "__fastshard_converts__"):
            cls.__post_init__ = converting(post_init)  # type: ignore[method-assign]

    def __post_init__(self) -> None:
        """Decode bytes given for arrays and for values of other libraries."""
        convert(self)

    __post_init__.__fastshard_base__ = True  # type: ignore[attr-defined]

    def __reduce_ex__(self, protocol: Any) -> Any:
        reduced: Any = object.__reduce_ex__(self, max(protocol, 2))
        if reduced[0] is copyreg.__newobj__:  # type: ignore[attr-defined]
            return new_sample, *reduced[1:]
        return reduced

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Self:
        """Make a sample of its fields' values.

        Parameters
        ----------
        data : mapping of str to object
            As the constructor takes them: bytes for an array are decoded.

        Raises
        ------
        TypeError
            A field is missing, or is not one of the class.

        Examples
        --------
        >>> Caption.from_data({"text": "a cat", "score": 1.5})
        Caption(text='a cat', score=1.5)
        """
        return cls(**data)

    @classmethod
    def from_bytes(
        cls,
        data: Buffer,
        *,
        copy: bool = False,
        aligned: bool = False,
        strict: bool = False,
    ) -> Self:
        """Make a sample of its msgpack payload, by the rules of schema evolution.

        Parameters
        ----------
        data : buffer
        copy : bool, default False
            Arrays are copies: writable and C-contiguous.
        aligned : bool, default False
            Arrays whose data are not aligned for their type are copies.
        strict : bool, default False
            Refuse a payload with fields that the class has not.

        Returns
        -------
        PackableSample
            Its arrays are on `data`, read-only if that is.

        Raises
        ------
        SchemaError
            The payload is not one of this class.
        FormatError
            The bytes are not msgpack, or a field's bytes are broken.
        TypeError
            A field of the class cannot be one.

        Examples
        --------
        >>> payload = Caption(text="a cat", score=1.5).packed
        >>> Caption.from_bytes(payload)
        Caption(text='a cat', score=1.5)
        """
        return unpack(plan_of(cls, strict), data, copy, aligned)

    @property
    def packed(self) -> bytes:
        """The sample's msgpack payload.

        Raises
        ------
        TypeError, ValueError, OverflowError
            A value cannot be stored; the message begins with the field.
        SchemaError
            An array has another dtype than its field declares.

        Examples
        --------
        >>> Caption(text="a cat", score=1.5).packed
        b'\\x82\\xa4text\\xa5a cat\\xa5score\\xcb?\\xf8\\x00\\x00\\x00\\x00\\x00\\x00'
        """
        return encoder_of(type(self)).encode(self)

    @property
    def as_wds(self) -> dict[str, Any]:
        """The sample as WebDataset's writers take it, under a new key.

        Examples
        --------
        >>> sorted(Caption(text="a cat", score=1.5).as_wds)
        ['__key__', 'msgpack']
        """
        return {"__key__": new_key(), "msgpack": self.packed}


@dataclass_transform(field_specifiers=(dataclasses.field, dataclasses.Field))
def packable(cls: type[T]) -> type[T]:
    """Make a class a dataclass that is a `PackableSample`.

    Type checkers know the fields and the constructor of the result; they know
    ``packed`` and ``from_bytes`` only of classes that derive from `PackableSample`.

    Parameters
    ----------
    cls : type
        With annotated fields; it may be a dataclass already.

    Returns
    -------
    type
        Of the same name, module, docstring and members; a class that derives from
        `PackableSample` is returned itself.

    Raises
    ------
    TypeError
        `cls` is not a class, or has ``__slots__``.

    Examples
    --------
    >>> from fastshard import typed
    >>> @typed.packable
    ... class Caption:
    ...     text: str
    ...     score: float = 0.0
    >>> Caption.from_bytes(Caption(text="a cat").packed)
    Caption(text='a cat', score=0.0)
    """
    if not isinstance(cls, type):
        raise TypeError(f"packable decorates a class, got {type(cls).__name__}")
    if issubclass(cls, PackableSample):
        become_dataclass(cls)
        return cls
    if "__slots__" in cls.__dict__:
        raise TypeError(
            f"{cls.__qualname__} has __slots__: it is not built a second time; derive "
            "it from PackableSample instead"
        )
    if "__dataclass_fields__" not in cls.__dict__:
        dataclasses.dataclass(cls)
    keep_locals(cls)

    def fill(names: dict[str, Any]) -> None:
        names["__module__"] = cls.__module__
        names["__qualname__"] = cls.__qualname__
        names["__doc__"] = cls.__doc__
        names["__dataclass_fields__"] = cls.__dataclass_fields__  # type: ignore[attr-defined]
        if not is_generated(cls.__init__):
            names["__init__"] = cls.__init__
        post_init = getattr(cls, "__post_init__", None)
        if post_init is not None:
            names["__post_init__"] = post_init
        if not is_generated(cls.__eq__):
            names["__eq__"], names["__hash__"] = cls.__eq__, cls.__hash__

    made: type[T] = types.new_class(cls.__name__, (cls, PackableSample), {}, fill)
    become_dataclass(made)  # its `__init__` calls `__post_init__`
    kept = cls.__dict__.get("__fastshard_locals__", {})
    if cls.__name__ in kept:  # a class that refers to itself
        kept[cls.__name__] = made
    return made


def become_dataclass(cls: type) -> None:
    """Make a subclass of `PackableSample` a dataclass unless it is one.

    A decorator ``@dataclass`` runs after `__init_subclass__`, so that a class cannot
    be made a dataclass there: it is made one when its fields, its signature or its
    first object are requested.
    """
    own = cls.__dict__
    if not is_planted(own.get("__init__")) and not is_lazy(cls):
        return
    with LOCK.lock:
        if is_lazy(cls):
            dataclasses.dataclass(**own["__fastshard_options__"])(cls)
        if is_planted(own.get("__init__")):
            setattr(cls, "__init__", generated_init(cls))  # noqa: B010


def is_lazy(cls: type) -> bool:
    return isinstance(cls.__dict__.get("__dataclass_fields__"), LazyFields)


def is_generated(method: Any) -> bool:
    """Return whether `dataclasses` generated a method."""
    code = getattr(method, "__code__", None)
    return code is not None and code.co_filename == "<string>"


def is_planted(method: object) -> bool:
    return hasattr(method, "__fastshard_planted__")


def planted_init(cls: type) -> Callable[..., None]:
    """Return the `__init__` of a class until it becomes a dataclass."""

    def __init__(self: Any, *args: Any, **values: Any) -> None:  # noqa: N807
        become_dataclass(cls)
        generated: Any = cls.__dict__["__init__"]
        generated(self, *args, **values)

    __init__.__qualname__ = f"{cls.__qualname__}.__init__"
    __init__.__fastshard_planted__ = True  # type: ignore[attr-defined]
    return __init__


def plant_equality(cls: type) -> None:
    """Replace the equality of dataclasses by that of samples.

    A class rebuilt for its slots has the equality of the first one already.
    """

    def __eq__(self: Any, other: object) -> Any:  # noqa: N807
        become_dataclass(cls)
        made: Any = cls
        if not made.__dataclass_params__.eq:
            return super(made, self).__eq__(other)
        if other.__class__ is not self.__class__:
            return NotImplemented
        return all(
            equal_values(getattr(self, each.name), getattr(other, each.name))
            for each in dataclasses.fields(made)
            if each.compare
        )

    first = getattr(cls.__dict__.get("__eq__"), "__fastshard_planted__", None)
    if first is not None and "__hash__" not in first.__dict__:
        del cls.__hash__  # None, which Python sets beside an `__eq__`
    __eq__.__qualname__ = f"{cls.__qualname__}.__eq__"
    __eq__.__fastshard_planted__ = cls  # type: ignore[attr-defined]
    cls.__eq__ = __eq__  # type: ignore[method-assign, assignment]


def generated_init(cls: type) -> Any:
    """Return the generated `__init__`, replaced by a planted one.

    Generated on a dataclass that inherits the fields of `cls`, so that no code of the
    class runs, such as `__init_subclass__`.
    """
    params = cls.__dataclass_params__  # type: ignore[attr-defined]
    if not params.init:
        inherited: Any = super(cls, cls)
        return inherited.__init__
    names: dict[str, Any] = {
        "__dataclass_fields__": cls.__dataclass_fields__,  # type: ignore[attr-defined]
        "__dataclass_params__": params,
        "__post_init__": None,
        "__module__": cls.__module__,
    }
    base = type("Fields", (), names)
    names = {"__module__": cls.__module__, "__qualname__": cls.__qualname__}
    heir: Any = type(cls.__name__, (base,), names)
    options = {"eq": False, "repr": False, "frozen": params.frozen}
    return dataclasses.dataclass(**options)(heir).__init__


def new_sample(cls: type[T], *args: Any) -> T:
    """Make a sample without fields, for unpickling."""
    become_dataclass(cls)
    return cls.__new__(cls, *args)


def converting(post_init: Callable[..., None]) -> Callable[..., None]:
    """Wrap a class's own `__post_init__` to decode bytes for arrays first."""

    @functools.wraps(post_init)
    def __post_init__(self: Any) -> None:  # noqa: N807
        convert(self)
        post_init(self)

    __post_init__.__fastshard_converts__ = True  # type: ignore[attr-defined]
    return __post_init__


def convert(sample: Any) -> None:
    """Decode bytes given for arrays and for values of other libraries."""
    values = getattr(sample, "__dict__", None)
    if values is not None and bytes not in map(type, values.values()):
        return
    for each in declared_fields(type(sample)):
        value = getattr(sample, each.name, None)
        if type(value) is bytes and each.kind.is_format:
            object.__setattr__(sample, each.name, each.kind.from_stored(value))


def keep_locals(cls: type) -> None:
    """Keep the local names that annotations of a class need.

    Postponed annotations of a class in a function may name the function's variables,
    which are gone when the annotations are resolved.
    """
    annotations = cls.__dict__.get("__annotations__", {})  # noqa: RUF063
    if "__fastshard_locals__" in cls.__dict__ or "<locals>" not in cls.__qualname__:
        return
    text = " ".join(each for each in map(spell, annotations.values()) if each)
    if not text:
        return
    function = cls.__qualname__.split(".<locals>")[-2].rpartition(".")[2]
    frame = sys._getframe(1)
    for _ in range(MAX_FRAMES):
        if frame.f_code.co_name == function:
            break
        if frame.f_back is None:
            return
        frame = frame.f_back
    else:
        return
    code = frame.f_code
    names = {*re.findall(r"\w+", text)} - {cls.__name__}
    names &= {*code.co_varnames, *code.co_cellvars, *code.co_freevars}
    kept: dict[str, Any] = {cls.__name__: cls}
    if names:  # otherwise not requested: a frame keeps the dict of its variables
        here = frame.f_locals
        kept |= {name: here[name] for name in names if name in here}
    cls.__fastshard_locals__ = kept  # type: ignore[attr-defined]


def spell(annotation: Any) -> str:
    """Return an annotation that contains text, as ``list["Item"]``, else ""."""
    if isinstance(annotation, str):
        return annotation
    text = repr(annotation)
    return "" if text.startswith("<class ") or "'" not in text else text


def new_key() -> str:
    """Return a unique key."""
    return str(uuid.uuid4())
