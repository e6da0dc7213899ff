"""The state of an iteration: how far it has come, and of what. Plain JSON values."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, NamedTuple

from fastshard.errors import StateError
from fastshard.plan import Plan, Shuffling

__all__ = ["Identity", "combined", "plan_from", "state_of", "worker_from"]

VERSION = 1
MOST = (1 << 63) - 1  # of any number in a state, but a seed


class Identity(NamedTuple):
    """What tells a dataset from others, wherever its shards lie."""

    name: str  # for people
    samples: int
    digest: str  # hexadecimal


def combined(name: str, samples: int, *parts: object) -> Identity:
    """Return the identity of what is made of several parts."""
    digest = blake2b(repr(parts).encode(), digest_size=8).hexdigest()
    return Identity(name, samples, digest)


def state_of(plan: Plan, identity: Identity, base: str, count: int) -> dict[str, Any]:
    """Return the state after `count` samples of a plan's share.

    Parameters
    ----------
    base : str
        What `describe` says of the plan's base.
    """
    seed, epoch, block = plan.shuffling or (None, None, None)
    state: dict[str, Any] = {
        "version": VERSION,
        "dataset": identity.name,
        "id": identity.digest,
        "samples": identity.samples,
        "base": base,
        "seed": seed,
        "epoch": epoch,
        "block": block,
        "position": plan.done(identity.samples, count),
    }
    worker = plan.worker
    if worker is not None:
        taken = worker.taken + count
        rank, world = (0, 1) if plan.split is None else plan.split[:2]
        where = [rank, world, worker.id, worker.workers, worker.chunk]
        state["worker"] = {"where": where, "start": plan.start, "taken": taken}
    return state


def plan_from(
    state: Mapping[str, Any], plan: Plan, identity: Identity, base: str
) -> Plan:
    """Return a plan that goes on where a state was taken.

    The shuffle is the state's own. One that the plan has must have the same seed and
    blocks; its epoch does not matter.

    Raises
    ------
    StateError
        It is no state, or of another dataset, selection or seed.
    """
    checked = _checked(state)
    own = f"{identity.name!r} ({identity.samples:,} samples)"
    if (checked["id"], checked["samples"]) != (identity.digest, identity.samples):
        its = f"{checked['dataset']!r} ({checked['samples']:,} samples)"
        raise StateError(f"the state is of dataset {its}, and this one is {own}")
    if checked["base"] != base:
        raise StateError(
            f"the state is of another selection of samples of dataset {own}"
        )
    shuffling = None
    if checked["seed"] is not None:
        shuffling = Shuffling(checked["seed"], checked["epoch"], checked["block"])
    mine = plan.shuffling
    if mine is not None and (
        shuffling is None or mine._replace(epoch=shuffling.epoch) != shuffling
    ):
        raise StateError(
            f"the state is of dataset {own} shuffled by {_told(shuffling)}, "
            f"and this one is shuffled by {_told(mine)}"
        )
    return plan._replace(shuffling=shuffling, start=checked["position"], worker=None)


def worker_from(state: Mapping[str, Any], plan: Plan) -> Plan | None:
    """Return where a worker in the same place as the state's goes on; or None."""
    saved, worker = state.get("worker"), plan.worker
    if saved is None or worker is None:
        return None
    rank, world = (0, 1) if plan.split is None else plan.split[:2]
    if saved["where"] != [rank, world, worker.id, worker.workers, worker.chunk]:
        return None
    return plan._replace(
        start=saved["start"], worker=worker._replace(taken=saved["taken"])
    )


def _told(shuffling: Shuffling | None) -> str:
    if shuffling is None:
        return "nothing"
    block = "" if shuffling.block is None else f", blocks of {shuffling.block:,}"
    return f"seed {shuffling.seed}{block}"


def _checked(state: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a state whose values are of the right types and sizes."""
    if not isinstance(state, Mapping) or state.get("version") != VERSION:
        version = state.get("version") if isinstance(state, Mapping) else None
        raise StateError(f"no state of version {VERSION}: its version is {version!r}")
    for name in ("dataset", "id", "base"):
        _want(isinstance(state.get(name), str), state, name)
    for name in ("samples", "position"):
        _want(_is_count(state.get(name)), state, name)
    _want(state["position"] <= state["samples"], state, "position")
    kinds = {type(state.get("seed")), type(state.get("epoch"))}
    _want(kinds in ({int}, {type(None)}), state, "seed")
    block = state.get("block")
    _want(block is None or (_is_count(block) and block > 0), state, "block")
    worker = state.get("worker")
    if worker is not None:
        _want(isinstance(worker, Mapping), state, "worker")
        where = worker.get("where")
        good = isinstance(where, list) and len(where) == 5
        good = good and all(map(_is_count, where))
        good = (
            good and _is_count(worker.get("start")) and _is_count(worker.get("taken"))
        )
        _want(good and worker["start"] <= state["samples"], state, "worker")
    return state


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value <= MOST


def _want(good: bool, state: Mapping[str, Any], name: str) -> None:
    if not good:
        raise StateError(f"a state whose {name!r} is {state.get(name)!r:.60}")
