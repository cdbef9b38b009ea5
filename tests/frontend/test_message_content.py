"""Contents that are lists of text parts: one rule for the server, the library and the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ringcast.frontend.async_llm import AsyncLLM
from ringcast.frontend.cli.prompts import read_prompts
from ringcast.frontend.errors import InvalidRequest
from ringcast.frontend.server.protocol import ChatCompletionRequest, plain_messages

PARTS = [{"type": "text", "text": "a"}, {"type": "text", "text": "b {{ x }}"}]


def chat(content: Any, role: str = "user") -> list[dict[str, Any]]:
    return [{"role": "system", "content": "s"}, {"role": role, "content": content}]


async def test_text_parts_are_one_text_on_every_way(llm: AsyncLLM, tmp_path: Path) -> None:
    """C22: the library and ``generate --jsonl`` gave the template the list."""
    expected = await llm.encode_chat(chat("a\nb {{ x }}"))
    assert expected.text is not None and "a\nb {{ x }}<|im_end|>" in expected.text
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"messages": ' + str(chat(PARTS)).replace("'", '"') + "}\n")
    (from_file,) = read_prompts(None, file, jsonl=True)
    assert isinstance(from_file, list)
    from_server = plain_messages(ChatCompletionRequest.model_validate({"messages": chat(PARTS)}).messages)
    for messages in (chat(PARTS), chat(tuple(PARTS)), from_file, from_server):
        assert (await llm.encode_chat(messages)).token_ids == expected.token_ids
    open_end = await llm.encode_chat(chat(PARTS, "assistant"), add_generation_prompt=False, continue_final_message=True)
    assert open_end.text is not None and open_end.text.endswith("a\nb {{ x }}")


@pytest.mark.parametrize(
    ("content", "said", "param"),
    [
        ([{"type": "image_url", "image_url": {"url": "x"}}], "not supported yet", "messages[1].content[0].type"),
        ([*PARTS, {"type": "text"}], "must be a string", "messages[1].content[2].text"),
        (["a"], "must be a part", "messages[1].content[0]"),
    ],
)
async def test_other_parts_are_refused_by_their_place(llm: AsyncLLM, content: Any, said: str, param: str) -> None:
    """C22"""
    with pytest.raises(InvalidRequest, match=said) as caught:
        await llm.encode_chat(chat(content))
    assert caught.value.param == param
