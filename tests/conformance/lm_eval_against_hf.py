"""lm-eval's ``local-completions`` on our server, against the log-likelihoods of transformers in float32.

``python lm_eval_against_hf.py path/to/lm_eval``: serves SmolLM2 in float32, lets lm-eval run a small multiple-choice
task of its own format on it (token arrays, echo, logprobs, the server's own tokenizer), and computes every
log-likelihood again. Ends with 1 if one differs by 1e-3 or more. ``make conformance`` calls it.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).parents[1]
sys.path += [str(ROOT / "frontend"), str(ROOT / "gpu")]

from server_fixture import ServerThread  # noqa: E402
from test_smollm2_logits import by_transformers  # noqa: E402

from ringcast import AsyncLLM, EngineArgs  # noqa: E402
from ringcast.frontend.model_source import resolve_model  # noqa: E402
from ringcast.frontend.tokenizer import Tokenizer, load_tokenizer  # noqa: E402
from ringcast.gpu import Checkpoint  # noqa: E402

LIMIT = 1e-3
QUESTIONS: list[tuple[str, list[str], int]] = [
    ("The capital of France is", ["Paris", "London", "a fish"], 0),
    ("Two plus two is", ["five", "four", "Thursday"], 1),
    ("Water freezes at", ["zero degrees Celsius", "ninety degrees Celsius"], 0),
    ("Žluťoučký kůň", ["úpěl ďábelské ódy", "is a horse 🐴"], 0),
    ("def add(a, b):\n    return", ["a + b", "a - b", "None"], 0),
    ("The opposite of hot is", ["cold", "warm", "table"], 0),
    ("มนุษย์ทุกคนเกิดมา", ["มีอิสระ", "และเสมอภาคกัน"], 0),
    ("A cat has four", ["legs", "wheels"], 0),
    ("The sun rises in the", ["east", "west", "basement"], 0),
    ("Monday, Tuesday,", ["Wednesday", "Friday"], 0),
    ("The largest planet of the solar system is", ["Jupiter", "Mars", "Pluto"], 0),
    ("Monday, Tuesday, Wednesday, Thursday, Friday, Saturday,", ["Sunday", "Monday"], 0),
]
# One long context: the other questions with their answers.
QUESTIONS.append(
    ("\n\n".join(f"{text} {choices[gold]}" for text, choices, gold in QUESTIONS) + "\n\n1, 2, 3,", ["4", "9"], 0)
)
TASK = """
task: ringcast_small
dataset_path: json
dataset_kwargs:
  data_files:
    test: {data}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{text}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: "{{{{gold}}}}"
metric_list:
  - metric: acc
"""


def main(lm_eval: str) -> int:
    """Run both and compare; the exit status."""
    samples = _by_lm_eval(lm_eval)
    source = resolve_model("smollm2")
    model, tokenizer = by_transformers(Checkpoint.open(source.path)), load_tokenizer(source)
    worst, wrong, count = 0.0, 0, 0
    for sample in samples:
        for request, response in zip(sample["arguments"].values(), sample["filtered_resps"], strict=True):
            expected, is_greedy = _log_likelihood(model, tokenizer, request["arg_0"], request["arg_1"])
            worst = max(worst, abs(float(response[0]) - expected))
            wrong += str(response[1]) != str(is_greedy)
            count += 1
    print(f"{count} log-likelihoods, largest difference {worst:.2e} (limit {LIMIT:g}), {wrong} differ in greediness")
    return int(not (count == sum(len(choices) for _, choices, _ in QUESTIONS) and worst < LIMIT and not wrong))


def _by_lm_eval(lm_eval: str) -> list[dict[str, Any]]:
    """The samples that lm-eval logged, with its requests and what it made of our answers."""
    with tempfile.TemporaryDirectory() as name, ServerThread(_llm(), model="smollm2") as server:
        folder = Path(name)
        documents = [{"text": text, "choices": choices, "gold": gold} for text, choices, gold in QUESTIONS]
        data = folder / "questions.jsonl"
        data.write_text("".join(json.dumps(document) + "\n" for document in documents))
        (folder / "ringcast_small.yaml").write_text(TASK.format(data=data))
        model = f"base_url={server.url}/v1/completions,model=smollm2,tokenizer_backend=remote,num_concurrent=4"
        command = [
            lm_eval, "run", "--model", "local-completions", "--model_args", model, "--tasks", "ringcast_small",
            "--include_path", str(folder), "--log_samples", "--output_path", str(folder / "out"), "--batch_size", "3",
        ]  # fmt: skip
        environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_CACHE": str(folder / "cache")}
        subprocess.run(command, check=True, env=environment)
        (log,) = (folder / "out").rglob("samples_*.jsonl")
        return [json.loads(line) for line in log.read_text().splitlines()]


def _llm() -> AsyncLLM:
    return AsyncLLM(EngineArgs(model="smollm2", dtype="float32", max_num_batched_tokens=64))


def _log_likelihood(model: Any, tokenizer: Tokenizer, context: str, continuation: str) -> tuple[float, bool]:
    """Of the continuation behind the context, split as lm-eval does: at the length of the context's own tokens."""
    whole = tokenizer.encode(context + continuation, add_special_tokens=False)
    start = len(tokenizer.encode(context, add_special_tokens=False))
    with torch.no_grad():
        rows = torch.log_softmax(model(torch.tensor([whole])).logits[0].double(), -1)
    told = [float(rows[index - 1, whole[index]]) for index in range(start, len(whole))]
    greedy = all(int(rows[index - 1].argmax()) == whole[index] for index in range(start, len(whole)))
    return math.fsum(told), greedy


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
