"""Server-sent events: JSON as one event's bytes. Nothing here does I/O."""

from __future__ import annotations

import json
import re
from json.encoder import encode_basestring

# Made once: `json.dumps` makes an encoder for every call that asks for other separators.
_LINE_ENDS = re.compile("[\x85\u2028\u2029]")
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def event(data: object) -> bytes:
    """One server-sent event."""
    return b"data: " + _one_line(_encode(data)).encode() + b"\n\n"


def json_text(text: str) -> bytes:
    """A text as it stands within an event, its quotes included."""
    return _one_line(encode_basestring(text)).encode()


def _one_line(text: str) -> str:
    """JSON without what some clients take for the end of a line; outside of texts JSON has none of it."""
    return text if text.isascii() else _LINE_ENDS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
