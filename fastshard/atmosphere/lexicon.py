"""Names of the collections that hold datasets, schemas, labels and lenses."""

from __future__ import annotations

__all__ = [
    "COLLECTIONS",
    "ENTRY",
    "LABEL",
    "LENS",
    "LENS_VERIFICATION",
    "NAMESPACE",
    "SCHEMA",
]

NAMESPACE = "science.alt.dataset"
SCHEMA = f"{NAMESPACE}.schema"
ENTRY = f"{NAMESPACE}.entry"
LABEL = f"{NAMESPACE}.label"
LENS = f"{NAMESPACE}.lens"
LENS_VERIFICATION = f"{NAMESPACE}.lensVerification"
COLLECTIONS = (SCHEMA, ENTRY, LABEL, LENS, LENS_VERIFICATION)
