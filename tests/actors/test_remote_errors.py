"""What a caller sees of an error that was raised in another process."""

from __future__ import annotations

import copy
import pickle
import traceback

import pytest

import ringcast.actors as rt

pytestmark = pytest.mark.usefixtures("leak_oracle")
PLACES = pytest.mark.parametrize("where", [rt.here, rt.process()], ids=["here", "process"])


class Inner(rt.Actor):
    @rt.call
    async def fail(self) -> None:
        raise KeyError("in the inner one")


class Outer(rt.Actor):
    def __init__(self, inner: Inner) -> None:
        self.inner = inner

    @rt.call
    async def fail(self) -> None:
        await self.inner.fail()


@PLACES
async def test_an_uncaught_remote_error_shows_the_tracebacks_of_every_hop(where: rt.Where) -> None:
    """Friction: the remote traceback was an attribute that nobody saw, and the inner one was lost."""
    async with rt.System() as system:
        inner = await system.spawn(rt.spec(Inner), where=where)
        outer = await system.spawn(rt.spec(Outer, inner), where=where)
        with pytest.raises(rt.RemoteError) as caught:
            await outer.fail()
    assert str(caught.value).startswith("RemoteError in actor 'Outer-2': KeyError in actor 'Inner-1': 'in the inner")
    for shown in (caught.value, pickle.loads(pickle.dumps(caught.value))):
        text = "".join(traceback.format_exception(shown))
        assert 'raise KeyError("in the inner one")' in text, text
        assert "await self.inner.fail()" in text, text


@pytest.mark.parametrize(
    "error",
    [
        rt.ActorError("text"),
        rt.ActorDied("name", rt.Cause("summary", -9, "phase", "handler")),
        rt.StartFailed("name", rt.Cause("summary")),
        rt.RemoteError("name", "ValueError", "text", "Traceback"),
        rt.DeadlineExceeded("there"),
        rt.CallCycle("text"),
        rt.MailboxFull("text"),
        rt.CallCancelled("text"),
        rt.NotInSystem("text"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_can_be_pickled_and_copied(error: rt.ActorError) -> None:
    """Friction: concurrent.futures, multiprocessing and Celery need it; ActorDied failed with a TypeError."""
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
        assert type(again) is type(error) and str(again) == str(error) and again.args == error.args
        state = {name: value for name, value in vars(again).items() if name != "__notes__"}
        assert state == vars(error)
