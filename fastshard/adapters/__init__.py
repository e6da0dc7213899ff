"""Adapters to other libraries, each imported when its name is first used."""

from importlib import import_module
from sys import modules

_MODULES = ("jax", "ray", "torch", "webshart")


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        hints = import_module("fastshard._util.hints")
        raise hints.missing_name(name, modules[__name__])
    try:
        return import_module(f"{__name__}.{name}")
    except ModuleNotFoundError as error:  # an AttributeError, for hasattr
        message = f"module {__name__!r} has no attribute {name!r}: {error}"
        raise AttributeError(message, name=name, obj=modules[__name__]) from error
