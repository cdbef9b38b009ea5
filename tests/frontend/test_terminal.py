"""``ringcast chat`` at a terminal, with the real model, and the line editor alone."""

from __future__ import annotations

import pytest
from terminal import Terminal

# The hook runs between the look for signals and the sleep, and in C alone: Python cannot look within it.
_INTERRUPTED_BEFORE_IT_SLEEPS = """
import ctypes, functools, os, readline, signal
from ringcast.frontend.cli.history import typed_line
readline.set_pre_input_hook(functools.partial(ctypes.CDLL(None).kill, os.getpid(), signal.SIGINT))
try:
    typed_line("> ")
except KeyboardInterrupt:
    print("heeded", signal.getitimer(signal.ITIMER_REAL), signal.getsignal(signal.SIGALRM))
"""


def test_ctrl_c_is_heeded_at_the_worst_moment() -> None:
    with Terminal("-c", _INTERRUPTED_BEFORE_IT_SLEEPS) as terminal:
        terminal.read_until("heeded (0.0, 0.0) 0")
        assert terminal.process.wait(20) == 0


def test_ctrl_c_stops_the_answer_and_not_the_conversation() -> None:
    with Terminal("-m", "ringcast", "chat", "--max-tokens", "2000", "--ignore-eos") as terminal:
        terminal.read_until("> ")
        terminal.write(b"Tell me a story\n")
        terminal.read_until("Tell me a story\r\n")
        terminal.read_until(" ")  # of the answer
        terminal.write(b"\x03")
        terminal.read_until("(stopped)")
        terminal.read_until("> ")
        for typed in ("", "some words", ""):
            if typed:
                terminal.write(typed.encode())
                terminal.read_until(typed)
            terminal.write(b"\x03")
            terminal.read_until("/quit leaves")
            terminal.read_until("> ")
        terminal.write(b"\x03")
        assert terminal.process.wait(20) == 130


@pytest.mark.parametrize("leave", [b"/exit\n", b"/quit\n", b"\x04"])
def test_a_chat_is_left_with_exit_code_0(leave: bytes) -> None:
    with Terminal("-m", "ringcast", "chat") as terminal:
        terminal.read_until("> ")
        terminal.write(leave)
        assert terminal.process.wait(20) == 0
