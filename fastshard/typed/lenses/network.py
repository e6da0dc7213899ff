"""The network of lenses: registration, look-up, chains."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator
from functools import reduce
from typing import Any, TypeVar
from weakref import WeakKeyDictionary, ref

from fastshard._util.processes.forks import LockOwner
from fastshard.errors import LensNotFoundError
from fastshard.typed.dict_sample import DictSample
from fastshard.typed.lenses.dict_lens import dict_lens
from fastshard.typed.lenses.lens import (
    Lens,
    UnresolvedTypeError,
    compose,
    name_type,
)

__all__ = ["LensNetwork", "lens"]

S = TypeVar("S")
V = TypeVar("V")
AnyLens = Lens[Any, Any]
Chain = tuple[AnyLens, ...]

MAX_CHAINS = 5  # that an error lists
ATTRIBUTE = "__fastshard_lenses__"


class HeldLenses(dict[int, AnyLens]):
    """Lenses kept alive by a class; empty in a pickled copy of the class."""

    def __reduce__(self) -> tuple[Any, ...]:
        return HeldLenses, ()


class LensNetwork:
    """The lenses of this process, by their source and view types.

    A singleton: ``LensNetwork() is LensNetwork()``. `fastshard.typed.lens` registers in
    it, `typed.Dataset.as_type` looks up.

    Types are held weakly: a lens lives as long as the later of its two types.

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
    >>> @typed.lens
    ... def name_of(person: Person) -> Name:
    ...     return Name(name=person.name)
    >>> network = typed.LensNetwork()
    >>> network.transform(Person, Name) is name_of, name_of in network
    (True, True)
    """

    _views: WeakKeyDictionary[type, WeakKeyDictionary[type, ref[AnyLens]]]
    _kept: HeldLenses  # types without attributes
    _pending: list[AnyLens]  # whose annotations name undefined types
    _lock: LockOwner

    _network: LensNetwork | None = None

    def __new__(cls) -> LensNetwork:
        if LensNetwork._network is None:
            network = super().__new__(cls)
            network._views = WeakKeyDictionary()
            network._kept = HeldLenses()
            network._pending = []
            network._lock = LockOwner(threading.RLock)
            LensNetwork._network = network
        return LensNetwork._network

    def register(self, lens: AnyLens) -> None:
        """Make a lens the one from its source to its view.

        Warns
        -----
        UserWarning
            There is another lens for the same types, which is replaced.

        Raises
        ------
        TypeError
            The lens has no annotation of a type, or one that is not a class.

        Examples
        --------
        >>> network = typed.LensNetwork()
        >>> network.register(caption_of)
        >>> network.transform(ImageSample, Caption)
        Lens(caption_of: ImageSample -> Caption)
        """
        self._register(lens, 3)

    def _register(self, lens: AnyLens, stacklevel: int) -> None:
        with self._lock.lock:
            try:
                source, view = lens.source_type, lens.view_type
            except UnresolvedTypeError:
                self._pending.append(lens)
                return
            before = self._add(lens, source, view)
        if before is not None and before is not lens:
            warnings.warn(
                f"{lens!r} replaces {before!r}: there is one lens for two types",
                stacklevel=stacklevel,
            )

    def unregister(self, lens: AnyLens) -> None:
        """Remove a lens.

        Raises
        ------
        LensNotFoundError
            It is not registered.

        Examples
        --------
        >>> network = typed.LensNetwork()
        >>> network.unregister(caption_of)
        >>> caption_of in network
        False
        """
        with self._lock.lock:
            self._resolve_pending()
            if lens in self._pending:
                self._pending.remove(lens)
                return
            if lens not in self:
                raise LensNotFoundError(f"{lens!r} is not registered")
            source, view = lens.source_type, lens.view_type
            del self._views[source][view]
            self._release(lens, source, view)

    def transform(self, source: type[S], view: type[V]) -> Lens[S, V]:
        """Return the lens from one type to another.

        The registered one; for a view of `DictSample` that is packable, the class's own
        decoding; else the only shortest chain of registered lenses.

        Raises
        ------
        LensNotFoundError
            There is none, or there are several chains of the shortest length. Also a
            `ValueError`.

        Examples
        --------
        >>> network = typed.LensNetwork()
        >>> network.transform(ImageSample, Caption)
        Lens(caption_of: ImageSample -> Caption)
        >>> lens = network.transform(typed.DictSample, Caption)
        >>> lens(typed.DictSample(text="a cat", score=1.5))
        Caption(text='a cat', score=1.5)
        """
        found = self.find(source, view)
        if found is None:
            raise self._explain_missing(source, view)
        return found

    def find(self, source: type[S], view: type[V]) -> Lens[S, V] | None:
        """Return the lens from one type to another as `transform`, or None.

        Raises
        ------
        LensNotFoundError
            There are several chains of the shortest length.

        Examples
        --------
        >>> network = typed.LensNetwork()
        >>> network.find(Caption, ImageSample) is None
        True
        """
        with self._lock.lock:
            self._resolve_pending()
            found = self._get(source, view)
            if found is None and source is view:
                found = Lens.identity(source)
            if found is None and source is DictSample:
                found = dict_lens(view)
            if found is not None:
                return found
            chains = self._find_chains(source, view)
        if len(chains) > 1:
            raise _explain_chains(source, view, chains)
        return reduce(compose, chains[0]) if chains else None

    def __iter__(self) -> Iterator[AnyLens]:
        """Iterate over the registered lenses, in the order of their sources."""
        with self._lock.lock:
            self._resolve_pending()
            lenses = [lens for source in [*self._views] for lens in self._from(source)]
        return iter(lenses)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, lens: object) -> bool:
        return any(lens is each for each in self)

    def __repr__(self) -> str:
        return f"<LensNetwork: {len(self):,} lenses>"

    def __reduce__(self) -> tuple[Any, ...]:
        return LensNetwork, ()

    def _add(self, lens: AnyLens, source: type, view: type) -> AnyLens | None:
        """Register a lens of known types; return the one that it replaces."""
        before = self._get(source, view)
        if before is not None:
            self._release(before, source, view)
        self._views.setdefault(source, WeakKeyDictionary())[view] = ref(lens)
        self._hold(lens, source, view)
        return before

    def _get(self, source: type, view: type) -> AnyLens | None:
        views = self._views.get(source)
        found = None if views is None else views.get(view)
        return None if found is None else found()

    def _from(self, source: type) -> list[AnyLens]:
        """Return the registered lenses of a source type."""
        views = self._views.get(source)
        found = () if views is None else [each() for each in [*views.values()]]
        return [lens for lens in found if lens is not None]

    def _hold(self, lens: AnyLens, source: type, view: type) -> None:
        """Tie the lifetime of a lens to the later of its types."""
        later = _later_of(source, view)
        held = vars(later).get(ATTRIBUTE)
        if held is None:
            held = HeldLenses()
            try:
                type.__setattr__(later, ATTRIBUTE, held)
            except TypeError:  # a builtin type
                held = self._kept
        held[id(lens)] = lens

    def _release(self, lens: AnyLens, source: type, view: type) -> None:
        for held in (
            vars(source).get(ATTRIBUTE, {}),
            vars(view).get(ATTRIBUTE, {}),
            self._kept,
        ):
            held.pop(id(lens), None)

    def _resolve_pending(self) -> None:
        """Register lenses whose types exist now."""
        waiting, self._pending = self._pending, []
        for lens in waiting:
            try:
                self._add(lens, lens.source_type, lens.view_type)
            except UnresolvedTypeError:
                self._pending.append(lens)
            except TypeError:  # the name is not of a class
                continue

    def _find_chains(self, source: type, view: type) -> list[Chain]:
        """Return the shortest chains of registered lenses, a few if there are many."""
        seen = {source}
        chains: list[Chain] = [(lens,) for lens in self._from(source)]
        while chains:
            whole = [chain for chain in chains if chain[-1].view_type is view]
            if whole:
                return whole
            ends = {chain[-1].view_type for chain in chains} - seen
            seen |= ends
            kept: dict[type, int] = {}
            longer: list[Chain] = []
            for chain in chains:
                end = chain[-1].view_type
                kept[end] = kept.get(end, 0) + 1
                if end in ends and kept[end] <= MAX_CHAINS and end is not DictSample:
                    longer += [
                        (*chain, lens)
                        for lens in self._from(end)
                        if lens.view_type not in seen
                    ]
            chains = longer
        return []

    def _explain_missing(self, source: type, view: type) -> LensNotFoundError:
        """Return the error of types without a lens; it lists those of the source."""
        a, b = name_type(source), name_type(view)
        lenses = self._from(source)
        known = tuple(name_type(lens.view_type) for lens in lenses)
        listed = ", ".join(
            f"{name} by {lens.__name__}"
            for name, lens in zip(known, lenses, strict=True)
        )
        there = f"{a} has lenses to {listed}" if known else f"{a} has no lenses"
        return LensNotFoundError(
            f"No lens transforms {a} to {b}: {there}; define one: @lens def "
            f"f(sample: {a}) -> {b}",
            a,
            b,
            known,
        )


def _explain_chains(source: type, view: type, chains: list[Chain]) -> LensNotFoundError:
    """Return the error of types with several chains of lenses."""
    a, b = name_type(source), name_type(view)
    shown = tuple(
        " -> ".join([a, *(name_type(lens.view_type) for lens in chain)])
        for chain in chains[:MAX_CHAINS]
    )
    return LensNotFoundError(
        f"several chains of lenses lead from {a} to {b}: {'; '.join(shown)}; register "
        f"a lens from {a} to {b}, or compose one with |",
        a,
        b,
        shown,
    )


def _later_of(a: type, b: type) -> type:
    """Return the class made later: bases list their subclasses in order."""
    if a in b.__mro__:
        return b
    if b in a.__mro__:
        return a
    base = next(base for base in a.__mro__ if base in b.__mro__)
    made: list[type] = type.__subclasses__(base)
    (at_a, at_b) = (
        next(i for i, each in enumerate(made) if each in kind.__mro__)
        for kind in (a, b)
    )
    return b if at_a < at_b else a


def lens(f: Callable[[S], V]) -> Lens[S, V]:
    """Make a lens of a function and register it; a decorator.

    Parameters
    ----------
    f : callable
        Function of one parameter, with annotations of it and of its result. They may
        name types that are defined later.

    Returns
    -------
    Lens
        Its `Lens.putter` decorates the function that puts a view back.

    Warns
    -----
    UserWarning
        There is another lens for the same types, which is replaced.

    Raises
    ------
    ValueError
        The function does not have exactly one parameter.
    TypeError
        An annotation is missing, or is not a class.

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
    >>> @typed.lens
    ... def name_of(person: Person) -> Name:
    ...     return Name(name=person.name)
    >>> @name_of.putter
    ... def rename(name: Name, person: Person) -> Person:
    ...     return Person(name=name.name, age=person.age)
    >>> name_of(Person(name="Ada", age=36))
    Name(name='Ada')
    """
    made = Lens(f)
    LensNetwork()._register(made, 3)
    return made


LensNetwork()  # before threads ask for it
