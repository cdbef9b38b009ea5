"""Commands whose standard streams are closed, full, ASCII, or pipes that nobody reads; a user without a home."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from tiny_model import write_tiny_model

from ringcast.frontend.cli.streams import StatusStream
from ringcast.frontend.tokenizer import Tokenizer
from ringcast.gpu import cache
from ringcast.gpu.errors import CacheFolderError

RINGCAST = [sys.executable, "-m", "ringcast"]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory, smollm2: Tokenizer) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    write_tiny_model(folder, smollm2, {"eos_token_id": [0, 2]})
    return folder


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """2,000 of them: their answers do not fit into a pipe."""
    path = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
    path.write_text("".join(json.dumps({"prompt": "word " * 20}) + "\n" for _ in range(2000)))
    return path


def _shell(line: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """By bash, since what is tried is what shells make of streams. $R is the command."""
    variables = {**os.environ, "R": " ".join(RINGCAST), **environment}
    return subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=90, env=variables)


def test_a_reader_that_has_seen_enough_ends_a_command_quietly(tiny: Path, prompts: Path) -> None:
    """C44: it was an internal error, an ExceptionGroup."""
    line = f"$R generate -m {tiny} --jsonl -f {prompts} --max-tokens 1 -q | head -1; echo ${{PIPESTATUS[0]}}"
    result = _shell(line)
    first, code = result.stdout.splitlines()
    assert json.loads(first)["index"] == 0
    assert (code, result.stderr) == ("141", "")


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_short_result_that_nobody_reads_is_told_by_the_code_too(unbuffered: str) -> None:
    """C44: it is written when the command ends, or at once."""
    result = _shell("(sleep 0.2; $R version; echo $? >&2) | true", PYTHONUNBUFFERED=unbuffered)
    assert result.stderr == "141\n"


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("generate Hi -m {tiny} --max-tokens 2 -q > /dev/full", "cannot write the result: No space left on device"),
        ("version > /dev/full", "cannot write the result: No space left on device"),
        ("generate Hi -m {tiny} --max-tokens 2 >&- <&-", "standard output is closed"),
        ("chat --once Hi -m {tiny} >&-", "standard output is closed"),
    ],
)
def test_a_result_that_cannot_be_written_is_one_line(tiny: Path, command: str, said: str) -> None:
    """C44: closed stdout was an abort."""
    result = _shell(f"$R {command.format(tiny=tiny)}")
    assert result.returncode == 1, result.stderr
    assert len(result.stderr.splitlines()) == 1, result.stderr
    assert said in result.stderr


@pytest.mark.parametrize("closed", ["<&- 2>&-", "2> /dev/full"])
def test_an_answer_needs_no_stderr(tiny: Path, closed: str) -> None:
    """B2, C44: the line of figures is lost, and nothing else."""
    result = _shell(f"$R generate Hi -m {tiny} --max-tokens 2 --ignore-eos {closed}")
    assert result.returncode == 0
    assert result.stdout


@pytest.mark.parametrize("encoding", ["ascii", "utf-8"])
def test_what_stdout_has_no_code_for_is_escaped(tiny: Path, tmp_path: Path, encoding: str) -> None:
    """C44: half of a surrogate pair in a prompt, and text beyond ASCII."""
    path = tmp_path / "odd.jsonl"
    path.write_text('{"prompt": "a\\ud800"}\n{"prompt": "é"}\n')
    for output in ("", f"-o {tmp_path / 'out'}"):
        line = f"$R generate --jsonl -f {path} -m {tiny} --max-tokens 3 {output}"
        result = _shell(line, PYTHONIOENCODING=encoding)
        assert result.returncode == 1
        text = (tmp_path / "out").read_text(encoding="utf-8") if output else result.stdout
        refused, answered = map(json.loads, text.splitlines())
        assert "half of a surrogate pair" in refused["error"]
        assert (refused["prompt"], answered["prompt"]) == ("a\ud800", "é")
        assert "Traceback" not in result.stderr


def _serve(tiny: Path, stderr: int, *options: str) -> tuple[subprocess.Popen[bytes], str]:
    """A server, and its URL, which it tells nobody here."""
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen([*RINGCAST, "serve", "-m", str(tiny), "--port", str(port), *options], stderr=stderr)
    return process, f"http://127.0.0.1:{port}"


def _wait_ready(process: subprocess.Popen[bytes], url: str) -> None:
    for _ in range(600):
        assert process.poll() is None
        try:
            if httpx.get(f"{url}/health").status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.1)
    raise AssertionError("it did not become ready")


@pytest.fixture(params=["reader gone", "full", "closed"])
def unusable(request: pytest.FixtureRequest) -> Iterator[int]:
    """The writing end of a pipe that takes nothing; or a closed descriptor."""
    reader, writer = os.pipe()
    if request.param == "full":
        os.set_blocking(writer, False)
        with pytest.raises(BlockingIOError):
            while True:
                os.write(writer, b"x" * 4096)
        os.set_blocking(writer, True)
    else:
        os.close(reader)
    yield writer
    os.close(writer)
    if request.param == "full":
        os.close(reader)


def test_status_that_cannot_be_written_stops_no_start_and_no_stop(tiny: Path, unusable: int) -> None:
    """B2: the print at the start made it fail, the one of the signal lost SIGTERM."""
    process, url = _serve(tiny, unusable, "--access-log")
    try:
        _wait_ready(process, url)
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.wait()


def test_what_was_dropped_is_counted() -> None:
    """B2: and told by the next line that can be written."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with pytest.raises(BlockingIOError):
        while True:
            os.write(writer, b"x" * 4096)
    stream = StatusStream(writer)
    print("lost", file=stream)
    while len(os.read(reader, 1 << 20)) == 1 << 20:
        pass
    stream.write("kept\n")
    said = os.read(reader, 1 << 20).decode()
    os.close(writer)
    os.close(reader)
    assert re.fullmatch(r"ringcast: nobody read stderr: 2 writes were dropped\nkept\n", said)


def test_a_drain_whose_time_is_up_ends_with_0_and_its_streams_with_an_error(tiny: Path) -> None:
    """B1: it was 1, and "the engine was closed"."""
    process, url = _serve(tiny, subprocess.PIPE, "--drain-timeout", "0.2", "--max-num-seqs", "1")
    try:
        _wait_ready(process, url)
        body = {"prompt": ["Once"] * 900, "max_tokens": 100, "ignore_eos": True, "stream": True}
        with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=60) as response:
            lines = (line for line in response.iter_lines() if line)
            next(lines)
            process.send_signal(signal.SIGTERM)
            *_, last = lines
        assert (
            "the engine was closed while the request ran" in json.loads(last.removeprefix("data: "))["error"]["message"]
        )
        assert process.stderr is not None
        said = process.stderr.read().decode()
        assert process.wait(20) == 0, said
        assert said.splitlines()[-1] == "ringcast: stopped"
    finally:
        process.kill()
        process.wait()


def test_an_llm_that_is_used_while_the_interpreter_ends_says_so(tiny: Path, tmp_path: Path) -> None:
    """C47: it was a traceback about futures."""
    script = tmp_path / "script.py"
    script.write_text(
        "import atexit\n"
        "from ringcast import LLM, SamplingParams\n"
        "from ringcast.frontend.errors import EngineNotReady\n"
        f"llm = LLM({str(tiny)!r})\n"
        "def late():\n"
        "    for use in (lambda: llm.generate('Hi', SamplingParams(max_tokens=2)), lambda: LLM('smollm2')):\n"
        "        try:\n"
        "            use()\n"
        "        except EngineNotReady as error:\n"
        "            print(error)\n"
        "atexit.register(late)\n"
    )
    result = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=60)
    assert (result.returncode, result.stderr) == (0, "")
    assert [line.partition(":")[0] for line in result.stdout.splitlines()] == ["the program is ending"] * 2


@pytest.fixture
def homeless(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """No home folder, and a folder for temporary files."""

    def nobody(self: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    for name in ("RINGCAST_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "expanduser", nobody)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    cache._temporary.cache_clear()
    yield tmp_path / f"ringcast-{os.getuid()}"
    cache._temporary.cache_clear()


def test_a_user_without_a_home_has_a_private_temporary_cache(homeless: Path, caplog: pytest.LogCaptureFixture) -> None:
    """C37: it was an internal error."""
    assert cache.cache_folder() == cache.cache_folder() == homeless
    assert homeless.stat().st_mode & 0o777 == 0o700
    assert len(caplog.messages) == 1
    assert "RINGCAST_CACHE" in caplog.messages[0]


def test_a_temporary_cache_that_others_could_write_is_refused(homeless: Path) -> None:
    """C37: somebody may have put it there."""
    homeless.mkdir()
    homeless.chmod(0o777)
    with pytest.raises(CacheFolderError, match="set RINGCAST_CACHE to a folder"):
        cache.cache_folder()
    homeless.rmdir()
    homeless.symlink_to("/tmp")
    with pytest.raises(CacheFolderError, match="set RINGCAST_CACHE to a folder"):
        cache.cache_folder()
