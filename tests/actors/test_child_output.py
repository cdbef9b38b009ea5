"""What children print: where it goes, what it costs the loop, what is left of it at their death; and how they log."""

from __future__ import annotations

import asyncio
import io
import logging
import os
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import ringcast.actors as rt
from ringcast.actors.child_output import MAX_LINE_BYTES, LineSplitter

pytestmark = pytest.mark.usefixtures("leak_oracle")

SILENCE_S = 0.5  # ten times what is promised: the machine may be busy
CONFIGURATION = {
    "version": 1,
    "formatters": {"short": {"format": "<%(levelname)s> %(message)s"}},
    "handlers": {"err": {"class": "logging.StreamHandler", "formatter": "short"}},
    "root": {"level": "INFO", "handlers": ["err"]},
}


class Printer(rt.Actor):
    @rt.call
    async def write(self, text: str, times: int = 1) -> None:
        data = text.encode() * times
        while data:
            data = data[os.write(1, data) :]

    @rt.call
    async def log(self, text: str) -> None:
        logging.getLogger("app").info(text)

    @rt.call(concurrent=True)
    async def flood(self, text: str) -> None:
        await asyncio.to_thread(flood_for_ever, text.encode())

    @rt.call
    async def write_and_die(self, lines: int) -> None:
        for number in range(lines):
            os.write(2, b"line %d\n" % number)
        os._exit(3)


def flood_for_ever(data: bytes) -> None:
    while True:
        os.write(1, data)


class Raises(io.StringIO):
    def write(self, text: str) -> int:
        raise RuntimeError("no more")


class Lines:
    """Takes a child's lines."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def __call__(self, name: str, line: str) -> None:
        self.lines.append(f"{name}: {line}")

    async def until(self, number: int) -> list[str]:
        async with asyncio.timeout(30):
            while len(self.lines) < number:
                await asyncio.sleep(0.005)
        return self.lines


class Silence:
    """Measures how long the loop did not turn."""

    async def __aenter__(self) -> Silence:
        self.longest_s = 0.0
        self._task = asyncio.create_task(self._watch())
        await asyncio.sleep(0.01)
        return self

    async def _watch(self) -> None:
        last = time.monotonic()
        while True:
            await asyncio.sleep(0.001)
            now = time.monotonic()
            self.longest_s, last = max(self.longest_s, now - last), now

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()


def set_up_logging(name: str) -> None:
    logging.basicConfig(level=logging.INFO, format=f"({name}) %(message)s", stream=sys.stdout)


@pytest.mark.parametrize(
    ("written", "lines"),
    [
        ([b"a\nb", b"c\n"], ["a", "bc"]),
        ([b"a\r\nb\r\n"], ["a", "b"]),
        ([b"10%\r20%\r", b"30%\r", b"done\n"], ["done"]),
        ([b"\r10%", b"\r20%"], ["20%"]),
        ([b"\r10%\r", b"\n"], ["10%"]),
        ([b"a\r\r\r"], ["a"]),
        ([b"\n\n"], ["", ""]),
        ([b"\xff\n"], ["\ufffd"]),
    ],
)
def test_lines_are_what_a_terminal_would_show(written: list[bytes], lines: list[str]) -> None:
    """C32: a carriage return begins the line anew; the last state of a progress bar is kept."""
    splitter = LineSplitter()
    got = [line for data in written for line in splitter.feed(data)]
    assert got + splitter.finish() == lines


def test_a_line_is_cut_and_marked() -> None:
    """C32: the buffer is bounded, and the work linear."""
    splitter = LineSplitter()
    for _ in range(1024):
        assert splitter.feed(b"x" * 16384) == []
    (line,) = splitter.feed(b"\n")
    assert line == "x" * MAX_LINE_BYTES + f" [{1024 * 16384 - MAX_LINE_BYTES} more bytes of this line were cut]"
    assert splitter.feed(b"next\n") == ["next"]


@pytest.mark.parametrize("text", ["#", "\r42%", "\n", "word\n"], ids=["line", "bar", "empty lines", "lines"])
async def test_output_does_not_hold_the_loop(text: str) -> None:
    """C32, C33: 32 MiB without a newline, or of tiny lines without end."""
    taken = Lines()
    async with rt.System(stop_timeout_s=0.2) as system:
        printer = await system.spawn(rt.spec(Printer), name="p", where=rt.process(output=taken))
        async with Silence() as silence:
            if text in "\r42%#":
                await printer.write(text, (32 << 20) // len(text))
            else:
                flood = asyncio.ensure_future(printer.flood(text * 1024))
                await taken.until(20_000)
                flood.cancel()
        assert silence.longest_s < SILENCE_S


async def test_a_flood_leaves_other_actors_their_pace() -> None:
    """C33: the child that prints waits; calls to others are answered as ever."""
    async with rt.System(output="drop", stop_timeout_s=0.2) as system:
        noisy = await system.spawn(rt.spec(Printer), where=rt.process())
        quiet = await system.spawn(rt.spec(Printer), where=rt.process())
        flood = asyncio.ensure_future(noisy.flood("\n" * 1024))
        await asyncio.sleep(0.1)
        async with asyncio.timeout(20):
            for _ in range(200):
                await quiet.write("")
        flood.cancel()


@pytest.mark.parametrize("stderr", [None, Raises()], ids=["None", "raises"])
async def test_the_last_lines_are_the_last_lines(stderr: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """C31: of 20,000 lines before a child's death, whatever sys.stderr is."""
    problems: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(context))
    async with rt.System() as system:
        printer = await system.spawn(rt.spec(Printer), where=rt.process())
        monkeypatch.setattr(sys, "stderr", stderr)
        with pytest.raises(rt.ActorDied) as death:
            await printer.write_and_die(20_000)
    assert death.value.cause.stderr_tail.splitlines() == [f"line {number}" for number in range(19_980, 20_000)]
    assert problems == []


async def test_no_line_is_lost_at_a_death(capfd: pytest.CaptureFixture[str]) -> None:
    """C31: stderr shows all of them, in order."""
    async with rt.System() as system:
        printer = await system.spawn(rt.spec(Printer), name="p", where=rt.process())
        with pytest.raises(rt.ActorDied):
            await printer.write_and_die(20_000)
    shown = [line for line in capfd.readouterr().err.splitlines() if line.startswith("[p] line ")]
    assert shown == [f"[p] line {number}" for number in range(20_000)]


async def test_a_slow_taker_gets_all_lines_before_the_system_has_stopped() -> None:
    """C31: the death is known at once, the lines follow."""
    taken: list[str] = []

    def slow(name: str, line: str) -> None:
        time.sleep(0.0002)
        taken.append(line)

    async with rt.System(output=slow) as system:
        printer = await system.spawn(rt.spec(Printer), where=rt.process())
        with pytest.raises(rt.ActorDied):
            await printer.write_and_die(3_000)
    assert taken == [f"line {number}" for number in range(3_000)]


async def test_lines_go_to_a_logger(caplog: pytest.LogCaptureFixture) -> None:
    async with rt.System(output="logging") as system:
        with caplog.at_level(logging.INFO):
            printer = await system.spawn(rt.spec(Printer), name="p", where=rt.process())
            await printer.write("hello\n")
            async with asyncio.timeout(20):
                while not caplog.records:
                    await asyncio.sleep(0.005)
    record = caplog.records[0]
    assert (record.name, record.getMessage(), record.__dict__["actor"]) == (
        "ringcast.actors.output",
        "[p] hello",
        "p",
    )


async def test_dropped_lines_are_kept_for_the_cause_of_death(capfd: pytest.CaptureFixture[str]) -> None:
    async with rt.System(output="drop") as system:
        printer = await system.spawn(rt.spec(Printer), name="p", where=rt.process())
        with pytest.raises(rt.ActorDied, match="line 2"):
            await printer.write_and_die(3)
    assert "line 2" not in capfd.readouterr().err


async def test_a_process_can_inherit_our_streams(capfd: pytest.CaptureFixture[str]) -> None:
    async with rt.System() as system:
        printer = await system.spawn(rt.spec(Printer), name="p", where=rt.process(output="inherit"))
        await printer.write("to stdout\n")
        with pytest.raises(rt.ActorDied):
            await printer.write_and_die(1)
    captured = capfd.readouterr()
    assert (captured.out, captured.err) == ("to stdout\n", "line 0\n")


async def test_a_taker_that_fails_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    def fails(name: str, line: str) -> None:
        raise RuntimeError(line)

    async with rt.System(output=fails) as system:
        printer = await system.spawn(rt.spec(Printer), name="p", where=rt.process())
        with pytest.raises(rt.ActorDied, match="line 4"):
            await printer.write_and_die(5)
    reports = [record for record in caplog.records if "output of 'p'" in record.getMessage()]
    assert len(reports) == 1


@pytest.mark.parametrize(
    ("configuration", "line"),
    [
        (CONFIGURATION, "p: <INFO> hello"),
        (set_up_logging, "p: (p) hello"),
        (lambda name: set_up_logging("by value"), "p: (by value) hello"),
    ],
    ids=["dictionary", "function", "by value"],
)
async def test_children_log_as_the_program_says(configuration: Any, line: str) -> None:
    taken = Lines()
    async with rt.System(child_logging=configuration, output=taken) as system:
        printer = await system.spawn(rt.spec(Printer), name="p", where=rt.process())
        await printer.log("hello")
        assert await taken.until(1) == [line]


async def test_logging_that_cannot_be_set_up_fails_the_start() -> None:
    async with rt.System(child_logging={"version": 7}) as system:
        with pytest.raises(rt.StartFailed, match="Unsupported version: 7"):
            await system.spawn(rt.spec(Printer), where=rt.process())
    not_logging: Any = 3
    with pytest.raises(TypeError, match="child_logging is 3: use a dictionary"):
        rt.System(child_logging=not_logging)
    with pytest.raises(TypeError, match="child_logging cannot travel"):
        rt.System(child_logging={"handlers": threading.Lock()})


@pytest.mark.parametrize(("output", "error"), [("stdout", ValueError), (3, TypeError), (b"drop", TypeError)])
def test_output_that_is_no_place_is_refused(output: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="output is .*: use"):
        rt.System(output=output)
    with pytest.raises(error, match="output is .*: use"):
        rt.process(output=output)


CLOSED_STREAMS = """
    import os, sys
    sys.path.append(sys.argv[1])
    for fd in (0, 1, 2):
        os.close(fd)
    sys.stdin = sys.stdout = sys.stderr = None
    import ringcast.actors as rt
    from test_child_output import Printer

    async def main(system):
        printer = await system.spawn(rt.spec(Printer), where=rt.process())
        await printer.write("hello\\n", 100)
        try:
            await printer.write_and_die(3)
        except rt.ActorDied as error:
            assert error.cause.stderr_tail.endswith("line 2"), error
            return 5

    os._exit(rt.run(main))
"""


def test_a_daemon_without_standard_streams_has_children(tmp_path: Path) -> None:
    """C30: 0, 1 and 2 are opened on /dev/null before anything else gets these numbers."""
    program = tmp_path / "daemon.py"
    program.write_text(textwrap.dedent(CLOSED_STREAMS))
    ended = subprocess.run([sys.executable, str(program), os.path.dirname(__file__)], timeout=60)
    assert ended.returncode == 5
