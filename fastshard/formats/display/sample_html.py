"""Samples as tables of HTML: thumbnails, excerpts of text, summaries of arrays."""

from __future__ import annotations

import base64
import io
import warnings
from typing import Any

from fastshard.formats.decoders import kind_of_decoder, open_image
from fastshard.formats.display.table import html_table, html_text

__all__ = ["sample_html"]

MAX_FIELDS = 50  # shown
MAX_TEXT = 200  # characters of a text
MAX_BYTES = 16  # bytes shown of others
MAX_IMAGE_BYTES = 32 << 20  # of a file that is decoded
MAX_PIXELS = 1 << 25  # of an image that is decoded, before JPEG reduces it
MAX_DECODED = 1 << 24  # pixels, afterwards
THUMBNAIL = 160  # pixels of its longer side
MAX_SUMMED = 1 << 22  # bytes of an array whose extremes are shown


def sample_html(sample: Any) -> str:
    """Return a table of a sample's fields; never raises.

    Only bytes of the sample itself are read.
    """
    try:
        fields = list(sample.keys())
        rows = [_row(sample, field) for field in fields[:MAX_FIELDS]]
        if len(fields) > MAX_FIELDS:
            rows.append([f"... {len(fields) - MAX_FIELDS:,} more"])
        return html_table(f"Sample {sample.key!r}", rows)
    except Exception:
        return f"<pre>{html_text(repr(sample))}</pre>"


def _row(sample: Any, field: str) -> list[str]:
    name = f"<code>{html_text(field)}</code>"
    try:
        kind = kind_of_decoder(sample.decoder_of(field))
        if not sample._is_stored(field):
            return [name, html_text(kind), html_text(repr(sample[field])[:MAX_TEXT])]
        with sample.open(field) as file:
            size = file.seek(0, io.SEEK_END)
            file.seek(0)
            shown = _preview(sample, field, kind, file, size)
        what = f"{html_text(kind)}, {size:,} byte{'' if size == 1 else 's'}"
        return [name, what, shown]
    except Exception as error:
        return [name, "", _describe_error(error)]


def _describe_error(error: Exception) -> str:
    text = str(error)[:MAX_TEXT]
    return f"<i>{html_text(f'{type(error).__name__}: {text}')}</i>"


def _preview(sample: Any, field: str, kind: str, file: Any, size: int) -> str:
    """Return the HTML of a field's beginning, or of a preview of its kind."""
    if kind == "image":
        return _thumbnail(file, size)
    if kind == "array":
        return html_text(_describe_array(sample.array(field)))
    head = bytes(file.read(min(size, 4 * MAX_TEXT)))
    if kind in ("text", "json", "int"):
        return _excerpt(head.decode("utf-8", "replace"), size)
    more = "..." if size > MAX_BYTES else ""
    return f"<code>{html_text(repr(head[:MAX_BYTES]))}{more}</code>"


def _excerpt(text: str, size: int) -> str:
    is_cut = len(text) > MAX_TEXT or len(text.encode()) < size
    return html_text(text[:MAX_TEXT]) + ("..." if is_cut else "")


def _describe_array(array: Any) -> str:
    """Return dtype and shape, and the extremes of a small array of numbers."""
    import numpy as np

    text = f"{array.dtype} [{', '.join(map(str, array.shape))}]"
    if array.size and array.nbytes <= MAX_SUMMED and array.dtype.kind in "biuf":
        with np.errstate(all="ignore"):
            text += f", from {array.min()} to {array.max()}"
    return text


def _thumbnail(file: Any, size: int) -> str:
    """Return an image of at most 160 pixels a side; text if it cannot be made.

    Pillow reads the kinds that `Sample.decode` reads. Images of too many bytes or
    pixels are not decoded.
    """
    try:
        import PIL.Image
    except ImportError:
        return "<i>install Pillow to see it</i>"
    if size > MAX_IMAGE_BYTES:
        return "<i>too large to show</i>"
    data = io.BytesIO(file.read())
    with warnings.catch_warnings():
        warnings.simplefilter("error", PIL.Image.DecompressionBombWarning)
        image = open_image(data)
    shape = f"{image.width:,} x {image.height:,}, {image.mode}"
    pixels = image.width * image.height
    if pixels <= MAX_PIXELS:
        image.draft("RGB", (THUMBNAIL, THUMBNAIL))  # a smaller JPEG
        pixels = image.width * image.height
    if pixels > MAX_DECODED:
        return f"{html_text(shape)} <i>(too large to show)</i>"
    image = _to_rgb(image)
    image.thumbnail((THUMBNAIL, THUMBNAIL))
    file = io.BytesIO()
    image.save(file, "PNG")
    encoded = base64.b64encode(file.getvalue()).decode()
    return f'<img src="data:image/png;base64,{encoded}"><br>{html_text(shape)}'


def _to_rgb(image: Any) -> Any:
    """Return an image in a mode that scales and that PNG stores."""
    if image.mode in ("RGB", "RGBA", "L"):
        return image
    has_alpha = image.mode in ("LA", "PA", "La") or "transparency" in image.info
    return image.convert("RGBA" if has_alpha else "RGB")
