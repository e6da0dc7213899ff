"""Encodings of columns: MDS, JSON, CSV and TSV."""

from fastshard.streaming.encodings.registry import (
    get_mds_encoded_size as get_mds_encoded_size,
)
from fastshard.streaming.encodings.registry import (
    get_mds_encodings as get_mds_encodings,
)
from fastshard.streaming.encodings.registry import is_mds_encoding as is_mds_encoding
from fastshard.streaming.encodings.registry import (
    is_mds_encoding_safe as is_mds_encoding_safe,
)
from fastshard.streaming.encodings.registry import mds_decode as mds_decode
from fastshard.streaming.encodings.registry import mds_decoder as mds_decoder
from fastshard.streaming.encodings.registry import mds_encode as mds_encode
from fastshard.streaming.encodings.registry import mds_encoder as mds_encoder
from fastshard.streaming.encodings.registry import mds_size as mds_size
from fastshard.streaming.encodings.registry import (
    register_encoding as register_encoding,
)

__all__ = [
    "get_mds_encoded_size",
    "get_mds_encodings",
    "is_mds_encoding",
    "is_mds_encoding_safe",
    "mds_decode",
    "mds_decoder",
    "mds_encode",
    "mds_encoder",
    "mds_size",
    "register_encoding",
]
