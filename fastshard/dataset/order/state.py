"""States of iterations, as JSON values: the dataset, its order and the position."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from fastshard.dataset.order.plan import Plan, Shuffling
from fastshard.errors import StateError

__all__ = ["Identity", "check_worker", "make_state", "resume_plan", "resume_worker"]

VERSION = 1
MAX_COUNT = (1 << 63) - 1  # any number in a state, except seed and epoch
MAX_NAME = 100  # characters


class Identity(NamedTuple):
    """Identity of a dataset, independent of the location of its shards."""

    name: str  # for error messages
    samples: int
    digest: str  # hexadecimal


def make_state(
    plan: Plan, identity: Identity, base: str, count: int, skipped: int | None = None
) -> dict[str, Any]:
    """Return the state after `count` samples of a plan's share."""
    skipped = plan.skipped if skipped is None else skipped
    seed, epoch, block = plan.shuffling or (None, None, None)
    state: dict[str, Any] = {
        "version": VERSION,
        "dataset": identity.name[:MAX_NAME],
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
        where = _worker_key(plan)
        state["worker"] = {"where": where, "start": plan.start, "taken": taken}
        worker_skipped = worker.skipped + skipped - plan.skipped
        if worker_skipped > 0:
            state["worker"]["skipped"] = worker_skipped
    return state


def resume_plan(
    state: Mapping[str, Any], plan: Plan, identity: Identity, base: str
) -> Plan:
    """Return a plan that resumes at a state.

    The shuffle is the state's. If the plan has one too, its seed and block size must be
    equal; its epoch is ignored.
    """
    checked = _validate(state)
    size = plan.size(identity.samples)
    dataset = f"{identity.name!r} ({identity.samples:,} samples)"
    if (checked["id"], checked["samples"]) != (identity.digest, identity.samples):
        other = f"{checked['dataset']!r} ({checked['samples']:,} samples)"
        if checked["dataset"] == identity.name[:MAX_NAME]:
            other += ", whose samples are others: some were added, removed or changed"
        raise StateError(f"expected a state of dataset {dataset}, got one of {other}")
    if checked["base"] != base:
        raise StateError(
            f"expected a state of dataset {dataset}, got one of another selection of "
            "its samples"
        )
    _require(checked["position"] <= size, state, "position")
    _require((checked.get("worker") or {"start": 0})["start"] <= size, state, "worker")
    shuffling = None
    if checked["seed"] is not None:
        shuffling = Shuffling(checked["seed"], checked["epoch"], checked["block"])
    current = plan.shuffling
    if current is not None and (
        shuffling is None or current._replace(epoch=shuffling.epoch) != shuffling
    ):
        raise StateError(
            f"expected a state of dataset {dataset} shuffled by {_describe(current)}, "
            f"got one shuffled by {_describe(shuffling)}"
        )
    return plan._replace(
        shuffling=shuffling,
        start=checked["position"],
        worker=None,
        skipped=checked.get("skipped", 0),
    )


def check_worker(state: Mapping[str, Any]) -> None:
    """Raise StateError for a worker's state with skipped samples.

    Only the same worker can resume such a state: its batches are not in step with
    those of the other workers.
    """
    worker = state.get("worker")
    if worker is not None and worker.get("skipped"):
        raise StateError(
            f"the state is of a worker that skipped {worker['skipped']:,} samples: "
            "resume it in the same worker, with as many workers, or use a state of "
            "the dataset's state_dict(done), which any process can resume"
        )


def resume_worker(state: Mapping[str, Any], plan: Plan, identity: Identity) -> Plan:
    """Return a plan that resumes at a worker's state."""
    saved, worker = state["worker"], plan.worker
    assert worker is not None
    key = _worker_key(plan)
    if saved["where"] != key:
        names = "rank, ranks, worker, workers, samples of a batch"
        raise StateError(
            f"expected a state of the worker ({names}) {key}, got one of "
            f"{saved['where']}; use a state from outside the workers, or of the "
            "dataset's state_dict(done), which any worker can resume"
        )
    resumed = plan._replace(
        start=saved["start"],
        worker=worker._replace(taken=saved["taken"], skipped=saved.get("skipped", 0)),
    )
    total = identity.samples
    _require(resumed.start <= resumed.size(total), state, "worker")
    _require(saved["taken"] <= resumed.worker_size(total), state, "worker")
    _require(resumed.done(total, 0) == state["position"], state, "position")
    return resumed


def _worker_key(plan: Plan) -> list[int]:
    """Return rank, ranks, worker, workers and samples of a batch of a plan."""
    assert plan.worker is not None
    rank, world = (0, 1) if plan.split is None else plan.split[:2]
    return [rank, world, plan.worker.id, plan.worker.workers, plan.worker.chunk]


def _describe(shuffling: Shuffling | None) -> str:
    if shuffling is None:
        return "nothing"
    block = "" if shuffling.block is None else f", blocks of {shuffling.block:,}"
    return f"seed {shuffling.seed}{block}"


def _validate(state: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a state; raise StateError if a value has another type or range."""
    version = state.get("version") if isinstance(state, Mapping) else None
    if type(version) is not int or version != VERSION:
        raise StateError(
            f"expected a state of version {VERSION}, got version {_clip(version)}"
        )
    for name in ("dataset", "id", "base"):
        _require(isinstance(state.get(name), str), state, name)
    for name in ("samples", "position"):
        _require(_is_count(state.get(name)), state, name)
    for name in ("seed", "epoch"):
        number = state.get(name)
        valid = number is None if state.get("seed") is None else type(number) is int
        _require(valid and (number is None or number.bit_length() <= 128), state, name)
    _require(_is_count(state.get("skipped", 0)), state, "skipped")
    block = state.get("block")
    _require(block is None or (_is_count(block) and block > 0), state, "block")
    worker = state.get("worker")
    if worker is not None:
        _require(isinstance(worker, Mapping), state, "worker")
        where = worker.get("where")
        valid = isinstance(where, list) and len(where) == 5
        valid = valid and all(map(_is_count, where))
        valid = valid and all(_is_count(worker.get(k)) for k in ("start", "taken"))
        skipped = worker.get("skipped", 0)
        valid = valid and _is_count(skipped) and skipped <= worker["taken"]
        _require(valid, state, "worker")
    return state


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value <= MAX_COUNT


def _require(valid: bool, state: Mapping[str, Any], name: str) -> None:
    if not valid:
        raise StateError(f"the state has an invalid {name!r}: {_clip(state.get(name))}")


def _clip(value: object) -> str:
    """Return the first 60 characters of a value's repr."""
    try:
        return f"{value!r:.60}"
    except ValueError:  # an int above sys.get_int_max_str_digits()
        return "an int of thousands of digits"
