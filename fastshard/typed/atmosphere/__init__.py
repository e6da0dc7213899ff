"""Records of the AT Protocol network: client, publishers and loaders."""

from importlib import import_module
from sys import modules
from typing import Any

_HOMES: dict[str, str] = {  # names by their modules, imported when a name is asked for
    "at_uri": "AtUri",
}
_MODULES = {name: home for home, names in _HOMES.items() for name in names.split()}
__all__ = sorted(_MODULES)


def __getattr__(name: str) -> Any:
    """Import a public name at its first use."""
    if name not in _MODULES:
        from fastshard._util.hints import missing_name

        raise missing_name(name, modules[__name__])
    module = import_module(f"{__name__}.{_MODULES[name]}")
    value = globals()[name] = getattr(module, name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
