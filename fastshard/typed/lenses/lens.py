"""Lenses: a function from one type of sample to another, and one back."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import update_wrapper
from types import FrameType
from typing import Any, Generic, TypeVar

from fastshard.typed.lenses.laws import LawFailure, find_failures

__all__ = ["Lens", "UnresolvedTypeError", "compose", "make_lens"]

S = TypeVar("S")  # the source
V = TypeVar("V")  # the view
W = TypeVar("W")
R = TypeVar("R")


class UnresolvedTypeError(TypeError):
    """An annotation of a lens names a type that is not defined yet."""


class Lens(Generic[S, V]):
    """Function from a source to a view, with an optional putter.

    `fastshard.typed.lens` makes one of a function and registers it. ``f | g`` is `f`
    and then `g`; ``g @ f`` is the same lens. A lens at the top of a module pickles by
    name, another one with its functions.

    Parameters
    ----------
    get : callable
        Function of one parameter. Its annotations are the types of the lens; they are
        resolved when they are first needed.
    put : callable, optional
        ``put(view, source)`` returns the source, updated from the view.
    upstream_put : bool, default False
        Without `put`, let `Lens.put` return the source unchanged, as atdata does.

    Attributes
    ----------
    source_type, view_type : type

    Raises
    ------
    ValueError
        `get` does not have exactly one parameter.

    Examples
    --------
    >>> from fastshard import typed
    >>> @typed.packable
    ... class Person:
    ...     name: str
    ...     age: int
    >>> @typed.packable
    ... class Name:
    ...     name: str
    >>> def get(person: Person) -> Name:
    ...     return Name(name=person.name)
    >>> def put(name: Name, person: Person) -> Person:
    ...     return Person(name=name.name, age=person.age)
    >>> lens = typed.Lens(get, put)
    >>> lens
    Lens(get: Person -> Name)
    >>> ada = Person(name="Ada", age=36)
    >>> lens(ada), lens.put(Name(name="Eve"), ada)
    (Name(name='Ada'), Person(name='Eve', age=36))
    """

    __name__: str
    __qualname__: str
    _getter: Callable[[S], V]
    _putter: Callable[[V, S], S] | None
    _recipe: tuple[Callable[..., Any], tuple[Any, ...]] | None  # how it pickles
    _resolved: tuple[type[S], type[V]] | None

    def __init__(
        self,
        get: Callable[[S], V],
        put: Callable[[V, S], S] | None = None,
        *,
        upstream_put: bool = False,
    ) -> None:
        parameters = _parameters_of(get)
        if len(parameters) != 1:
            names = ", ".join(parameters) or "none"
            raise ValueError(
                "the function of a lens must have exactly one parameter, got "
                f"{len(parameters)}: {names}"
            )
        update_wrapper(self, get)
        self.__name__ = _name_of(get)
        self._getter = get
        self._putter = put
        self._upstream_put = upstream_put
        self._recipe = None
        self._resolved = None
        self._try_resolving()

    @property
    def source_type(self) -> type[S]:
        """The type of the function's parameter.

        Raises
        ------
        TypeError
            The parameter has no annotation, or one that names no class.
        """
        return self._types()[0]

    @property
    def view_type(self) -> type[V]:
        """The type that the function returns.

        Raises
        ------
        TypeError
            The function has no annotation of it, or one that names no class.
        """
        return self._types()[1]

    @property
    def has_putter(self) -> bool:
        """True if the lens has a putter for `put`."""
        return self._putter is not None

    def get(self, s: S) -> V:
        """Return the view of a source; ``lens(s)`` is the same.

        Examples
        --------
        >>> caption_of.get(ImageSample(image=np.zeros(4), label="a cat"))
        Caption(text='a cat', score=0.0)
        """
        return self._getter(s)

    def __call__(self, s: S) -> V:
        return self._getter(s)

    def put(self, v: V, s: S) -> S:
        """Return a source, updated from a view.

        Returns
        -------
        object
            Another source.

        Raises
        ------
        TypeError
            The lens has no putter.

        Examples
        --------
        >>> sample = ImageSample(image=np.zeros(4), label="a cat")
        >>> caption_of.put(Caption(text="a dog"), sample).label
        'a dog'
        """
        if self._putter is not None:
            return self._putter(v, s)
        if self._upstream_put:
            return s
        raise TypeError(
            f"the lens {self.__name__} has no putter: decorate one with "
            f"@{self.__name__}.putter"
        )

    def putter(self, put: Callable[[V, S], S]) -> Callable[[V, S], S]:
        """Set the function that `put` calls; a decorator.

        Parameters
        ----------
        put : callable
            ``put(view, source)`` returns a source.

        Returns
        -------
        callable
            `put` itself.

        Examples
        --------
        >>> lens = typed.Lens(lambda sample: Caption(text=sample.label))
        >>> @lens.putter
        ... def put(caption, sample):
        ...     return ImageSample(image=sample.image, label=caption.text.upper())
        >>> lens.put(Caption(text="a dog"), ImageSample(np.zeros(4), "a cat")).label
        'A DOG'
        """
        self._putter = put
        return put

    def __or__(self, other: Lens[V, W]) -> Lens[S, W]:
        if not isinstance(other, Lens):
            return NotImplemented
        return compose(self, other)

    def __matmul__(self, other: Lens[R, S]) -> Lens[R, V]:
        if not isinstance(other, Lens):
            return NotImplemented
        return compose(other, self)

    @staticmethod
    def identity(sample_type: type[R]) -> Lens[R, R]:
        """Return the lens of a type to itself.

        Examples
        --------
        >>> caption = Caption(text="a cat")
        >>> typed.Lens.identity(Caption)(caption) is caption
        True
        """
        return make_lens(
            lambda s: s,
            lambda v, s: v,
            types=(sample_type, sample_type),
            name="identity",
            recipe=(Lens.identity, (sample_type,)),
        )

    def check_laws(self, samples: Iterable[S]) -> list[LawFailure]:
        """Return the samples for which the lens breaks the laws of its putter.

        ``"GetPut"``: ``put(get(s), s) == s``. ``"PutGet"``: ``get(put(v, s)) == v``,
        with the view `v` of the next sample. Arrays are equal if their dtypes, shapes
        and values are; NaN equals itself.

        Parameters
        ----------
        samples : iterable
            Sources; several that differ find more than one does.

        Returns
        -------
        list of LawFailure
            ``(law, position, field)``: the law's name, the position of the sample, the
            first field that differs, or None where the values differ as a whole. Empty
            if the laws hold.

        Raises
        ------
        TypeError
            The lens has no putter.

        Examples
        --------
        >>> images = [ImageSample(image=np.ones(4), label=f"no. {i}") for i in (1, 2)]
        >>> caption_of.check_laws(images)
        []
        >>> def forget(caption, sample):
        ...     return ImageSample(image=np.zeros(4), label=caption.text)
        >>> typed.Lens(caption_of.get, forget).check_laws(images[:1])
        [LawFailure(law='GetPut', position=0, field='image')]
        """
        return find_failures(self.get, self.put, list(samples))

    def __repr__(self) -> str:
        try:
            source, view = (name_type(each) for each in self._types())
        except TypeError:
            return f"Lens({self.__name__})"
        return f"Lens({self.__name__}: {source} -> {view})"

    def __reduce__(self) -> str | tuple[Any, ...]:
        if self._recipe is not None:
            return self._recipe
        path = self.__qualname__
        found: Any = sys.modules.get(self.__module__)
        for name in path.split("."):
            found = getattr(found, name, None)
        if found is self:
            return path
        return _make_again, (self._getter, self._putter, self._upstream_put)

    def _types(self) -> tuple[type[S], type[V]]:
        """Return both types; resolve annotations that could not be resolved before."""
        if self._resolved is None:
            self._resolve({})
        assert self._resolved is not None
        return self._resolved

    def _try_resolving(self) -> None:
        """Resolve the annotations whose names exist."""
        try:
            self._resolve({})
        except UnresolvedTypeError:
            with suppress(TypeError):
                self._resolve(_local_names())
        except TypeError:
            return

    def _resolve(self, names: Mapping[str, Any]) -> None:
        scope = {**_enclosing_names(self._getter), **names}
        try:
            signature = inspect.signature(self._getter, locals=scope, eval_str=True)
        except NameError as error:
            raise UnresolvedTypeError(
                f"an annotation of the lens {self.__name__} cannot be resolved: {error}"
            ) from None
        (parameter,) = signature.parameters.values()
        source = self._check(parameter.annotation, f"its parameter {parameter.name}")
        self._resolved = source, self._check(signature.return_annotation, "its result")

    def _check(self, found: Any, what: str) -> Any:
        """Return the annotation of a parameter or the result, if it is a class."""
        if found is inspect.Signature.empty:
            raise TypeError(f"the lens {self.__name__} has no annotation of {what}")
        if not isinstance(found, type):
            raise TypeError(
                f"the lens {self.__name__}: the annotation of {what} must be a class, "
                f"got {found!r}"
            )
        return found


def _parameters_of(get: Callable[..., Any]) -> list[str]:
    """Return the names of a function's parameters, with unresolved annotations."""
    if sys.version_info >= (3, 14):  # a signature has them
        from annotationlib import Format

        return list(inspect.signature(get, annotation_format=Format.STRING).parameters)
    return list(inspect.signature(get).parameters)


def _name_of(get: Callable[..., Any]) -> str:
    """Return the name of a function, or of the type of another callable."""
    return str(getattr(get, "__name__", None) or type(get).__name__)


def _enclosing_names(get: Callable[..., Any]) -> dict[str, Any]:
    """Return the variables of enclosing functions that a function uses."""
    try:
        return dict(inspect.getclosurevars(get).nonlocals)
    except (TypeError, ValueError):  # not a function; an unassigned variable
        return {}


def _local_names() -> dict[str, Any]:
    """Return the variables of the functions that enclose a lens, inner ones first.

    Of the calling frames in the same module.
    """
    package = __name__.rpartition(".")[0]
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__", "").startswith(package):
        frame = frame.f_back
    names: dict[str, Any] = {}
    scope = None if frame is None else frame.f_globals
    while frame is not None and frame.f_globals is scope:
        if frame.f_locals is not scope:
            names = {**frame.f_locals, **names}
        frame = frame.f_back
    return names


def name_type(kind: type) -> str:
    """Return a type's name without its enclosing function."""
    return kind.__qualname__.rpartition("<locals>.")[2]


def make_lens(
    get: Callable[[S], V],
    put: Callable[[V, S], S] | None,
    *,
    types: tuple[type[S], type[V]] | None,
    name: str,
    recipe: tuple[Callable[..., Any], tuple[Any, ...]],
) -> Lens[S, V]:
    """Return a lens of functions without annotations."""
    lens: Lens[S, V] = object.__new__(Lens)
    lens.__name__ = name
    lens._getter = get
    lens._putter = put
    lens._upstream_put = False
    lens._recipe = recipe
    lens._resolved = types
    return lens


def compose(first: Lens[S, V], second: Lens[V, W]) -> Lens[S, W]:
    """Return the lens that is `first` and then `second`.

    Its ``put(w, s)`` is ``first.put(second.put(w, first.get(s)), s)``.
    """
    get_first, get_second = first._getter, second._getter

    def put(w: W, s: S) -> S:
        return first.put(second.put(w, get_first(s)), s)

    lens = make_lens(
        lambda s: get_second(get_first(s)),
        put,
        types=None,
        name=f"{first.__name__} | {second.__name__}",
        recipe=(compose, (first, second)),
    )
    try:
        lens._resolved = first.source_type, second.view_type
    except TypeError:
        lens._resolved = None
    return lens


def _make_again(
    get: Callable[[S], V], put: Callable[[V, S], S] | None, upstream_put: bool
) -> Lens[S, V]:
    """Unpickle a lens with its functions."""
    return Lens(get, put, upstream_put=upstream_put)
