"""What a chat message's ``content`` may be: a text, or a list of text parts, which become one text.

One rule for the server, `LLM.chat` and the command line: templates see texts only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .errors import InvalidRequest, UnsupportedParameter


def with_text(message: Mapping[str, Any], index: int) -> Mapping[str, Any]:
    """``message``, its content a text if it was a list of parts. ``index`` is its place, for errors."""
    content = message.get("content")
    if not isinstance(content, list | tuple):
        return message
    return {**message, "content": joined_text(content, f"messages[{index}]")}


def joined_text(parts: Sequence[Any], place: str) -> str:
    """The texts of ``parts``, a line each, as vLLM joins them. `InvalidRequest` for other parts, under their names."""
    texts = []
    for index, part in enumerate(parts):
        where = f"{place}.content[{index}]"
        if not isinstance(part, Mapping):
            raise InvalidRequest(
                f"{where} is {part!r}: it must be a part such as {{'type': 'text', 'text': ...}}", where
            )
        if part.get("type") != "text":
            raise UnsupportedParameter(f"{where}.type", part.get("type"), "'text'")
        if not isinstance(part.get("text"), str):
            raise InvalidRequest(f"{where}.text is {part.get('text')!r}: it must be a string", f"{where}.text")
        texts.append(part["text"])
    return "\n".join(texts)
