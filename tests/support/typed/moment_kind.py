"""A kind of fields that fastshard has not: moments of `datetime`, in microseconds."""

from datetime import UTC, datetime, timedelta

import numpy as np

from fastshard.typed.kinds.base import EncodedKind

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class MomentKind(EncodedKind):
    name = "moment"
    classes = ("datetime.datetime",)
    python = int
    json_schema = {"type": "string", "format": "date-time"}  # noqa: RUF012
    stub_hint = "datetime.datetime"
    stub_import = "import datetime"
    aggregate = "numeric"

    @staticmethod
    def encode(value):
        return (value - EPOCH) // timedelta(microseconds=1)

    @staticmethod
    def decode(data):
        return EPOCH + timedelta(microseconds=data)

    @staticmethod
    def plain(value):
        return value.timestamp()

    def column(self, values):
        return np.array([each.replace(tzinfo=None) for each in values], "M8[us]")

    def make(self, name, maker):
        return EPOCH + timedelta(days=maker.i)


KINDS = (MomentKind,)
