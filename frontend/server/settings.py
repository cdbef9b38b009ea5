"""What an operator may choose about a server: plain data, checked once. Used by `create_app` and ``ringcast serve``."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from ..errors import FrontendError


class SettingsError(FrontendError, ValueError):
    """The operator's fault: a setting of the server is out of range, or two do not fit together."""


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """Access and limits. `SettingsError` names the field, the value and the remedy.

    ``api_keys``: with any, a request must carry one as ``Authorization: Bearer KEY``; health and metrics are open.
    ``allowed_origins`` are the web pages' that browsers may let in (CORS), "*" for all; ``allow_credentials`` lets them
    send cookies. ``max_body_bytes`` bounds a request's body (413). ``max_concurrent_requests`` bounds the requests that
    are being answered (429 with Retry-After; None: no bound). ``request_timeout_s`` is every request's deadline (504,
    or an error event in a stream that has begun; None: none); by X-Request-Timeout a client may ask for a shorter one.
    ``max_prompts_per_request`` bounds a request's prompts times its n (400). ``body_timeout_s`` is what a body may take
    to arrive (408). Of connections, which `run_server` keeps: ``max_header_bytes`` and ``header_timeout_s`` bound a
    request's head (431, 408), ``keep_alive_timeout_s`` is how long an idle one stays open.
    """

    api_keys: tuple[str, ...] = ()
    allowed_origins: tuple[str, ...] = ()
    allow_credentials: bool = False
    max_body_bytes: int = 32 << 20
    max_concurrent_requests: int | None = 1024
    request_timeout_s: float | None = None
    max_prompts_per_request: int = 1024
    body_timeout_s: float = 60.0
    max_header_bytes: int = 64 << 10
    header_timeout_s: float = 10.0
    keep_alive_timeout_s: float = 75.0

    def __post_init__(self) -> None:
        if any(not key or not key.isascii() or key != key.strip() for key in self.api_keys):
            raise SettingsError("api_keys holds a key that is empty, not ASCII, or has spaces around it: give another")
        if self.allow_credentials and "*" in self.allowed_origins:
            raise SettingsError("allow_credentials needs allowed_origins named one by one: '*' would let in anybody")
        for item in fields(self):
            value, is_count = getattr(self, item.name), item.name.startswith("max_")
            if not is_count and not item.name.endswith("_s"):
                continue
            may_be_left_out = item.default is None or item.name == "max_concurrent_requests"
            if value is None and may_be_left_out:
                continue
            if type(value) not in ((int,) if is_count else (int, float)) or not 0 < value < math.inf:
                what = "a whole number" if is_count else "a number"
                raise SettingsError(f"{item.name}={value!r}: give {what} above 0, or leave it out")
