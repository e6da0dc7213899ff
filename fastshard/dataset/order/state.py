"""The state of an iteration: how far it has come, and of what. Plain JSON values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from fastshard.dataset.order.plan import Plan, Shuffling
from fastshard.errors import StateError

__all__ = ["Identity", "check_worker", "make_state", "resume_plan", "resume_worker"]

VERSION = 1
MOST = (1 << 63) - 1  # of any number in a state, but a seed
MOST_NAME = 100  # characters


class Identity(NamedTuple):
    """What tells a dataset from others, wherever its shards lie."""

    name: str  # for people
    samples: int
    digest: str  # hexadecimal


def make_state(
    plan: Plan, identity: Identity, base: str, count: int, skipped: int | None = None
) -> dict[str, Any]:
    """Return the state after `count` samples of a plan's share.

    Parameters
    ----------
    base : str
        What `order_digest` says of the plan's base.
    skipped : int, optional
        Samples that were passed over, those before the plan's start included;
        otherwise only these.
    """
    skipped = plan.skipped if skipped is None else skipped
    seed, epoch, block = plan.shuffling or (None, None, None)
    state: dict[str, Any] = {
        "version": VERSION,
        "dataset": identity.name[:MOST_NAME],
        "id": identity.digest,
        "samples": identity.samples,
        "base": base,
        "seed": seed,
        "epoch": epoch,
        "block": block,
        "position": plan.done(identity.samples, count),
    }
    if skipped:
        state["skipped"] = skipped
    worker = plan.worker
    if worker is not None:
        taken = worker.taken + count
        where = _place_of(plan)
        state["worker"] = {"where": where, "start": plan.start, "taken": taken}
        own = worker.skipped + skipped - plan.skipped
        if own > 0:
            state["worker"]["skipped"] = own
    return state


def resume_plan(
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
    size = plan.size(identity.samples)
    own = f"{identity.name!r} ({identity.samples:,} samples)"
    if (checked["id"], checked["samples"]) != (identity.digest, identity.samples):
        its = f"{checked['dataset']!r} ({checked['samples']:,} samples)"
        raise StateError(f"the state is of dataset {its}, and this one is {own}")
    if checked["base"] != base:
        raise StateError(
            f"the state is of another selection of samples of dataset {own}"
        )
    _want(checked["position"] <= size, state, "position")
    _want((checked.get("worker") or {"start": 0})["start"] <= size, state, "worker")
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
    return plan._replace(
        shuffling=shuffling,
        start=checked["position"],
        worker=None,
        skipped=checked.get("skipped", 0),
    )


def check_worker(state: Mapping[str, Any]) -> None:
    """Refuse the state of a worker that passed over samples, elsewhere than there.

    Raises
    ------
    StateError
        Its batches have not come in turn with those of the other workers.
    """
    worker = state.get("worker")
    if worker is not None and worker.get("skipped"):
        raise StateError(
            f"the state is of a worker that skipped {worker['skipped']:,} samples, and "
            "is for the same worker of as many; state_dict(done) of the dataset is for "
            "any process"
        )


def resume_worker(state: Mapping[str, Any], plan: Plan, identity: Identity) -> Plan:
    """Return where the worker that a state is of goes on.

    Raises
    ------
    StateError
        The plan is of another worker, rank or size of batches: what the other workers
        have done, the state does not tell.
    """
    saved, worker = state["worker"], plan.worker
    assert worker is not None
    here = _place_of(plan)
    if saved["where"] != here:
        names = "rank, ranks, worker, workers, samples of a batch"
        raise StateError(
            f"the state of a worker ({names}: {saved['where']}) is for the same one, "
            f"and this one is {here}; the state of another process, or "
            "state_dict(done) of the dataset, is for any"
        )
    own = plan._replace(
        start=saved["start"],
        worker=worker._replace(taken=saved["taken"], skipped=saved.get("skipped", 0)),
    )
    total = identity.samples
    _want(own.start <= own.size(total), state, "worker")
    _want(saved["taken"] <= own.most_taken(total), state, "worker")
    _want(own.done(total, 0) == state["position"], state, "position")
    return own


def _place_of(plan: Plan) -> list[int]:
    """Say which worker of which rank a plan is of."""
    assert plan.worker is not None
    rank, world = (0, 1) if plan.split is None else plan.split[:2]
    return [rank, world, plan.worker.id, plan.worker.workers, plan.worker.chunk]


def _told(shuffling: Shuffling | None) -> str:
    if shuffling is None:
        return "nothing"
    block = "" if shuffling.block is None else f", blocks of {shuffling.block:,}"
    return f"seed {shuffling.seed}{block}"


def _checked(state: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a state whose values are of the right types and sizes."""
    version = state.get("version") if isinstance(state, Mapping) else None
    if type(version) is not int or version != VERSION:
        told = _shown(version)
        raise StateError(f"no state of version {VERSION}: its version is {told}")
    for name in ("dataset", "id", "base"):
        _want(isinstance(state.get(name), str), state, name)
    for name in ("samples", "position"):
        _want(_is_count(state.get(name)), state, name)
    for name in ("seed", "epoch"):
        number = state.get(name)
        good = number is None if state.get("seed") is None else type(number) is int
        _want(good and (number is None or number.bit_length() <= 128), state, name)
    _want(_is_count(state.get("skipped", 0)), state, "skipped")
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
        own = worker.get("skipped", 0)
        good = good and _is_count(own) and own <= worker["taken"]
        _want(good, state, "worker")
    return state


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value <= MOST


def _want(good: bool, state: Mapping[str, Any], name: str) -> None:
    if not good:
        raise StateError(f"a state whose {name!r} is {_shown(state.get(name))}")


def _shown(value: object) -> str:
    try:
        return f"{value!r:.60}"
    except ValueError:  # Python writes no numbers of thousands of digits
        return "something very long"
