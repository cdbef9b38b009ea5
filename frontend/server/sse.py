"""Server-sent events: JSON as one event's bytes. Nothing here does I/O."""

from __future__ import annotations

import json
from json.encoder import encode_basestring

# Made once: `json.dumps` makes an encoder for every call that asks for other separators.
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def event(data: object) -> bytes:
    """One server-sent event."""
    return b"data: " + _encode(data).encode() + b"\n\n"


def json_text(text: str) -> bytes:
    """A text as it stands within an event, its quotes included."""
    return encode_basestring(text).encode()
