"""``ringcast chat``: a conversation in the terminal, or one message with ``--once``."""

from __future__ import annotations

import sys
from dataclasses import replace

from ..engine_args import EngineArgs
from ..errors import InvalidRequest
from ..sampling_params import RequestOutputKind, SamplingParams
from .history import is_line_empty, typed_line, typed_lines
from .options import SamplingOptions
from .session import Session
from .streams import result_stream

DEFAULT_MAX_TOKENS = 512
_HELP = (
    "Ctrl-C stops an answer or drops the line, /clear starts a new conversation, Ctrl-D, /exit or /quit leaves. "
    'A message of several lines begins and ends with """.'
)
_HINT = "(Ctrl-D, /exit or /quit leaves; so does a second Ctrl-C at an empty prompt)"
_LEAVE = ("/exit", "/quit")
_QUOTES = '"""'

Messages = list[dict[str, str]]


def chat(
    once: str | None,
    system: str | None,
    args: EngineArgs,
    sampling: SamplingOptions,
    quiet: bool,
    *,
    keeps_history: bool = True,
) -> None:
    """Answers go to stdout, everything else to stderr. ``keeps_history``: of what was typed at a terminal."""
    sampling.params({}, DEFAULT_MAX_TOKENS)  # refuse wrong values before anything is loaded
    opening: Messages = [{"role": "system", "content": system}] if system is not None else []
    if once is not None and not once.strip():
        raise InvalidRequest("the message is empty: give it some text", "--once")
    result_stream()  # there must be one, before anything is loaded
    with Session(args) as session:
        defaults = sampling.params(session.model_defaults(), DEFAULT_MAX_TOKENS)
        params = replace(defaults, output_kind=RequestOutputKind.DELTA)
        if once is None:
            with typed_lines(keeps_history and sys.stdin.isatty()):
                _converse(session, opening, params, is_terminal=sys.stdin.isatty())
            return
        answer = session.say([*opening, {"role": "user", "content": once}], params)
        if not quiet:
            print(answer.figures(session.ring_figures(), session.start_s), file=sys.stderr)


def _converse(session: Session, opening: Messages, params: SamplingParams, *, is_terminal: bool) -> None:
    if is_terminal:
        print(_HELP, file=sys.stderr)
    messages = list(opening)
    while (text := _typed(is_terminal)) is not None and text not in _LEAVE:
        if text == "/clear":
            messages = list(opening)
        elif text.startswith("/"):
            print(_HELP, file=sys.stderr)
        elif text:
            _turn(session, messages, text, params, is_terminal)


def _typed(is_terminal: bool) -> str | None:
    """The next message; None at the end of the input. That end within a message is InvalidRequest, but at a terminal.

    There Ctrl-C drops what is being typed, and raises KeyboardInterrupt only when it comes twice in a row at an
    empty prompt. Without one it always does: nobody is there to go on.
    """
    num_interrupts = 0
    while True:
        lines: list[str] = []
        try:
            return _message(lines, is_terminal)
        except EOFError:
            if is_terminal:
                print(file=sys.stderr)
            elif lines:
                raise InvalidRequest(f"the input ends inside a message: end it with {_QUOTES}") from None
            return None
        except KeyboardInterrupt:
            num_interrupts = num_interrupts + 1 if not lines and is_line_empty() else 0
            if not is_terminal:
                raise
            print(file=sys.stderr)
            if num_interrupts == 2:
                raise
            print(_HINT, file=sys.stderr)


def _message(lines: list[str], is_terminal: bool) -> str:
    """What was typed: a line, or the lines between triple quotes. ``lines`` gets them as they come. EOFError."""
    lines.append(typed_line("> ") if is_terminal else input(""))
    if not lines[0].strip().startswith(_QUOTES):
        return lines[0].strip()
    lines[0] = lines[0].strip().removeprefix(_QUOTES)
    while not lines[-1].rstrip().endswith(_QUOTES):
        lines.append(typed_line("… ") if is_terminal else input(""))
    lines[-1] = lines[-1].rstrip().removesuffix(_QUOTES)
    return "\n".join(lines).strip()


def _turn(session: Session, messages: Messages, text: str, params: SamplingParams, is_terminal: bool) -> None:
    """One question and its answer; both are remembered only when the answer came to its end."""
    question = {"role": "user", "content": text}
    try:
        answer = session.say([*messages, question], params)
    except KeyboardInterrupt:
        if not is_terminal:
            raise
        print("\n(stopped)", file=sys.stderr)
    except InvalidRequest as error:
        print(f"{error} (/clear starts a new conversation)", file=sys.stderr)
    else:
        messages += [question, {"role": "assistant", "content": answer.text}]
