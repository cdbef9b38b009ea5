"""``ringcast generate``: continue one text while it comes, or many at the same time."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TextIO

import typer

from ..engine_args import EngineArgs
from ..errors import FrontendError
from ..outputs import RequestOutput
from ..progress import request_progress
from ..sampling_params import RequestOutputKind
from .errors import FAILED
from .options import SamplingOptions
from .paths import check_writable
from .prompts import Prompt, read_prompts
from .session import Session
from .streams import result_stream, tell

DEFAULT_MAX_TOKENS = 128


def generate(
    prompt: str | None,
    args: EngineArgs,
    sampling: SamplingOptions,
    quiet: bool,
    *,
    file: Path | None = None,
    jsonl: bool = False,
    output_format: str | None = None,
    output: Path | None = None,
) -> None:
    """Answers to stdout or ``output``, in the order of the prompts; figures and progress to stderr.

    ``output_format`` is "text" or "jsonl"; None: as the prompts came.
    """
    if output is not None:
        check_writable(output, "--output")
    prompts = read_prompts(prompt, file, jsonl=jsonl)
    sampling.params({}, DEFAULT_MAX_TOKENS)  # refuse wrong values before anything is loaded
    as_json = output_format == "jsonl" if output_format is not None else jsonl
    with _opened(output) as out, Session(args) as session:
        params = sampling.params(session.model_defaults(), DEFAULT_MAX_TOKENS)
        if output is not None and output.is_file():
            out.truncate(0)
        if len(prompts) == 1 and not as_json:
            answer = session.say(prompts[0], replace(params, output_kind=RequestOutputKind.DELTA), out)
            if not quiet:
                print(answer.figures(session.ring_figures(), session.start_s), file=sys.stderr)
            return

        num_failed = 0

        def write(index: int, result: RequestOutput | FrontendError) -> None:
            nonlocal num_failed
            num_failed += isinstance(result, FrontendError)
            _write(out, index, prompts[index], result, as_json)

        with request_progress(len(prompts), show=not quiet) as advance:
            params = replace(params, output_kind=RequestOutputKind.FINAL_ONLY)
            session.all_of(prompts, params, write, advance)
    if num_failed:
        tell(f"{num_failed} of {len(prompts)} prompts failed")
        raise typer.Exit(FAILED)


def _write(out: TextIO, index: int, prompt: Prompt, result: RequestOutput | FrontendError, as_json: bool) -> None:
    line: dict[str, object]
    if isinstance(result, FrontendError):
        line = {"index": index, "prompt": prompt, "error": str(result)}
        if not as_json:
            tell(f"prompt {index}: {result}")
    else:
        answer = result.outputs[0]
        line = {
            "index": index,
            "prompt": prompt,
            "text": answer.text,
            "finish_reason": answer.finish_reason,
            "prompt_tokens": len(result.prompt_token_ids),
            "completion_tokens": len(answer.token_ids),
        }
        if not as_json:
            out.write(answer.text + "\n")
    if as_json:
        is_utf8 = (out.encoding or "utf-8").lower().replace("-", "") == "utf8"
        out.write(json.dumps(line, ensure_ascii=not is_utf8) + "\n")
    out.flush()


@contextmanager
def _opened(path: Path | None) -> Iterator[TextIO]:
    """Before anything is loaded: what `check_writable` cannot foresee is still told at once. What the file holds stays
    in it until there is an engine to replace it.
    """
    if path is None:
        yield result_stream()
        return
    # What is no Unicode text, half of a surrogate pair, is escaped, as on stdout: in a line of JSON that is its form.
    with path.open("a", encoding="utf-8", errors="backslashreplace") as file:
        yield file
