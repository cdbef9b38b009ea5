"""``ringcast generate``: continue a text."""

from __future__ import annotations

import sys
from dataclasses import replace

import typer

from ..engine_args import EngineArgs
from ..sampling_params import RequestOutputKind
from .options import SamplingOptions
from .session import Session

DEFAULT_MAX_TOKENS = 128


def generate(prompt: str | None, args: EngineArgs, sampling: SamplingOptions, quiet: bool) -> None:
    """Print the continuation to stdout, and a line of figures to stderr."""
    text = _prompt(prompt)
    sampling.params({}, DEFAULT_MAX_TOKENS)  # refuse wrong values before anything is loaded
    with Session(args) as session:
        params = sampling.params(session.model_defaults(), DEFAULT_MAX_TOKENS)
        answer = session.say(text, replace(params, output_kind=RequestOutputKind.DELTA))
        if not quiet:
            print(answer.figures(session.ring_figures(), session.start_s), file=sys.stderr)


def _prompt(prompt: str | None) -> str:
    """The argument, or standard input where there is none or it is ``-``."""
    if prompt is not None and prompt != "-":
        return prompt
    if prompt is None and sys.stdin.isatty():
        raise typer.BadParameter("give a prompt, or pipe one in", param_hint="PROMPT")
    return sys.stdin.read()
