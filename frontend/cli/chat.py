"""``ringcast chat``: a conversation in the terminal, or one message with ``--once``."""

from __future__ import annotations

import sys
from dataclasses import replace

from ..engine_args import EngineArgs
from ..errors import InvalidRequest
from ..sampling_params import RequestOutputKind, SamplingParams
from .history import typed_lines
from .options import SamplingOptions
from .session import Session

DEFAULT_MAX_TOKENS = 512
_HELP = (
    "Ctrl-C stops an answer, /clear starts a new conversation, Ctrl-D or /exit ends. "
    'A message of several lines begins and ends with """.'
)
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
    with Session(args) as session:
        defaults = sampling.params(session.model_defaults(), DEFAULT_MAX_TOKENS)
        params = replace(defaults, output_kind=RequestOutputKind.DELTA)
        if once is None:
            with typed_lines(keeps_history and sys.stdin.isatty()):
                _converse(session, opening, params)
            return
        answer = session.say([*opening, {"role": "user", "content": once}], params)
        if not quiet:
            print(answer.figures(session.ring_figures(), session.start_s), file=sys.stderr)


def _converse(session: Session, opening: Messages, params: SamplingParams) -> None:
    sign = "> " if sys.stdin.isatty() else ""
    if sign:
        print(_HELP, file=sys.stderr)
    messages = list(opening)
    while True:
        try:
            text = _message(sign)
        except (EOFError, KeyboardInterrupt):
            if sign:
                print(file=sys.stderr)
            return
        if text == "/exit":
            return
        if text == "/clear":
            messages = list(opening)
        elif text.startswith("/"):
            print(_HELP, file=sys.stderr)
        elif text:
            _turn(session, messages, text, params)


def _message(sign: str) -> str:
    """What was typed: a line, or the lines between triple quotes. EOFError at the end of the input."""
    text = input(sign).strip()
    if not text.startswith(_QUOTES):
        return text
    lines = [text.removeprefix(_QUOTES)]
    while not lines[-1].rstrip().endswith(_QUOTES):
        lines.append(input("… " if sign else ""))
    lines[-1] = lines[-1].rstrip().removesuffix(_QUOTES)
    return "\n".join(lines).strip()


def _turn(session: Session, messages: Messages, text: str, params: SamplingParams) -> None:
    """One question and its answer; both are remembered only when the answer came to its end."""
    question = {"role": "user", "content": text}
    try:
        answer = session.say([*messages, question], params)
    except KeyboardInterrupt:
        print("\n(stopped)", file=sys.stderr)
    except InvalidRequest as error:
        print(f"{error} (/clear starts a new conversation)", file=sys.stderr)
    else:
        messages += [question, {"role": "assistant", "content": answer.text}]
