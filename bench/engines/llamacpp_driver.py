"""llama.cpp through llama-cpp-python: one sequence, the GGUF file as it is."""

from __future__ import annotations

import sys

import llama_cpp
from driver_loop import serve


def main(model: str, threads: int) -> None:
    llama = llama_cpp.Llama(model, n_ctx=2048, n_threads=threads, n_threads_batch=threads, n_batch=512, verbose=False)

    def run(prompts: list[list[int]], new_tokens: int) -> int:
        (ids,) = prompts
        llama.reset()
        generated = 0
        for _ in llama.generate(ids, temp=0.0, reset=False):
            generated += 1
            if generated == new_tokens:
                break
        return generated

    serve(run, {"llama_cpp": llama_cpp.__version__})


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
