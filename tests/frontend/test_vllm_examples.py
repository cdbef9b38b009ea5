"""vLLM's first examples, as its documentation shows them, run with the import or the URL changed and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from frontend_fakes import FakeEngine
from server_fixture import ServerThread
from tiny_model import write_tiny_model

from ringcast.frontend.async_llm import AsyncLLM
from ringcast.frontend.engine_args import EngineArgs
from ringcast.frontend.tokenizer import Tokenizer

OFFLINE = """
from vllm import LLM, SamplingParams

# Sample prompts.
prompts = [
    "Hello, my name is",
    "The president of the United States is",
    "The capital of France is",
    "The future of AI is",
]
# Create a sampling params object.
sampling_params = SamplingParams(temperature=0.8, top_p=0.95)


def main():
    # Create an LLM.
    llm = LLM(model="facebook/opt-125m")
    # Generate texts from the prompts.
    outputs = llm.generate(prompts, sampling_params)
    print("\\nGenerated Outputs:\\n" + "-" * 60)
    for output in outputs:
        prompt = output.prompt
        generated_text = output.outputs[0].text
        print(f"Prompt:    {prompt!r}")
        print(f"Output:    {generated_text!r}")
        print("-" * 60)


if __name__ == "__main__":
    main()
"""
CLIENT = """
from openai import OpenAI

openai_api_key = "EMPTY"
openai_api_base = "http://localhost:8000/v1"

client = OpenAI(
    api_key=openai_api_key,
    base_url=openai_api_base,
)

completion = client.completions.create(
    model="Qwen/Qwen2.5-1.5B-Instruct",
    prompt="San Francisco is a",
)
print("Completion result:", completion)

chat_response = client.chat.completions.create(
    model="Qwen/Qwen2.5-1.5B-Instruct",
    messages=[
        {"role": "system", "content": "You are a helpful assistant."},
        {"role": "user", "content": "Tell me a joke."},
    ],
)
print("Chat response:", chat_response)
"""


def test_the_offline_example(tmp_path: Path, smollm2: Tokenizer) -> None:
    repository = tmp_path / "hub" / "models--facebook--opt-125m"  # as a download leaves it; the weights are random
    write_tiny_model(repository / "snapshots" / "0123abcd", smollm2, {"eos_token_id": 2})
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("0123abcd")
    script = tmp_path / "basic.py"
    script.write_text(OFFLINE.replace("from vllm import", "from ringcast import"))
    environment = {**os.environ, "HF_HUB_CACHE": str(tmp_path / "hub"), "HF_HUB_OFFLINE": "1"}
    result = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=90, env=environment)
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert [line for line in lines if line.startswith("Prompt:")] == [
        "Prompt:    'Hello, my name is'",
        "Prompt:    'The president of the United States is'",
        "Prompt:    'The capital of France is'",
        "Prompt:    'The future of AI is'",
    ]
    assert all(len(line) > len("Output:    ''") for line in lines if line.startswith("Output:"))


def test_the_client_example(smollm2: Tokenizer, capsys: pytest.CaptureFixture[str]) -> None:
    engine = FakeEngine(script=lambda request: [*smollm2.encode("city by the sea"), 2])
    llm = AsyncLLM.from_parts(EngineArgs(), engine, smollm2)
    with ServerThread(llm, model="Qwen/Qwen2.5-1.5B-Instruct") as server:
        exec(CLIENT.replace("http://localhost:8000", server.url), {})
    completion, chat = capsys.readouterr().out.splitlines()
    assert completion.startswith("Completion result: Completion(id='cmpl-")
    assert "text='city by the sea'" in completion
    assert chat.startswith("Chat response: ChatCompletion(id='chatcmpl-")
    assert "content='city by the sea'" in chat
