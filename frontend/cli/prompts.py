"""What ``ringcast generate`` is to continue: the argument, a file, or standard input; one text, or JSON lines."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from ..errors import InvalidRequest
from .paths import check_readable

Prompt = str | list[dict[str, Any]]  # a text, or the messages of a chat


def read_prompts(prompt: str | None, file: Path | None, *, jsonl: bool) -> list[Prompt]:
    """At least one. A line of JSON is {"prompt": TEXT}, {"messages": [...]} or a text; `InvalidRequest` names it."""
    if prompt not in (None, "-") and file is not None:
        raise typer.BadParameter("give a prompt or --file, not both", param_hint="PROMPT")
    if prompt is not None and prompt != "-":
        if jsonl:
            raise typer.BadParameter("--jsonl reads a file or stdin: leave out the prompt", param_hint="PROMPT")
        return [prompt]
    text, where = _text(file, is_asked_for=prompt == "-")
    if not jsonl:
        return [text]
    found = list(_lines(text, where))
    if not found:
        raise InvalidRequest(f"{where} has no prompts: give a line of JSON for each", "prompt")
    return found


def _text(file: Path | None, *, is_asked_for: bool) -> tuple[str, str]:
    if file is not None:
        check_readable(file, "--file")
        try:
            return file.read_text(encoding="utf-8"), str(file)
        except UnicodeDecodeError as error:
            raise InvalidRequest(f"{file} is not UTF-8 text: {error}", "file") from error
    if sys.stdin is None or (not is_asked_for and sys.stdin.isatty()):
        raise typer.BadParameter("give a prompt or --file, or pipe one in", param_hint="PROMPT")
    try:
        return sys.stdin.read(), "stdin"
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"stdin is no text: {error}", "stdin") from error


def _lines(text: str, where: str) -> Iterator[Prompt]:
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            given = json.loads(line)
        except ValueError as error:
            raise InvalidRequest(f"{where}, line {number} is not JSON: {error}", "prompt") from error
        prompt = given.get("prompt", given.get("messages")) if isinstance(given, dict) else given
        if isinstance(prompt, str) or (
            isinstance(prompt, list) and prompt and all(isinstance(m, dict) for m in prompt)
        ):
            yield prompt
        else:
            raise InvalidRequest(
                f'{where}, line {number}: give {{"prompt": TEXT}} or {{"messages": [{{"role": ..., "content": ...}}]}}',
                "prompt",
            )
