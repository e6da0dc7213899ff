"""Base class of datasets: torch's `Dataset` for type checkers, `Iterable` at run time.

At run time torch's ``DataLoader`` accepts any sequence, but its annotations require a
subclass of ``torch.utils.data.Dataset``. torch is imported by type checkers only.

The imports are wildcards for type checkers without torch. A plain import of a missing
module would make the base `Any`, and the checker would accept any attribute of a
dataset; a wildcard import binds nothing, so that the base is `Iterable`. The import
occurs twice: mypy uses the first binding of a name, pyright the last.
"""

# ruff: noqa: F403 - wildcards, in this order, on purpose
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.utils.data.dataset import *  # type: ignore[import-not-found, unused-ignore]

from collections.abc import Iterable as Dataset  # type: ignore[assignment, unused-ignore]

if TYPE_CHECKING:
    from torch.utils.data.dataset import *  # type: ignore[import-not-found, unused-ignore]

__all__ = ["Dataset"]
