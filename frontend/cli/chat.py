"""``ringcast chat``: a conversation in the terminal, or one message with ``--once``."""

from __future__ import annotations

import sys
from dataclasses import replace

from ..engine_args import EngineArgs
from ..errors import InvalidRequest
from ..sampling_params import RequestOutputKind, SamplingParams
from .options import SamplingOptions
from .session import Session

DEFAULT_MAX_TOKENS = 512
_HELP = "Ctrl-C stops an answer, /clear starts a new conversation, Ctrl-D or /exit ends."

Messages = list[dict[str, str]]


def chat(once: str | None, system: str | None, args: EngineArgs, sampling: SamplingOptions, quiet: bool) -> None:
    """Answers go to stdout, everything else to stderr."""
    sampling.params({}, DEFAULT_MAX_TOKENS)  # refuse wrong values before anything is loaded
    opening: Messages = [{"role": "system", "content": system}] if system is not None else []
    if once is not None and not once.strip():
        raise InvalidRequest("the message is empty: give it some text", "--once")
    with Session(args) as session:
        defaults = sampling.params(session.model_defaults(), DEFAULT_MAX_TOKENS)
        params = replace(defaults, output_kind=RequestOutputKind.DELTA)
        if once is None:
            _converse(session, opening, params)
            return
        answer = session.say([*opening, {"role": "user", "content": once}], params)
        if not quiet:
            print(answer.figures(session.ring_figures(), session.start_s), file=sys.stderr)


def _converse(session: Session, opening: Messages, params: SamplingParams) -> None:
    import readline  # noqa: F401 - line editing and history for input()

    sign = "> " if sys.stdin.isatty() else ""
    if sign:
        print(_HELP, file=sys.stderr)
    messages = list(opening)
    while True:
        try:
            text = input(sign).strip()
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
