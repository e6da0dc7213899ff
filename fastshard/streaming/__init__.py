"""MosaicML Streaming shards: MDS, JSON, CSV, TSV and XSV, read and written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fastshard.streaming.encodings import register_encoding
    from fastshard.streaming.index import FileInfo

__all__ = [
    "FileInfo",
    "register_encoding",
]

MODULES = {  # not named as their contents, which they would hide
    "FileInfo": "index",
    "register_encoding": "encodings",
}


def __getattr__(name: str) -> Any:
    """Import a public name at its first use."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    module = import_module(f"{__name__}.{MODULES[name]}")
    value = getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
