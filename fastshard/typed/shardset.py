"""Shard set of packed datasets: tar shards whose samples are msgpack payloads."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from fastshard._core.dataset.shard import SampleDecoder
from fastshard._core.typed.shard import check_payload, decode_sample, make_packed_shard
from fastshard._util.paths.urls import redact
from fastshard.dataset.shardset import FIRST_SAMPLES
from fastshard.dataset.tarset import TarSet
from fastshard.dataset.verify import Fault, verify_dataset
from fastshard.errors import FormatError, StaleIndexWarning
from fastshard.formats.codec import FieldCodec
from fastshard.formats.sample import Samples
from fastshard.formats.tar import TarShard
from fastshard.typed.samples import FIELDS, PackedSample, PackedSequence

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fastshard._core.dataset.streams import SampleLocator

__all__ = ["PackedSet"]

MAX_FAULTS = 100  # of one shard


class PackedSet(TarSet):
    """The tar shards of a packed dataset, in order.

    A shard is opened, found by its index and counted as a tar shard; a sample's fields
    are those of its payload.
    """

    format = "packed"
    examined = FIRST_SAMPLES  # fields are read from payloads

    def wrap_samples(self, samples: Samples) -> PackedSequence:
        shard = make_packed_shard(samples.shard, samples.grouping)
        return PackedSequence(shard, samples.grouping, PackedSample)

    def close_samples(self, samples: Any) -> None:
        samples.shard.tar.close()
        samples.shard.close()

    def sample_decoder(self) -> SampleDecoder:
        return decode_sample

    def shard(self, k: int) -> TarShard:
        """Return the tar shard `k`; open it if needed."""
        shard: TarShard = self.samples(k).shard.tar
        return shard

    def raw(self) -> TarSet:
        """Return a set of the same shards as tar samples."""
        return self.copy(TarSet)

    def field_names(self) -> list[str]:
        samples = self.first_samples()
        return list(dict.fromkeys(field for sample in samples for field in sample))

    def field_codec(self) -> FieldCodec:
        return FIELDS

    def _peek_fields(self) -> list[str]:
        return []  # indexes list members, not fields

    def stack_columns(
        self,
        locator: SampleLocator,
        positions: Any,
        fields: tuple[str, ...],
    ) -> dict[str, NDArray[Any]]:
        from fastshard._core.typed.columns import read_columns

        return read_columns(locator, positions, fields)

    def verify(self, *, hashes: bool = False) -> list[Fault]:
        """Return the faults of all shards and their indexes, and those of payloads."""
        faults = verify_dataset(self, hashes=hashes)
        damaged = {fault.path for fault in faults}

        def verify(k: int) -> list[Fault]:
            if redact(self.paths[k]) in damaged:
                return []
            try:
                return verify_payloads(self.samples(k))
            except (FormatError, OSError):
                return []  # a fault of the tar or of its index

        with warnings.catch_warnings():  # stale indexes are faults already
            warnings.simplefilter("ignore", StaleIndexWarning)
            for found in self.map_shards(verify, "verifying payloads"):
                faults.extend(found)
        return faults


def verify_payloads(samples: PackedSequence) -> list[Fault]:
    """Return the faults of the payloads of a shard."""
    faults: list[Fault] = []
    for i in range(len(samples)):
        try:
            check_payload(samples, i)
        except FormatError as error:
            faults.append(Fault(error.path, error.offset, error.member, error.reason))
            if len(faults) == MAX_FAULTS:
                break
    return faults
