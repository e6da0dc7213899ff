"""Optional libraries, imported where they are used."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from fastshard.errors import MissingLibraryError

__all__ = ["import_library"]


def import_library(name: str, need: str, pip: str) -> Any:
    """Import a library; the error without it is ``"{need}: pip install {pip}"``."""
    try:
        return import_module(name)
    except ImportError as error:
        text = f"{need}: pip install {pip} ({error})"
        raise MissingLibraryError(text, name=name) from error
