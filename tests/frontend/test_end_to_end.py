"""The whole line on the real model: 12 reference records token for token, the server, the command's bad input."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import psutil
import pytest
from chunk_checker import check_client_stream, check_stream, sse_payloads
from server_fixture import ServerThread
from shared_names import shared_names_of
from tiny_model import write_tiny_model

from ringcast import LLM, AsyncLLM, EngineArgs, LLMEngine, SamplingParams
from ringcast.frontend.builtin_models import BUILTIN_MODELS, find_builtin
from ringcast.frontend.outputs import RequestOutput
from ringcast.frontend.tokenizer import Tokenizer

GREEDY = SamplingParams(temperature=0, max_tokens=48, ignore_eos=True)
Record = dict[str, Any]


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM("smollm2", dtype="float32") as llm:
        yield llm


def _prompts(llm: LLM, records: list[Record]) -> list[str | list[int]]:
    """Text where the record has text; the chats through the template."""
    tokenizer = llm.get_tokenizer()
    return [
        record["prompt"]
        if "prompt" in record
        else tokenizer.encode(tokenizer.render_chat(record["messages"]), add_special_tokens=False)
        for record in records
    ]


def _assert_equal(outputs: list[RequestOutput], records: list[Record]) -> None:
    for output, record in zip(outputs, records, strict=True):
        assert output.prompt_token_ids == record["prompt_token_ids"], record["id"]
        assert output.outputs[0].token_ids == record["token_ids"], record["id"]
        assert output.outputs[0].finish_reason == "length"


def test_the_records_one_by_one(llm: LLM, greedy_records: list[Record]) -> None:
    for record in greedy_records:
        outputs = (
            llm.chat(record["messages"], GREEDY) if "messages" in record else llm.generate(record["prompt"], GREEDY)
        )
        _assert_equal(outputs, [record])


def test_the_records_in_one_batch(llm: LLM, greedy_records: list[Record]) -> None:
    params = SamplingParams(temperature=0, max_tokens=48, ignore_eos=True, skip_special_tokens=False)
    outputs = llm.generate(_prompts(llm, greedy_records), params)
    _assert_equal(outputs, greedy_records)
    assert [output.outputs[0].text for output in outputs] == [record["text"] for record in greedy_records]
    assert llm.statistics().num_preemptions == 0


def test_the_records_with_a_small_budget_and_so_few_blocks_that_preemption_happens(
    greedy_records: list[Record],
) -> None:
    # 1318 + 48 tokens of g08 need 86 blocks of 16; the other eleven need about 60 together.
    with LLM("smollm2", dtype="float32", max_num_batched_tokens=64, num_kv_blocks=90) as llm:
        _assert_equal(llm.generate(_prompts(llm, greedy_records), GREEDY), greedy_records)
        statistics = llm.statistics()
        assert statistics.num_preemptions > 0
        assert statistics.num_free_blocks == statistics.num_blocks == 90


def test_an_answer_ends_at_the_end_token(llm: LLM) -> None:
    message = [{"role": "user", "content": "What is the capital of Japan? Answer in one sentence."}]
    answer = llm.chat(message, SamplingParams(temperature=0, max_tokens=48))[0].outputs[0]
    assert (answer.text, answer.finish_reason, answer.stop_reason) == ("The capital of Japan is Tokyo.", "stop", None)
    assert answer.token_ids[-1] == 2


def test_seeded_answers_do_not_depend_on_the_batch(llm: LLM) -> None:
    params = SamplingParams(temperature=1.0, top_p=0.95, top_k=50, seed=42, max_tokens=12)
    alone = llm.generate("Once upon a time", params)[0].outputs[0]
    unseeded = SamplingParams(temperature=1.0, max_tokens=12)
    mates = llm.generate(["The sea", "Once upon a time", "A dog"], [unseeded, params, unseeded])
    assert mates[1].outputs[0].token_ids == alone.token_ids
    assert alone.seed == 42
    again = llm.generate("The sea", SamplingParams(temperature=1.0, max_tokens=12, seed=mates[0].outputs[0].seed))
    assert again[0].outputs[0].token_ids == mates[0].outputs[0].token_ids


def test_four_answers_are_the_single_runs_with_following_seeds(llm: LLM) -> None:
    together = llm.generate("A dog", SamplingParams(n=4, seed=7, max_tokens=8))[0].outputs
    single = [llm.generate("A dog", SamplingParams(seed=7 + i, max_tokens=8))[0].outputs[0] for i in range(4)]
    assert [answer.token_ids for answer in together] == [answer.token_ids for answer in single]
    assert len({tuple(answer.token_ids) for answer in together}) > 1


@pytest.fixture(scope="module")
def hub_cache(tmp_path_factory: pytest.TempPathFactory, smollm2: Tokenizer) -> Path:
    """A hub cache that holds ringcast-test/tiny, as a download would have left it."""
    cache = tmp_path_factory.mktemp("hub")
    repository = cache / "models--ringcast-test--tiny"
    write_tiny_model(repository / "snapshots" / "0123abcd", smollm2, {"eos_token_id": [0, 2], "top_k": 40})
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("0123abcd")
    return cache


def test_a_hugging_face_folder_is_served_with_its_own_defaults(hub_cache: Path) -> None:
    folder = hub_cache / "models--ringcast-test--tiny" / "snapshots" / "0123abcd"
    with LLM(str(folder)) as llm:
        assert llm.get_default_sampling_params().top_k == 40
        assert llm.get_tokenizer().eos_token_ids == (0, 2)
        outputs = llm.generate(["Hello", "there"], SamplingParams(temperature=0, max_tokens=200, ignore_eos=True))
        lengths = [len(output.prompt_token_ids) + len(output.outputs[0].token_ids) for output in outputs]
        assert lengths == [128, 128]
    tokens = outputs[0].outputs[0].token_ids
    config = folder / "generation_config.json"
    config.write_text(json.dumps({"eos_token_id": [1, tokens[2]]}))
    with LLM(str(folder)) as llm:
        answer = llm.generate("Hello", SamplingParams(temperature=0, max_tokens=200))[0].outputs[0]
        assert answer.finish_reason == "stop", "the second id of the list ends it"
        assert answer.token_ids == tokens[: tokens.index(tokens[2]) + 1]


def test_a_hub_id_is_taken_from_the_hubs_cache_when_offline(hub_cache: Path) -> None:
    command = ["generate", "Hello", "-m", "ringcast-test/tiny", "--max-tokens", "3", "--ignore-eos"]
    result = _ringcast(*command, HF_HUB_CACHE=str(hub_cache), HF_HUB_OFFLINE="1")
    assert result.returncode == 0, result.stderr
    assert result.stderr.startswith("3 tokens, ")
    listed = _ringcast("models", HF_HUB_CACHE=str(hub_cache))
    assert "ringcast-test/tiny\t" in listed.stdout


def test_prompts_at_the_edge_of_the_context() -> None:
    with LLM("smollm2", max_model_len=64) as llm:
        outputs = llm.generate([[5] * 62, [5] * 63], SamplingParams(max_tokens=20, temperature=0, ignore_eos=True))
        assert [len(output.outputs[0].token_ids) for output in outputs] == [2, 1]
        with pytest.raises(ValueError, match="prompt has 64 tokens, but the context holds 64"):
            llm.generate([[5] * 64])


def test_a_script_without_main_guard_works_and_leaves_nothing(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "from ringcast import LLM, SamplingParams\n"
        "print('once')\n"
        "llm = LLM('smollm2')\n"
        "out = llm.generate('The capital of France is', SamplingParams(temperature=0, max_tokens=2))\n"
        "print(out[0].outputs[0].text.split('.')[0])\n"
    )
    result = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=60)
    assert (result.stdout, result.returncode) == ("once\n Paris\n", 0), result.stderr
    assert result.stderr == ""


@pytest.fixture(scope="module")
def server() -> Iterator[ServerThread]:
    with ServerThread(AsyncLLM(EngineArgs(model="smollm2", dtype="float32"))) as server:
        yield server


def test_the_official_client_streams_a_chat(server: ServerThread) -> None:
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none")
    stream = client.chat.completions.create(
        model="smollm2",
        messages=[{"role": "user", "content": "What is the capital of France?"}],
        temperature=0,
        stream=True,
    )
    assert check_client_stream(stream, chat=True).choices[0].text == "The capital of France is Paris."


def test_the_stream_has_one_chunk_per_token_in_order(server: ServerThread, greedy_records: list[Record]) -> None:
    record = greedy_records[0]
    body = {
        "prompt": record["prompt"], "max_tokens": 48, "temperature": 0, "ignore_eos": True, "stream": True,
        "skip_special_tokens": False, "stream_options": {"include_usage": True},
    }  # fmt: skip
    with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=60) as response:
        stream = check_stream(sse_payloads(response.iter_lines()), chat=False, include_usage=True)
    assert stream.choices[0].text == record["text"]
    assert stream.usage == {"prompt_tokens": 5, "completion_tokens": 48, "total_tokens": 53}
    assert stream.num_content_chunks > 24


def _ringcast(*arguments: str, stdin: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ringcast", *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=90,
        env={**os.environ, **environment},
    )


def _assert_one_line(result: subprocess.CompletedProcess[str], *parts: str) -> None:
    assert result.returncode == 1
    assert result.stdout == ""
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("ringcast: ")
    for part in parts:
        assert part in lines[0]


def test_generate_ends_with_a_line_of_figures() -> None:
    result = _ringcast("generate", "The capital of France is", "--max-tokens", "4")
    assert result.returncode == 0, result.stderr
    assert result.stdout == " Paris.\n\n\n"
    assert re.fullmatch(
        r"4 tokens, [\d.]+ tokens/s, first token after [\d.]+ s \(engine ready after [\d.]+ s\), "
        r"\d+ ring messages, 0 overflows\n",
        result.stderr,
    )


def test_chat_answers_one_message_and_names_paris() -> None:
    result = _ringcast("chat", "--once", "What is the capital of France?")
    assert result.returncode == 0, result.stderr
    assert result.stdout == "The capital of France is Paris.\n"


def test_chat_reads_a_conversation_from_a_pipe() -> None:
    result = _ringcast("chat", "--max-tokens", "8", stdin="What is the capital of France?\n\n/clear\nHi\n/exit\n")
    assert (result.returncode, result.stderr) == (0, "")
    first, second = result.stdout.splitlines()
    assert first == "The capital of France is Paris."
    assert second


def test_ctrl_c_while_it_loads_ends_with_130() -> None:
    process = subprocess.Popen([sys.executable, "-m", "ringcast", "generate", "x"], stderr=subprocess.PIPE, text=True)
    time.sleep(0.7)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=20)
    assert (process.returncode, stderr) == (130, "")


def test_generate_reads_stdin() -> None:
    result = _ringcast("generate", "-q", "--max-tokens", "2", stdin="The capital of France is")
    assert (result.stdout, result.stderr, result.returncode) == (" Paris.\n", "", 0)


@pytest.fixture(scope="module")
def corrupt_gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first megabyte of the real file."""
    source = find_builtin(BUILTIN_MODELS["smollm2"])
    assert source is not None
    path = tmp_path_factory.mktemp("corrupt") / "corrupt.gguf"
    with source.open("rb") as file:
        path.write_bytes(file.read(1 << 20))
    return path


@pytest.mark.parametrize("command", [["generate", "x"], ["serve", "--port", "0"], ["chat", "--once", "x"]])
def test_an_unknown_model_is_one_line(command: list[str]) -> None:
    _assert_one_line(_ringcast(*command, "-m", "nosuch"), "unknown model 'nosuch'", "smollm2")
    _assert_one_line(_ringcast(*command, "-m", "./nosuch.gguf"), "no model at './nosuch.gguf'")


@pytest.mark.parametrize("command", [["generate", "x"], ["chat", "--once", "x"]])
def test_a_corrupt_gguf_is_one_line(command: list[str], corrupt_gguf: Path) -> None:
    _assert_one_line(_ringcast(*command, "-m", str(corrupt_gguf)), str(corrupt_gguf), "not a usable GGUF")


def test_a_corrupt_gguf_ends_the_server(corrupt_gguf: Path) -> None:
    result = _ringcast("serve", "--port", "0", "-m", str(corrupt_gguf))
    assert result.returncode == 1
    loading, failed = result.stderr.splitlines()
    assert "loading" in loading
    assert failed.startswith(f"ringcast: {corrupt_gguf}: not a usable GGUF")


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["generate", ""], ["prompt is empty"]),
        (["chat", "--once", " "], ["message is empty"]),
        (["generate", "word " * 100, "--max-model-len", "64"], ["prompt has", "the context holds 64"]),
        (["generate", "x", "--temperature", "-1"], ["temperature is -1.0", "[0, 100]"]),
        (["generate", "x", "--dtype", "int3"], ["dtype is 'int3'"]),
        (["generate", "x", "--max-model-len", "100000"], ["max_model_len is 100000", "use at most 8192"]),
        (["generate", "x", "--num-kv-blocks", "10000000"], ["num_kv_blocks=10000000", "lower num_kv_blocks"]),
        (["generate", "x", "--kv-cache-memory-bytes", "1000"], ["enough for 0"]),
        (["serve", "--block-size", "0"], ["block_size=0"]),
    ],
)
def test_bad_input_is_one_line(arguments: list[str], parts: list[str]) -> None:
    _assert_one_line(_ringcast(*arguments), *parts)


def test_usage_errors_exit_with_2() -> None:
    for arguments in (
        ["nosuch"],
        ["generate", "--nosuch"],
        ["serve", "--port", "99999"],
        ["serve", "--log-level", "x"],
    ):
        result = _ringcast(*arguments)
        assert result.returncode == 2
        assert "Traceback" not in result.stderr


def test_a_port_in_use_is_one_line_before_anything_is_loaded() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        result = _ringcast("serve", "--port", str(port), "-m", "smollm2")
    _assert_one_line(result, f"127.0.0.1:{port}", "in use", "--port")


class Served:
    """``ringcast serve`` in a process of its own, on a free port."""

    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "ringcast", "serve", "--port", "0", *arguments],
            stderr=subprocess.PIPE,
            text=True,
        )
        line = self._line()
        match = re.search(r"http://127\.0\.0\.1:\d+", line)
        assert match is not None, line
        self.url = match[0]

    def wait_ready(self) -> None:
        line = self._line()
        assert "ready: 'smollm2'" in line, line
        self.processes = [psutil.Process(self.process.pid), *psutil.Process(self.process.pid).children(recursive=True)]

    def end(self) -> tuple[int, str]:
        """Exit code and the rest of stderr."""
        assert self.process.stderr is not None
        rest = self.process.stderr.read()
        return self.process.wait(20), rest

    def gone(self, timeout_s: float = 2.0) -> bool:
        _, alive = psutil.wait_procs([p for p in self.processes if p.pid != self.process.pid], timeout_s)
        return not alive

    def shared_names(self) -> list[str]:
        return shared_names_of(process.pid for process in self.processes)

    def _line(self) -> str:
        assert self.process.stderr is not None
        return self.process.stderr.readline()

    def __enter__(self) -> Served:
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        assert self.process.stderr is not None
        self.process.stderr.close()


def _slow_stream(url: str) -> Iterator[str]:
    """The data lines of an answer that goes on for hundreds of tokens."""
    body = {"prompt": "Once", "max_tokens": 2000, "temperature": 0, "ignore_eos": True, "stream": True}
    with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=60) as response:
        for line in response.iter_lines():
            if line:
                yield line


def test_an_engine_driven_step_by_step_gives_the_reference_tokens(greedy_records: list[Record]) -> None:
    records = [record for record in greedy_records if "prompt" in record][:4]
    args = EngineArgs(model="smollm2", dtype="float32", max_model_len=1024)
    results = {}
    with LLMEngine.from_engine_args(args) as engine:
        for record in records:
            engine.add_request(record["id"], record["prompt"], GREEDY)
        while engine.has_unfinished_requests():
            results |= {output.request_id: output for output in engine.step()}
    _assert_equal([results[record["id"]] for record in records], records)


def test_serve_has_three_processes_one_port_and_ends_in_order() -> None:
    with Served() as served:
        assert httpx.get(f"{served.url}/health").status_code in (200, 503)
        served.wait_ready()
        assert httpx.get(f"{served.url}/health").status_code == 200
        assert len(served.processes) == 3
        titles = [" ".join(process.cmdline()) for process in served.processes]
        assert "serve smollm2" in titles[0]
        assert sorted(name for name in ("worker-0", "engine-core") if any(name in title for title in titles[1:])) == [
            "engine-core",
            "worker-0",
        ]
        listening = [
            connection
            for process in served.processes
            for connection in process.net_connections()
            if connection.status == psutil.CONN_LISTEN
        ]
        assert [connection.laddr.port for connection in listening] == [int(served.url.rsplit(":", 1)[1])]
        assert served.shared_names() == []
        served.process.send_signal(signal.SIGTERM)
        code, rest = served.end()
        assert (code, rest.splitlines()[-1]) == (0, "ringcast: stopped")
        assert "Traceback" not in rest
        assert served.gone()
    assert served.shared_names() == []


def test_sigterm_lets_a_running_answer_finish_and_a_second_one_does_not_wait() -> None:
    with Served("--drain-timeout", "30") as served:
        served.wait_ready()
        lines = _slow_stream(served.url)
        next(lines)
        served.process.send_signal(signal.SIGTERM)
        assert next(lines)
        time.sleep(0.3)
        assert served.process.poll() is None, "it waits for the running answer"
        served.process.send_signal(signal.SIGTERM)
        assert served.process.wait(10) == 128 + signal.SIGTERM, "well before the drain time"
        assert served.gone()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_it_loads_ends_it_quietly(number: signal.Signals) -> None:
    with Served() as served:
        time.sleep(0.4)
        served.processes = psutil.Process(served.process.pid).children(recursive=True)
        served.process.send_signal(number)
        code, rest = served.end()
        assert code == 0
        assert "Traceback" not in rest
        assert served.gone()


def test_the_death_of_the_server_takes_everything_with_it() -> None:
    with Served() as served:
        served.wait_ready()
        lines = _slow_stream(served.url)
        next(lines)
        served.process.kill()
        assert served.gone(2.0)
    assert served.shared_names() == []
