"""ringcast through the public `LLM`: the engine, its rings and its processes are part of what is measured."""

from __future__ import annotations

import sys

from driver_loop import serve

import ringcast


def main(model: str, threads: int, quantization: str) -> None:
    with ringcast.LLM(model, num_threads=threads, quantization=quantization, max_model_len=2048) as llm:

        def run(prompts: list[list[int]], new_tokens: int) -> int:
            params = ringcast.SamplingParams(temperature=0.0, max_tokens=new_tokens, ignore_eos=True)
            outputs = llm.generate(prompts, params, use_tqdm=False)
            return sum(len(output.outputs[0].token_ids) for output in outputs)

        serve(run, {})


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
