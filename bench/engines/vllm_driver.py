"""vLLM's CPU backend through its `LLM`; token ids in, no text out."""

from __future__ import annotations

import os
import sys

from driver_loop import serve

os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
os.environ.setdefault("HF_HUB_OFFLINE", "1")


def main(model: str, threads: int) -> None:
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    import vllm

    llm = vllm.LLM(model, dtype="bfloat16", max_model_len=2048, max_num_seqs=64, skip_tokenizer_init=True)

    def run(prompts: list[list[int]], new_tokens: int) -> int:
        params = vllm.SamplingParams(temperature=0.0, max_tokens=new_tokens, ignore_eos=True, detokenize=False)
        outputs = llm.generate([{"prompt_token_ids": ids} for ids in prompts], params, use_tqdm=False)
        return sum(len(output.outputs[0].token_ids) for output in outputs)

    serve(run, {"vllm": vllm.__version__})


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
