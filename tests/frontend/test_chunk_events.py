"""The short way from a bit of text to an event gives the bytes of the long way, whatever the text is."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringcast.frontend.outputs import CompletionOutput
from ringcast.frontend.server.chunks import ChunkWriter, Envelope, Style
from ringcast.frontend.server.sse import event

TEXTS = st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=8), min_size=1, max_size=5)


def _output(index: int, text: str, reason: str | None = None) -> CompletionOutput:
    return CompletionOutput(index, text, [7], reason, None, 0)  # type: ignore[arg-type]


@pytest.mark.parametrize("usage", [False, True])
@pytest.mark.parametrize("chat", [False, True])
@given(texts=TEXTS, model=st.sampled_from(["smollm2", 'a"b', 'x\0"\0"', "žluť"]))
def test_events_are_the_chunks(chat: bool, usage: bool, texts: list[str], model: str) -> None:
    envelope = Envelope("text_completion", model, "cmpl")
    short, long = (ChunkWriter(envelope, Style(chat=chat), usage=usage) for _ in range(2))
    for number, text in enumerate([*texts, '"\\\n\0', "last"]):
        for index in (0, 1):
            output = _output(index, text, "stop" if text == "last" else None)
            told = list(short.events(output, index))
            assert told == [event(chunk) for chunk in long.chunks(output, index)]
            if number and text:
                choice = json.loads(told[0][len(b"data: ") :])["choices"][0]
                assert choice["index"] == index
                assert (choice["delta"]["content"] if chat else choice["text"]) == text
