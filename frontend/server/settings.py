"""What an operator may choose about a server: plain data, checked once. Used by `create_app` and ``ringcast serve``."""

from __future__ import annotations

import math
from dataclasses import dataclass

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
    ``max_prompts_per_request`` bounds a request's prompts times its n (400).
    """

    api_keys: tuple[str, ...] = ()
    allowed_origins: tuple[str, ...] = ()
    allow_credentials: bool = False
    max_body_bytes: int = 32 << 20
    max_concurrent_requests: int | None = 1024
    request_timeout_s: float | None = None
    max_prompts_per_request: int = 1024

    def __post_init__(self) -> None:
        if any(not key or not key.isascii() or key != key.strip() for key in self.api_keys):
            raise SettingsError("api_keys holds a key that is empty, not ASCII, or has spaces around it: give another")
        if self.allow_credentials and "*" in self.allowed_origins:
            raise SettingsError("allow_credentials needs allowed_origins named one by one: '*' would let in anybody")
        for name in ("max_body_bytes", "max_concurrent_requests", "request_timeout_s", "max_prompts_per_request"):
            value = getattr(self, name)
            kind = (int, float) if name == "request_timeout_s" else (int,)
            if value is not None and (type(value) not in kind or not 0 < value < math.inf):
                what = "a number" if float in kind else "a whole number"
                raise SettingsError(f"{name}={value!r}: give {what} above 0, or leave it out")
