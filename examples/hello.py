"""An actor in a process of its own, in fifteen lines."""

import ringcast.actors as rt


class Greeter(rt.Actor):
    @rt.call
    async def greet(self, name: str) -> str:
        return f"hello, {name}"


async def main(system: rt.System) -> None:
    greeter = await system.spawn(rt.spec(Greeter), where=rt.process())
    print(await greeter.greet("world"))


rt.run(main)
