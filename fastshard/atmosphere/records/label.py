"""Records of labels: names, with versions, of datasets."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from fastshard.atmosphere.lexicon import LABEL
from fastshard.atmosphere.records.checked import AtRecord, RecordFields

__all__ = ["LabelRecord"]


@dataclass
class LabelRecord(AtRecord):
    """Record of a label.

    Parameters
    ----------
    name : str
        At most 200 characters.
    dataset_uri : str
        Address of the dataset's record, in this repository or another.
    created_at : datetime, optional
        By default now.
    version : str, optional
        At most 50 characters.
    description : str, optional
        At most 5,000 characters.
    extra : dict, optional
        Fields that this version does not know.

    Examples
    --------
    >>> from fastshard.typed import atmosphere
    >>> uri = "at://did:plc:abc/science.alt.dataset.entry/3n2uxbnbzzs2e"
    >>> atmosphere.LabelRecord("digits", uri, version="1.0.0").to_record()["datasetUri"]
    'at://did:plc:abc/science.alt.dataset.entry/3n2uxbnbzzs2e'
    """

    name: str
    dataset_uri: str
    created_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    version: str | None = None
    description: str | None = None

    TYPE = LABEL

    @classmethod
    def _read_fields(cls, fields: RecordFields) -> LabelRecord:
        return cls(
            name=fields.text("name", 200, shortest=1),
            dataset_uri=fields.uri("datasetUri"),
            created_at=fields.time("createdAt"),
            version=fields.text_or_none("version", 50),
            description=fields.text_or_none("description", 5000),
        )

    def _write(self) -> dict[str, Any]:
        return {
            "$type": LABEL,
            "name": self.name,
            "datasetUri": self.dataset_uri,
            "createdAt": self._write_time(self.created_at),
            "version": self.version,
            "description": self.description,
        }
