"""transformers: one padded batch, as `generate` runs it."""

from __future__ import annotations

import sys

import torch
import transformers
from driver_loop import serve


def main(model_path: str, threads: int) -> None:
    torch.set_num_threads(threads)
    model = transformers.AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.bfloat16).eval()

    def run(prompts: list[list[int]], new_tokens: int) -> int:
        ids = torch.tensor(prompts)  # all prompts of a task are equally long
        options = {"max_new_tokens": new_tokens, "min_new_tokens": new_tokens, "do_sample": False, "pad_token_id": 0}
        with torch.inference_mode():
            out = model.generate(ids, attention_mask=torch.ones_like(ids), **options)
        return int((out.shape[1] - ids.shape[1]) * len(prompts))

    serve(run, {"transformers": transformers.__version__, "torch": torch.__version__})


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
