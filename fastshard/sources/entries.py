"""An entry of the cache: what is here of one version of one remote object."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from fastshard._util.files import replacing
from fastshard.sources.disk import append_to, open_regular, remove_tree, touch
from fastshard.sources.facts import Known, read_known
from fastshard.sources.opened import DATA, LOG, DamagedError, Opened, VanishedError

if TYPE_CHECKING:
    from fastshard.sources.cache import RangeCache

__all__ = ["NEW", "OBJECT", "USED", "Entry"]

OBJECT = "object.json"
USED = "used"  # its time is that of the last use
NEW = ".new"  # how names of entries end that are being made
TOUCH_NS = 5 * 10**9  # between two notes that an entry is in use
PASSING = (  # not of the disk
    errno.EMFILE,
    errno.ENFILE,
    errno.ENOMEM,
    errno.ENOENT,
)

Answer = TypeVar("Answer")


class Entry:
    """Bytes of one version of a remote object. Any thread may use it.

    It is made by `RangeCache.entry`. A forked child may go on with it; what has been
    checked by then need not be checked again. One that cannot be read, or was closed,
    has nothing and takes nothing.

    Attributes
    ----------
    path : str
        Of the data: a sparse file of `nbytes` bytes. It need not exist; while
        `is_whole` says so it does, and may be read by anyone.
    nbytes : int
        Of the object.
    """

    def __init__(self, cache: RangeCache, folder: str, known: Known) -> None:
        self.path = os.path.join(folder, DATA)
        self.nbytes = known.facts.nbytes
        self.folder = folder
        self._cache = cache
        self._known = known
        self._opened: Opened | None = None
        self._closed = False
        self._touched_ns = 0
        self._reopen(make=True)
        if self._opened is not None:
            touch(os.path.join(folder, OBJECT), time.time_ns())
            self._use()

    def has(self, offset: int, size: int) -> bool:
        """Tell whether all of a range was stored.

        That it is right is not looked at: `read_into` may still return False, after
        which what is wrong is missing.
        """
        if not self._is_inside(offset, size):
            return False
        return not size or self._ask(lambda it: it.has(offset, offset + size), False)

    def missing(self, offset: int, size: int) -> list[tuple[int, int]]:
        """Return what was not stored of a range: offsets and sizes, ascending."""
        end = min(offset + size, self.nbytes)
        start = max(offset, 0)
        if start >= end:
            return []
        gaps = self._ask(lambda it: it.missing(start, end), [(start, end)])
        return [(left, right - left) for left, right in gaps]

    def read_into(self, offset: int, view: memoryview) -> bool:
        """Fill the view and return True if every byte of it is here and right.

        Otherwise return False; the view may have been written to. Ranges are compared
        with their CRCs before they are first used in this process.

        Parameters
        ----------
        offset : int
            In the object, in bytes.
        view : memoryview
            Contiguous and writable.
        """
        with as_bytes(view) as to:
            if not self._is_inside(offset, len(to)):
                return False
            done = not to or self._ask(lambda it: it.read_into(offset, to), False)
        if done:
            self._use()
        return done

    def is_whole(self) -> bool:
        """Tell whether every byte of the object is here and right.

        What has not been checked in this process is read. For a file that was opened
        by its `path` ask after that: then it was the one that is whole.
        """
        whole = self._ask(lambda it: it.is_whole(), False)
        if whole:
            self._use()
        return whole

    def add(self, offset: int, data: bytes | memoryview) -> None:
        """Store bytes of the object, unless that cannot be done.

        A disk that is full or cannot be written to ends all storing of this cache
        with one warning; one without room for a file of the object's size ends that of
        this entry, with a warning for the first of them. Nothing is stored either of
        what does not lie inside the object, or by what this entry alone would break
        the limit.
        """
        with as_bytes(memoryview(data)) as view:
            if view and self._is_inside(offset, len(view)):
                grown = self._store(offset, view)
                if grown:
                    self._cache.note_growth(self, grown)

    def sidecar(self, name: str) -> str:
        """Return the path of a small file beside the data, which may not exist.

        Raises
        ------
        ValueError
            The name is no file's, or is used by the cache.
        """
        taken = name in (DATA, LOG, OBJECT, USED) or name.startswith(".")
        if not name or taken or os.path.basename(name) != name or "\0" in name:
            raise ValueError(f"{name!r} is no name for a file beside cached data")
        return os.path.join(self.folder, name)

    def close(self) -> None:
        """Let the files go."""
        self._closed = True
        self._opened = None

    def rest(self) -> None:
        """Close the files; they are opened again when they are needed."""
        self._opened = None

    def let_go(self) -> None:
        """Let the files go if they were removed, so that the disk gets their space."""
        opened = self._opened
        with suppress(OSError):
            if opened is not None and opened.has_vanished():
                self._opened = None

    def _is_inside(self, offset: int, size: int) -> bool:
        return size >= 0 and 0 <= offset <= self.nbytes - size

    def _ask(self, question: Callable[[Opened], Answer], otherwise: Answer) -> Answer:
        """Ask the files, or answer otherwise if they cannot be asked."""
        opened = self._opened or self._reopen(make=False)
        if opened is None:
            return otherwise
        try:
            return question(opened)
        except DamagedError:
            self._throw_away()
        except OSError:  # it has nothing, rather than something that none can read
            self.close()
        return otherwise

    def _store(self, offset: int, view: memoryview) -> int:
        for _ in range(3):  # in case it is removed again meanwhile
            if self._cache.is_stopped:
                return 0
            opened = self._opened or self._reopen(make=True)
            if opened is None:
                return 0
            try:
                return opened.add(offset, view, self._cache.limit)
            except VanishedError:
                self._opened = None
            except DamagedError:
                self._throw_away()
            except OSError as error:
                self._cache.stop(error)
        return 0

    def _reopen(self, *, make: bool) -> Opened | None:
        """Open the files; make them, if asked to, where none can be used."""
        if self._closed:
            return None
        try:
            opened = self._open()
            if opened is None and make and not self._cache.is_stopped:
                make_entry(self.folder, self._known)
                opened = self._open()
        except OSError as error:
            if make and error.errno == errno.EFBIG:
                self.close()  # no file of its size can be made here
                self._cache.refuse(self._known.url, self.nbytes, error)
            elif make and error.errno not in PASSING:
                self._cache.stop(error)
            return None
        if not self._closed:
            self._opened = opened
            if opened is not None:
                self._cache.note_opened(self)
        return opened

    def _open(self) -> Opened | None:
        """Open the files if they are there; remove what cannot be used."""
        try:
            opened = Opened(self.folder, self.nbytes)
            self._check_object()
        except FileNotFoundError:
            return None
        except DamagedError:
            self._throw_away()
            return None
        return opened

    def _check_object(self) -> None:
        path = os.path.join(self.folder, OBJECT)
        stored = read_known(path)
        if stored is None or not same_object(stored, self._known):
            raise DamagedError
        if stored != self._known and not self._cache.is_stopped:
            try:
                with replacing(path) as file:
                    file.write(self._known.dump())
            except OSError as error:
                self._cache.stop(error)

    def _throw_away(self) -> None:
        self._opened = None
        remove_tree(self.folder)

    def _use(self) -> None:
        """Note that it is in use, from time to time."""
        now_ns = time.time_ns()
        if abs(now_ns - self._touched_ns) >= TOUCH_NS:
            self._touched_ns = now_ns
            touch(os.path.join(self.folder, USED), now_ns)
            self._cache.look()


def as_bytes(view: memoryview) -> memoryview:
    return view.cast("B") if view.nbytes else memoryview(b"")


def same_object(one: Known, other: Known) -> bool:
    """Tell whether the bytes are the same. Of the time, servers tell several."""
    return one.url == other.url and one.facts[:2] == other.facts[:2]


def make_entry(folder: str, known: Known) -> None:
    """Make the files of an entry, and give them their place if it is free.

    Raises
    ------
    OSError
        They cannot be made.
    """
    above = os.path.dirname(folder)
    os.makedirs(above, 0o700, exist_ok=True)
    new = tempfile.mkdtemp(prefix=".", suffix=NEW, dir=above)
    try:
        _fill(new, known)
        os.rename(new, folder)
    except OSError as error:
        faster = error.errno in (errno.EEXIST, errno.ENOTEMPTY)  # another was
        if not faster and not os.path.lexists(folder):
            raise
    finally:
        shutil.rmtree(new, ignore_errors=True)


def _fill(folder: str, known: Known) -> None:
    content = {DATA: b"", LOG: b"", OBJECT: known.dump(), USED: b""}
    for name, data in content.items():
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND
        fd = open_regular(os.path.join(folder, name), flags)
        try:
            if name == DATA:
                os.ftruncate(fd, known.facts.nbytes)
            append_to(fd, data)
        finally:
            os.close(fd)
