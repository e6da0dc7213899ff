"""Lenses in an index's store: storage, look-up, usable lenses."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from fastshard.catalog.references import lens_ref, parse_lens_ref, shorten
from fastshard.catalog.schema_calls import parse_stored
from fastshard.typed.descriptions.lens_json import to_lens_json
from fastshard.typed.descriptions.versions import next_patch, parse_version
from fastshard.typed.lenses.lens import Lens
from fastshard.typed.lenses.network import LensNetwork

if TYPE_CHECKING:
    from fastshard.catalog.providers.protocol import IndexProvider

__all__ = ["find_lens", "parse_lenses", "register_lens", "store_lens"]

MAX_NAME = 200  # characters of a lens's name


def store_lens(
    provider: IndexProvider,
    lens: Lens[Any, Any],
    *,
    name: str,
    version: str | None = None,
    description: str | None = None,
    source_schema: str | None = None,
    view_schema: str | None = None,
) -> str:
    """Store a lens and return its reference."""
    if not isinstance(lens, Lens):
        raise TypeError(f"expected a Lens, got {type(lens).__name__}")
    if not isinstance(name, str):
        raise TypeError(f"the name of a lens must be a str, got {type(name).__name__}")
    if not 0 < len(name) <= MAX_NAME:
        raise ValueError(
            f"the name of a lens has 1 to {MAX_NAME} characters, got {len(name):,}"
        )
    if version is not None:
        parse_version(version)

    def choose(known: Mapping[str, str]) -> tuple[str, str | None]:
        chosen = version or next_patch(known)
        record = to_lens_json(
            lens,
            name=name,
            version=chosen,
            description=description,
            source_schema=source_schema,
            view_schema=view_schema,
        )
        return chosen, json.dumps(record)

    return lens_ref(name, provider.store_lens_version(name, choose))


def find_lens(provider: IndexProvider, ref: str) -> dict[str, Any]:
    """Return the lens of a reference, as it is stored, with its ``$ref``."""
    name, version = parse_lens_ref(ref)
    text = provider.get_lens_json(name, version)
    if text is None:
        raise KeyError(f"Lens not found: {shorten(ref)}")
    return parse_stored(text, f"{ref} in {provider.location}") | {"$ref": ref}


def parse_lenses(
    provider: IndexProvider, rows: Iterable[tuple[str, str, str]]
) -> Iterator[dict[str, Any]]:
    """Iterate over lenses of a store, as they are stored, with their ``$ref``."""
    for name, version, text in rows:
        ref = lens_ref(name, version)
        yield parse_stored(text, f"{ref} in {provider.location}") | {"$ref": ref}


def register_lens(lens: Lens[Any, Any]) -> None:
    """Register a lens, unless one of the same types exists."""
    network = LensNetwork()
    if network._get(lens.source_type, lens.view_type) is None:
        network.register(lens)
