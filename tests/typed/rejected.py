"""Checked by test_typing.py, never run: each marked line must be an error, and no other."""

from accepted import Worker

import ringcast.actors as rt


async def main(system: rt.System) -> None:
    worker = await system.spawn(rt.spec(Worker, 0))
    group = await system.spawn_group([rt.spec(Worker, 0)])
    await worker.step("oops")  # error: a wrong argument of a handler
    worker.step.cast(3)  # error: and of a cast
    rt.spec(Worker, "x")  # error: of a constructor
    await group.gather(Worker.step.msg("bad"))  # error: of a message
    await system.spawn(Worker)  # error: a class in place of a spec
    text: str = await worker.step([1])  # error: a wrong use of a result
    worker.tokens.open(5)  # error: a wrong argument of a stream
    print(text)


def in_a_thread(portal: rt.Portal, worker: Worker) -> None:
    portal.call(worker.step, "oops")  # error: a wrong argument of a handler
    portal.cast(worker.step, 3)  # error: and of a cast
    with portal.stream(worker.tokens, 5) as tokens:  # error: and of a stream
        print(tokens)
