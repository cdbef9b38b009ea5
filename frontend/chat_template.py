"""Chat messages to prompt text: a model's own Jinja template, rendered in a sandbox as Hugging Face does it.

Templates come from model files and are untrusted: they see plain data only, cannot change it and cannot
import. The environment follows transformers' (`utils/chat_template_utils.py`), so that prompts are the same
to the byte.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from .errors import InvalidRequest, ModelUnusable
from .message_content import with_text

if TYPE_CHECKING:
    import jinja2


_MARK = "CONTINUE_FINAL_MESSAGE_TAG "  # put behind a text that is to be continued: there the prompt is cut


class ChatTemplate:
    """A compiled template. ``tokens`` are the names that templates expect, such as ``bos_token``."""

    def __init__(self, source: str, tokens: Mapping[str, str]) -> None:
        self.source = source
        self._tokens = dict(tokens)
        self._template: jinja2.Template | None = None

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt. ``variables`` are the caller's template arguments, plain JSON data.

        A content that is a list of text parts becomes one text. ``continue_final_message``: the prompt ends where the
        last message's text ends. `InvalidRequest` when the template refuses the messages, `ModelUnusable` when it is
        broken.
        """
        import jinja2

        if not messages:
            raise InvalidRequest("messages is empty: a chat needs at least one message", "messages")
        messages = [
            with_text(message, index) if isinstance(message, Mapping) else message
            for index, message in enumerate(messages)
        ]
        open_end = _open_end(messages, add_generation_prompt) if continue_final_message else None
        if open_end is not None:
            messages = [*messages[:-1], {**messages[-1], "content": open_end + _MARK}]
        if self._template is None:
            try:
                self._template = _environment().from_string(self.source)
            except jinja2.TemplateError as error:
                raise ModelUnusable(f"the model's chat template is broken: {error}") from error
        try:
            values = {
                **self._tokens,
                **(variables or {}),
                "messages": [_without_none(plain(message)) for message in messages],
                "add_generation_prompt": add_generation_prompt,
                "tools": None,
                "documents": None,
            }
            prompt = self._template.render(values)
        except InvalidRequest:
            raise
        except Exception as error:
            # A template is a program that computes with what it is given: anything can come out of wrong shapes.
            raise InvalidRequest(f"the model's chat template refuses these messages: {error}", "messages") from error
        return prompt if open_end is None else _up_to_mark(prompt, open_end)


def _open_end(messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool) -> str:
    """The last message's text, which is to be continued."""
    if add_generation_prompt:
        text = "continue_final_message and add_generation_prompt exclude each other: set the latter to False"
        raise InvalidRequest(text, "continue_final_message")
    content = messages[-1].get("content") if isinstance(messages[-1], Mapping) else None
    if not isinstance(content, str):
        text = f"the last message's content is a {type(content).__name__}: only a text can be continued"
        raise InvalidRequest(text, "continue_final_message")
    return content


def _up_to_mark(prompt: str, text: str) -> str:
    """As transformers does it. A template that trims contents has taken the mark's space, and would have trimmed the
    text before the mark as well."""
    place = prompt.rfind(_MARK.strip())
    if place < 0 or text.strip() not in prompt:
        problem = "the model's chat template changes the last message's text, so that it cannot be continued"
        raise InvalidRequest(problem, "continue_final_message")
    return prompt[:place] if prompt[place:].startswith(_MARK) else prompt[:place].rstrip()


def plain(value: Any) -> Any:
    """``value`` rebuilt out of exact JSON types, so that no method of a caller's object is within reach."""
    if value is None or type(value) in (str, int, float, bool):
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, Mapping):
        return {plain(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    raise InvalidRequest(f"a chat message holds a {type(value).__name__}: only JSON data may be", "messages")


def _without_none(message: Any) -> dict[str, Any]:
    """Drop absent fields: templates print a literal "None" for them."""
    if not isinstance(message, dict):
        raise InvalidRequest(f"a chat message is {message!r}: it must be a mapping with role and content", "messages")
    return {key: value for key, value in message.items() if value is not None}


def _environment() -> jinja2.Environment:
    import jinja2
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """``{% generation %}`` marks the assistant's part for training; for prompts it is transparent."""

        tags = {"generation"}  # noqa: RUF012 - jinja2's own protocol

        def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    def raise_exception(message: str) -> None:
        raise jinja2.TemplateError(message)

    def tojson(
        value: Any,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        # jinja2's own filter escapes HTML.
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda layout: datetime.now().strftime(layout)
    return environment
