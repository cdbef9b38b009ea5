"""What is logged of restarts that fail: why, once for each reason."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

import ringcast.actors as rt


class NeedsFile(rt.BlockingActor):
    """Starts while its file is there."""

    def __init__(self, path: str) -> None:
        if not Path(path).exists():
            raise ValueError(f"{path} is damaged; get it again")

    @rt.call
    def end(self) -> None:
        os._exit(3)


async def test_a_restart_that_fails_again_and_again_is_logged_once_with_its_reason(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """B11: eleven lines, all of which said "exited with code 1"."""
    caplog.set_level(logging.WARNING, "ringcast.actors")
    file = tmp_path / "weights"
    file.touch()
    policy = rt.Restart("permanent", max_restarts=4, within_s=60.0, backoff_s=0.01, max_backoff_s=0.01)
    async with rt.System() as system:
        ref = await system.spawn(rt.spec(NeedsFile, str(file)), name="reader", where=rt.process(), restart=policy)
        events = system.watch(ref)
        file.unlink()
        with pytest.raises(rt.ActorDied):
            await ref.end()
        async for event in events:
            if isinstance(event, rt.GaveUp):
                break
    failed = [record.getMessage() for record in caplog.records if "restart of" in record.getMessage()]
    assert len(failed) == 1
    assert failed[0].endswith(f"ValueError: {file} is damaged; get it again")
    (given_up,) = [record.getMessage() for record in caplog.records if "is given up" in record.getMessage()]
    assert given_up.endswith(f"ValueError: {file} is damaged; get it again")
    assert event.cause.summary in given_up
