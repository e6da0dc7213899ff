"""Protocol and registry of formats whose datasets are directories.

A tar dataset is a list of shards; a directory of another format is recognized by its
mark. A format is a module with an object `FORMAT`. `register` takes the module's name,
and the module is imported when a directory is opened.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from os.path import exists, join
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Unpack

from fastshard._util.paths.urls import redact
from fastshard.errors import FastshardError
from fastshard.formats.folder import Folder, LocalFolder

if TYPE_CHECKING:
    from fastshard._util.paths.remote_options import RemoteOptions
    from fastshard.remote.options import Settings

__all__ = [
    "Format",
    "find_format",
    "find_local_format",
    "formats",
    "register",
    "scheme_format",
    "tar_format",
]


class Format:
    """A format whose datasets are directories.

    To add a format, derive from this class, put an instance into a module as
    ``FORMAT``, and `register` the module: `fastshard.open` and the commands then know
    it. Methods import other modules when they are called.

    ==============================  ===========================================
    command                         asks the format for
    ==============================  ===========================================
    ``ls SOURCE``                   `list_lines`
    ``cat SOURCE POSITION FIELD``   `open_set`; the stored bytes, by `Sample.view`
    ``stat SOURCE``                 `stat`, `stat_lines`
    ``verify [--hash] SOURCE``      `verify`
    ``convert SOURCE OUT``          `open_set`; see `fastshard.conversion.source`
    ``cache warm|clear URL``        `resolve`, `download`, for URLs of its `schemes`
    commands of its own             `add_commands`
    ==============================  ===========================================

    Attributes
    ----------
    name : str
        For messages.
    title : str
        Of its datasets, for messages: ``MDS datasets``; by default `name`.
    mark : str
        Name of the file that marks a directory, or "".
    joins : bool
        Whether `open_all` opens several datasets as one.
    options : frozenset of str
        Arguments of `fastshard.open` that it accepts beyond those of every format
        (decoders, mode, max_mapped, max_memory, keep_cache, prefetch), its own ones
        included.
    reading : frozenset of str
        Of ``key``, ``lower`` and ``mode``, arguments of `fastshard.open`, those that
        `list_lines`, `stat` and `verify` take; they are given if they differ from their
        defaults.
    is_remote : bool
        Whether its datasets may be URLs. `list_lines`, `stat` and `verify` then take
        ``remote=``, which is given for URLs only.
    reads_tars : bool
        Whether its datasets are sources of tar shards, which `fastshard.open` reads by
        the set of `tar_set` if its argument of the format's name is true.
    schemes : frozenset of str
        Schemes of the URLs that no other part of the package reads, in lower case.

    Examples
    --------
    >>> from fastshard.formats import Format, formats
    >>> from fastshard.formats.folder import LocalFolder
    >>> class Csv(Format):
    ...     name = "csv"
    ...     options = frozenset({"delimiter"})
    ...
    ...     def marks(self, folder):
    ...         return folder.has("index.csv")
    >>> Csv().marks(LocalFolder("data"))
    False
    >>> [each.name for each in formats()]
    ['columnar', 'streaming', 'packed', 'blobs']
    """

    name: ClassVar[str]
    title: ClassVar[str] = ""
    mark: ClassVar[str] = ""
    joins: ClassVar[bool] = False
    options: ClassVar[frozenset[str]] = frozenset()
    reading: ClassVar[frozenset[str]] = frozenset()
    is_remote: ClassVar[bool] = False
    reads_tars: ClassVar[bool] = False
    schemes: ClassVar[frozenset[str]] = frozenset()

    def marks(self, folder: Folder) -> bool:
        """Return whether a directory is a dataset of this format.

        Parameters
        ----------
        folder : Folder
            With ``folder.has(name)`` and ``folder.read(name, most)``. If the mark is a
            common file name, check its contents too.
        """
        raise NotImplementedError

    def subfolder(self, options: Mapping[str, Any]) -> str:
        """Return the directory below a dataset's that `marks` is asked of.

        Parameters
        ----------
        options : Mapping
            The keyword arguments of `fastshard.open`.

        Returns
        -------
        str
            By default ``""``, the dataset's own directory.

        Examples
        --------
        >>> from fastshard.formats import formats
        >>> [each.subfolder({"split": "train"}) for each in formats()]
        ['', 'train', '', '']
        """
        return ""

    def explain_missing(self, folder: Folder, options: Mapping[str, Any]) -> str | None:
        """Return why a directory is not a dataset of this format, with these options.

        Parameters
        ----------
        folder : Folder
            Of which `marks`, asked of its `subfolder`, is false.
        options : Mapping
            The keyword arguments of `fastshard.open`.

        Returns
        -------
        str or None
            Text of a `ShardNotFoundError`. By default None: the options are refused
            as options that tars do not take.

        Examples
        --------
        >>> from fastshard.formats import formats
        >>> from fastshard.formats.folder import LocalFolder
        >>> streaming = formats()[1]
        >>> streaming.explain_missing(LocalFolder("data"), {"split": "train"})
        "no split 'train' in data: train/index.json does not exist; ..."
        """
        return None

    def open_set(self, root: str, **options: Any) -> Any:
        """Return the `ShardSet` of a dataset.

        Parameters
        ----------
        root : str
            The directory, or its URL.
        **options
            ``mode``, ``limit``, ``reading`` and ``remote`` as for `ShardSet`, and the
            given arguments of `options`.

        Returns
        -------
        ShardSet
            Of a subclass of `fastshard.dataset.shardset.ShardSet`: opens shards, counts
            their samples.
        """
        raise NotImplementedError

    def open_all(self, roots: Sequence[str], **options: Any) -> Any:
        """Return the `ShardSet` of several datasets, one after another.

        Parameters
        ----------
        roots : sequence of str
            Their directories, or URLs; at least two.
        **options
            As for `open_set`.

        Raises
        ------
        FastshardError
            Always, by default: datasets of the format are opened one by one.

        Examples
        --------
        >>> from fastshard.formats import formats
        >>> [each.name for each in formats() if each.joins]
        ['streaming']
        """
        shown = ", ".join(repr(redact(root)) for root in roots[:2])
        raise FastshardError(
            f"{self.name} datasets are opened one by one, and added: "
            f"sum(map(fastshard.open, [{shown}{', ...' * (len(roots) > 2)}]))"
        )

    def tar_set(self) -> Any:
        """Return the type of the set of its tar shards, if it `reads_tars`.

        Returns
        -------
        type
            A subclass of `fastshard.dataset.tarset.TarSet`.

        Examples
        --------
        >>> from fastshard.formats import formats
        >>> formats()[2].tar_set().format
        'packed'
        """
        raise NotImplementedError

    def source(self, urls: Sequence[str], **options: Unpack[RemoteOptions]) -> Any:
        """Return the source of typed samples of URLs of its `schemes`.

        Parameters
        ----------
        urls : sequence of str
        **options
            Options of `fastshard.RemoteOptions`.

        Returns
        -------
        ListedSource
            A subclass of `fastshard.typed.sources.listed.ListedSource`.
        """
        raise NotImplementedError

    def resolve(self, url: str, options: RemoteOptions) -> tuple[list[str], Settings]:
        """Return the shards of a URL of its `schemes`, by their names in the cache.

        Returns
        -------
        names : list of str
        settings : Settings
            For `download`.
        """
        raise NotImplementedError

    def download(
        self,
        name: str,
        settings: Settings,
        progress: Callable[[int, int], object] | None = None,
    ) -> int:
        """Download a shard of `resolve` into the cache.

        Parameters
        ----------
        name : str
        settings : Settings
        progress : callable, optional
            ``progress(done, nbytes)``.

        Returns
        -------
        int
            Bytes of the shard.
        """
        raise NotImplementedError

    def list_lines(
        self, root: str, *, long: bool, as_json: bool, remote: Settings | None = None
    ) -> Iterable[str]:
        """Return the lines of ``fastshard ls``, one for each sample.

        Parameters
        ----------
        root : str
            The directory, or its URL.
        long : bool
            With sizes, in bytes.
        as_json : bool
            One JSON object a line.
        remote : Settings, optional
            How a URL is read.
        """
        raise NotImplementedError

    def stat(
        self, root: str, *, deep: bool, remote: Settings | None = None
    ) -> dict[str, Any]:
        """Return the object that ``fastshard stat --json`` prints.

        Parameters
        ----------
        root : str
            The directory, or its URL.
        deep : bool
            Read shards, not their index alone.
        remote : Settings, optional
            How a URL is read.

        Returns
        -------
        dict
            JSON values.
        """
        raise NotImplementedError

    def stat_lines(self, figures: Mapping[str, Any]) -> Iterable[str]:
        """Return the lines of ``fastshard stat`` for the result of `stat`."""
        raise NotImplementedError

    def verify(
        self, root: str, *, hashes: bool = False, remote: Settings | None = None
    ) -> list[Any]:
        """Return the faults of a dataset.

        Parameters
        ----------
        root : str
            The directory, or its URL.
        hashes : bool, default False
            Compare files with the checksums that the dataset records, if it does;
            reads all data.
        remote : Settings, optional
            How a URL is read.

        Returns
        -------
        list of Fault
            Empty if the dataset is whole; see `fastshard.dataset.verify.Fault`.
        """
        raise NotImplementedError

    def add_commands(self, commands: Any) -> None:
        """Add the format's own commands to the argument parser.

        Parameters
        ----------
        commands : argparse subparsers
            With ``add_parser``.
        """


_modules: dict[str, str | None] = {}  # marks by module; None: unknown


def register(module: str, mark: str | None = None) -> None:
    """Add a format by the name of its module.

    Parameters
    ----------
    module : str
        Has an object ``FORMAT`` of a subclass of `Format`. Imported when a directory is
        opened; registered twice, it counts once.
    mark : str, optional
        The format's `mark`: the module is not imported for a local directory without a
        file of this name, or with "" for any directory.

    Examples
    --------
    >>> from fastshard.formats import register
    >>> register("fastshard.columnar.format")
    """
    _modules.setdefault(module, mark)


def formats() -> list[Format]:
    """Import and return all registered formats.

    Returns
    -------
    list of Format
        In the order of registration.

    Examples
    --------
    >>> import fastshard.formats
    >>> fastshard.formats.formats()[0].name
    'columnar'
    """
    return [import_module(module).FORMAT for module in _modules]


def tar_format(name: str) -> Format:
    """Return the format of tar shards that has a name."""
    for each in formats():
        if each.reads_tars and each.name == name:
            return each
    raise LookupError(f"no format of tar shards is named {name!r}")


def scheme_format(scheme: str) -> Format | None:
    """Return the format that alone reads the URLs of a scheme, or None."""
    return next((each for each in formats() if scheme in each.schemes), None)


def find_format(
    folder: Folder, options: Mapping[str, Any] = MappingProxyType({})
) -> Format | None:
    """Return the directory's format, or None for a plain tar dataset.

    Parameters
    ----------
    folder : Folder
        Local or remote; remote ones only match formats whose datasets may be URLs.
    options : Mapping, optional
        The keyword arguments of `fastshard.open`.

    Examples
    --------
    >>> from fastshard.formats import find_format
    >>> from fastshard.formats.folder import LocalFolder
    >>> find_format(LocalFolder("data")) is None
    True
    """
    return _find(_modules, folder, options)


def find_local_format(
    path: str, options: Mapping[str, Any] = MappingProxyType({})
) -> Format | None:
    """Return a local directory's format; see `find_format`.

    Without options, a format is asked only if a file has the name of its mark.
    """
    modules = [
        module
        for module, mark in _modules.items()
        if options or mark is None or (mark and exists(join(path, mark)))
    ]
    return _find(modules, LocalFolder(path), options) if modules else None


def _find(
    modules: Iterable[str], folder: Folder, options: Mapping[str, Any]
) -> Format | None:
    """Return the first format of some modules that a directory has."""
    for module in modules:
        each: Format = import_module(module).FORMAT
        if not each.is_remote and folder.is_remote:
            continue
        below = each.subfolder(options)
        if each.marks(folder.below(below) if below else folder):
            return each
    return None
