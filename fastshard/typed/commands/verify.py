"""Verification of packed datasets: payloads that cannot be decoded."""

from __future__ import annotations

import warnings

from fastshard._core.typed.shard import check_payload
from fastshard._util.paths.urls import redact
from fastshard.dataset.tarset import TarSet
from fastshard.dataset.verify import Fault, verify_dataset
from fastshard.errors import FormatError, StaleIndexWarning

__all__ = ["verify_set"]

MAX_FAULTS = 100  # of one shard


def verify_set(shards: TarSet, *, hashes: bool) -> list[Fault]:
    """Return the faults of a set's tar shards, and of the payloads of sound ones."""
    faults = verify_dataset(shards, hashes=hashes)
    damaged = {fault.path for fault in faults}

    def verify(k: int) -> list[Fault]:
        if redact(shards.paths[k]) in damaged:
            return []
        try:
            return verify_payloads(shards, k)
        except (FormatError, OSError):
            return []  # a fault of the tar or of its index

    with warnings.catch_warnings():  # stale indexes are faults already
        warnings.simplefilter("ignore", StaleIndexWarning)
        for found in shards.map_shards(verify, "verifying payloads"):
            faults.extend(found)
    return faults


def verify_payloads(shards: TarSet, k: int) -> list[Fault]:
    """Return the faults of the payloads of a shard."""
    faults: list[Fault] = []
    samples = shards.samples(k)
    for i in range(len(samples)):
        try:
            check_payload(samples, i)
        except FormatError as error:
            faults.append(Fault(error.path, error.offset, error.member, error.reason))
            if len(faults) == MAX_FAULTS:
                break
    return faults
