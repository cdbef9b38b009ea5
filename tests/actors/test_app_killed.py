"""kill -9 of the app, whatever its children are at: they are gone within a second, and nothing is left of them."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

PHASES = ["import", "on_prepare", "__init__", "on_start", "handler", "stream", "run", "on_stop", "idle"]
KILLED_AFTER_S = [0.0, 0.01, 0.02, 0.04, 0.08, 0.16]  # of the first start: before, in and after each child's bootstrap

STUCK = """
    import os, pathlib, sys, time
    import ringcast.actors as rt

    def at(phase):
        if os.environ["PHASE"] == phase:
            pathlib.Path(os.environ["MARKS"], phase).touch()
            if os.environ["HOLDS_THE_INTERPRETER"]:
                sum(range(10 ** 13))
            time.sleep(3600)

    at("import")

    class Stuck(rt.Actor):
        def __init__(self): at("__init__")
        async def on_prepare(self, ctx): at("on_prepare")
        async def on_start(self, ctx, handoff): at("on_start")
        async def run(self, ctx): at("run")
        async def on_stop(self, reason): at("on_stop")

        @rt.call
        async def handler(self): at("handler")

        @rt.stream()
        async def stream(self):
            yield 1
            at("stream")
"""
APP = """
    import asyncio, os, pathlib, sys
    import ringcast.actors as rt
    from stuck import Stuck

    async def live(system, phase):
        actor = await system.spawn(rt.spec(Stuck), name=phase, where=rt.process(env={"PHASE": phase}))
        if phase == "idle":
            pathlib.Path(os.environ["MARKS"], phase).touch()
        if phase == "handler":
            await actor.handler()
        if phase == "stream":
            async with actor.stream.open() as items:
                async for _ in items:
                    pass
        if phase == "on_stop":
            await system.stop(actor, timeout_s=3600)
        await asyncio.sleep(3600)

    async def main():
        async with rt.System() as system:
            print("starting", flush=True)
            await asyncio.gather(*(live(system, phase) for phase in sys.argv[1:]))

    os.environ["PHASE"] = ""  # for the app's own import of the module
    asyncio.run(main())
"""


class App:
    """The program in a process of its own. It and its descendants are known by their working directory."""

    def __init__(self, folder: Path, holds_the_interpreter: bool) -> None:
        self.folder = folder
        self.marks = folder / "marks"
        self.marks.mkdir()
        (folder / "stuck.py").write_text(textwrap.dedent(STUCK))
        (folder / "app.py").write_text(textwrap.dedent(APP))
        holds = "yes" if holds_the_interpreter else ""
        env = {**os.environ, "MARKS": str(self.marks), "HOLDS_THE_INTERPRETER": holds, "PHASE": ""}
        command = [sys.executable, str(folder / "app.py"), *PHASES]
        self.popen = subprocess.Popen(command, stdout=subprocess.PIPE, env=env, cwd=folder)

    def family(self) -> list[int]:
        """Who is there, zombies not included."""
        found = []
        for name in filter(str.isdigit, os.listdir("/proc")):
            try:
                if os.readlink(f"/proc/{name}/cwd") == str(self.folder):
                    found.append(int(name))
            except OSError:
                continue
        return found

    def kill(self) -> None:
        """kill -9, and nobody of it runs a second later."""
        self.popen.kill()
        self.popen.wait()
        deadline = time.monotonic() + 1.0
        while left := self.family():
            assert time.monotonic() < deadline, f"children outlived the app: {left}"
            time.sleep(0.01)


@pytest.fixture
def app(tmp_path: Path, request: pytest.FixtureRequest, leak_oracle: None) -> Iterator[App]:
    app = App(tmp_path, holds_the_interpreter=request.param)
    yield app
    app.popen.kill()
    app.popen.communicate()


@pytest.mark.parametrize("app", [False, True], ids=["in a long call", "holding the interpreter"], indirect=True)
def test_children_in_every_phase_are_gone_within_a_second(app: App) -> None:
    deadline = time.monotonic() + 60
    while {path.name for path in app.marks.iterdir()} != set(PHASES):
        assert time.monotonic() < deadline and app.popen.poll() is None
        time.sleep(0.02)
    assert len(app.family()) == 1 + len(PHASES)
    app.kill()


@pytest.mark.parametrize("after_s", KILLED_AFTER_S)
@pytest.mark.parametrize("app", [False], ids=[""], indirect=True)
def test_children_that_have_just_been_started_are_gone_within_a_second(app: App, after_s: float) -> None:
    assert app.popen.stdout is not None
    assert app.popen.stdout.readline() == b"starting\n"
    time.sleep(after_s)
    app.kill()
