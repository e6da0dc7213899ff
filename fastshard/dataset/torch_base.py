"""Base class of datasets in the eyes of type checkers: torch's `Dataset`.

torch's ``DataLoader`` takes any sequence when it runs, but its types want a subclass
of ``torch.utils.data.Dataset``. At run time the base is `Iterable`, which a sequence
is anyway, and torch is not imported.

A plain import for type checkers would do harm where torch is not installed: the base
would be `Any`, and of a class with such a base no attribute and no assignment is ever
wrong. A wildcard import of a missing module binds nothing, so that `Iterable` is left.
It stands twice because mypy takes the first binding of a name and pyright the last.
"""

# ruff: noqa: F403 - the wildcards and their order are the point
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.utils.data.dataset import *  # type: ignore[import-not-found, unused-ignore]

from collections.abc import Iterable as Dataset  # type: ignore[assignment, unused-ignore]

if TYPE_CHECKING:
    from torch.utils.data.dataset import *  # type: ignore[import-not-found, unused-ignore]

__all__ = ["Dataset"]
