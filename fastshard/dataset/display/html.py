"""HTML tables of datasets, with the contents of their reprs."""

from __future__ import annotations

from typing import Any

from fastshard._util.terminal import join_names
from fastshard.formats.display.table import html_table, html_text

__all__ = ["dataset_html"]


def dataset_html(dataset: Any) -> str:
    """Return a table of a dataset's description; opens no shard, and never raises."""
    try:
        samples, kinds, *texts = dataset._description()
        shown = [f"{name} ({kind})" for name, kind in kinds.items()]
        labels = ("samples", "fields", "order", "stages", "shards")
        texts = [samples, join_names(shown), *texts]
        rows = [
            [label, html_text(text)]
            for label, text in zip(labels, texts, strict=True)
            if text
        ]
        return html_table(type(dataset).__name__, rows)
    except Exception:
        return f"<pre>{html_text(repr(dataset))}</pre>"
