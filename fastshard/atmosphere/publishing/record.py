"""Publishing of one record: checks, and the error after partial success."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from fastshard.atmosphere.at_uri import AtUri
from fastshard.atmosphere.loading.listing import forget_collection
from fastshard.atmosphere.records.checked import (
    AtRecord,
    RecordFields,
    check_value,
    utf8_length,
)
from fastshard.errors import RecordError

if TYPE_CHECKING:
    from fastshard.atmosphere.client import Atmosphere

__all__ = ["check_record", "publish_record"]

MAX_RECORD = 1 << 20  # bytes of JSON, about the limit of repositories


def check_record(record: AtRecord) -> dict[str, Any]:
    """Return the checked JSON object of a record to publish."""
    value = record.to_record()
    checked: dict[str, Any] = check_value(value, "")
    text = json.dumps(checked, ensure_ascii=False, separators=(",", ":"))
    nbytes = len(text.encode())
    if nbytes > MAX_RECORD:
        reason = f"a record of {nbytes:,} bytes is more than the {MAX_RECORD:,} allowed"
        raise RecordError(reason, "")
    type(record)._read(RecordFields(value, measure=utf8_length))
    return checked


def publish_record(
    client: Atmosphere, record: AtRecord, rkey: str | None = None
) -> AtUri:
    """Create a record in the repository of the client's account."""
    value = check_record(record)
    uri = client.create_record(record.TYPE, value, rkey=rkey, validate=False)
    if rkey is not None:
        forget_collection(client, record.TYPE)
    return uri
