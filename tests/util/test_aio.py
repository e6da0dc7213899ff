"""Blocking calls awaited in an event loop."""

import asyncio

import pytest

from fastshard._util.aio import run_in_thread


def fail(error):
    raise error


def test_a_result_is_returned():
    assert asyncio.run(run_in_thread(lambda: 7)) == 7


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt])
def test_an_error_is_raised(kind):
    error = kind("reason")

    async def work():
        with pytest.raises(kind, match="reason") as caught:
            await run_in_thread(lambda: fail(error))
        assert caught.value is error

    asyncio.run(work())


def test_stop_iteration_is_raised_as_a_runtime_error():
    async def work():
        return await asyncio.wait_for(run_in_thread(lambda: next(iter(()))), 10)

    with pytest.raises(RuntimeError, match="StopIteration") as caught:
        asyncio.run(work())

    assert isinstance(caught.value.__cause__, StopIteration)
