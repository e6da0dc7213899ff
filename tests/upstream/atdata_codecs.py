"""Private modules of atdata that encode: arrays, schemas and lenses, by ours."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

from fastshard._core.typed.arrays import unpack_array
from fastshard.catalog.references import parse_lens_ref
from fastshard.typed.descriptions.json_schema import from_schema
from fastshard.typed.descriptions.lens_json import from_lens_json, to_lens_json
from fastshard.typed.descriptions.local_schema import from_local_json
from fastshard.typed.descriptions.schema_type import make_type
from fastshard.typed.descriptions.structure import Structure
from fastshard.typed.descriptions.stubs import stub_text
from fastshard.typed.kinds.registry import FORMATS
from fastshard.typed.kinds.values import encode_array
from fastshard.typed.lenses.network import LensNetwork

NAMES = ("sparse", "arrow_tensor", "safetensors", "dataframe")


def modules() -> dict[str, dict[str, Any]]:
    """Return the contents of the modules by their names below ``atdata``."""
    return {
        "_helpers": helpers(),
        "_lens_codec": lens_codec(),
        "_schema_codec": schema_codec(),
        "index._schema": {"_parse_lens_ref": parse_lens_ref},
    }


def helpers() -> dict[str, Any]:
    pairs = {
        name: (FORMATS[name].to_stored, FORMATS[name]().from_stored) for name in NAMES
    }
    arrays = (partial(encode_array, array_format="compact"), unpack_array)
    pairs["structured"] = partial(encode_array, array_format="npy"), unpack_array
    return {
        "FORMAT_SERIALIZERS": {"ndarray": arrays, **pairs},
        "array_to_bytes": arrays[0],
        "bytes_to_array": arrays[1],
        **{f"{name}_to_bytes": encode for name, (encode, _) in pairs.items()},
        **{f"bytes_to_{name}": decode for name, (_, decode) in pairs.items()},
    }


def lens_codec() -> dict[str, Any]:
    """Return functions that store lenses as JSON; atdata keeps those it has made."""
    made: dict[str, Any] = {}

    def lens_to_json(lens: Any, *, version: str = "1.0.0", **options: Any) -> str:
        return json.dumps(to_lens_json(lens, version=version, **options))

    def lens_from_record(
        record: Any, *, use_cache: bool = True, register: bool = True, **options: Any
    ) -> Any:
        key = f"{record['name']}@{record['version']}"
        if use_cache and key in made:
            return made[key]
        lens = from_lens_json(record, allow_code=True, **options)
        if register:
            LensNetwork().register(lens)
        return made.setdefault(key, lens) if use_cache else lens

    return {
        "clear_lens_cache": made.clear,
        "lens_from_record": lens_from_record,
        "lens_to_json": lens_to_json,
    }


def read_schema(schema: dict[str, Any]) -> Structure:
    return (from_local_json if "fields" in schema else from_schema)(schema)


def schema_codec() -> dict[str, Any]:
    """Return functions that make types of schemas."""
    made: dict[str, type] = {}

    def schema_to_type(schema: dict[str, Any], *, use_cache: bool = True) -> type:
        structure = read_schema(schema)
        ref = f"atdata://local/schema/{structure.name}@{schema.get('version')}"
        return made.setdefault(ref, make_type(structure, ref))

    def generate_stub(schema: dict[str, Any]) -> str:
        structure = from_local_json(schema)
        ref = f"atdata://local/schema/{structure.name}@{schema.get('version')}"
        return stub_text(structure, ref)

    return {
        "_schema_to_type": schema_to_type,
        "clear_type_cache": made.clear,
        "generate_stub": generate_stub,
        "get_cached_types": lambda: dict(made),
    }
