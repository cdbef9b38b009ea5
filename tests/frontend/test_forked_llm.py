"""An `LLM` in a process that was forked from its owner's, and one in a program without standard streams."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from ringcast.frontend.async_llm import AsyncLLM
from ringcast.frontend.engine_args import EngineArgs
from ringcast.frontend.errors import EngineStartFailed
from ringcast.frontend.llm import LLM

BEGIN = """
    import os, sys
    sys.path.append(sys.argv[1])
    from frontend_fakes import FakeEngine
    from ringcast.frontend.async_llm import AsyncLLM
    from ringcast.frontend.engine_args import EngineArgs
    from ringcast.frontend.errors import EngineNotReady
    from ringcast.frontend.llm import LLM
    from ringcast.frontend.model_source import resolve_model
    from ringcast.frontend.sampling_params import SamplingParams
    from ringcast.frontend.tokenizer import load_tokenizer

    def new_llm():
        tokenizer = load_tokenizer(resolve_model("smollm2"))
        return LLM.from_async_llm(AsyncLLM.from_parts(EngineArgs(), FakeEngine(), tokenizer))
"""
PRELOADER = """
    llm = new_llm()
    pid = os.fork()
    if pid == 0:
        for use in (lambda: llm.generate("a"), llm.statistics, llm.chat):
            try:
                use([{"role": "user", "content": "hi"}]) if use == llm.chat else use()
            except EngineNotReady as error:
                assert "was forked" in str(error), error
            else:
                raise AssertionError("it can be used")
        if sys.argv[2] == "close":
            llm.close()
        elif sys.argv[2] == "delete":
            del llm
        sys.exit(3)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3
    assert llm.generate("a", SamplingParams(max_tokens=1), use_tqdm=False)[0].finished
    llm.close()
    print("well")
"""
DAEMON = """
    for fd in (0, 1, 2):
        os.close(fd)
    sys.stdin = sys.stdout = sys.stderr = None
    llm = new_llm()
    if llm.generate("a", SamplingParams(max_tokens=1), use_tqdm=False)[0].finished:
        llm.close()
        os._exit(5)
"""


def run(tmp_path: Path, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    script = tmp_path / "program.py"
    script.write_text(textwrap.dedent(BEGIN) + textwrap.dedent(program))
    command = [sys.executable, str(script), os.path.dirname(__file__), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=100)


def test_an_llm_in_a_forked_process_refuses_and_goes_silently(tmp_path: Path) -> None:
    """C38: closing, deleting or leaving it there touches nothing of the parent's."""
    for way in ("close", "delete", "leave"):
        ended = run(tmp_path, PRELOADER, way)
        assert (ended.returncode, ended.stdout, ended.stderr) == (0, "well\n", ""), way


def test_an_llm_in_a_daemon_without_standard_streams(tmp_path: Path) -> None:
    """C30: the event loop would get a standard stream's number, and abort."""
    assert run(tmp_path, DAEMON).returncode == 5


def test_an_llm_without_a_thread_names_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """C45: in one line, with the remedy."""

    def no_thread(self: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("threading.Thread.start", no_thread)
    with pytest.raises(EngineStartFailed, match="limit of processes and threads is used up.*ulimit -u"):
        LLM.from_async_llm(AsyncLLM(EngineArgs()))
