"""The command line without an engine: options, defaults, messages about what is missing, the chat's memory."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import typer
from frontend_fakes import FakeEngine
from typer.testing import CliRunner

import ringcast
from ringcast.frontend.async_llm import AsyncLLM
from ringcast.frontend.cli import chat as chat_command
from ringcast.frontend.cli import main, options
from ringcast.frontend.cli.options import SamplingOptions
from ringcast.frontend.cli.paths import PathUnusable, check_readable, check_writable
from ringcast.frontend.cli.prompts import read_prompts
from ringcast.frontend.cli.requirements import missing, missing_line
from ringcast.frontend.cli.session import Answer
from ringcast.frontend.engine_args import EngineArgs
from ringcast.frontend.engine_client import RingFigures
from ringcast.frontend.errors import InvalidRequest
from ringcast.frontend.outputs import RequestMetrics
from ringcast.frontend.sampling_params import SamplingParams
from ringcast.frontend.server.settings import ServerSettings
from ringcast.frontend.tokenizer import Tokenizer


def test_every_engine_argument_and_sampling_option_is_an_option() -> None:
    assert set(options._ENGINE) == {item.name for item in fields(EngineArgs)}
    assert set(options._SAMPLING) == {item.name for item in fields(SamplingOptions)}


def test_options_become_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []
    monkeypatch.setattr("ringcast.frontend.cli.generate.generate", lambda *args, **_: given.extend(args))
    command = ["generate", "Hi", "-m", "./x.gguf", "--max-num-seqs", "3", "--stop", "a", "--stop", "b", "--seed", "5"]
    result = CliRunner().invoke(main.app, command)
    assert result.exit_code == 0, result.output
    prompt, args, sampling, quiet = given
    assert (prompt, quiet) == ("Hi", False)
    assert args == EngineArgs(model="./x.gguf", max_num_seqs=3)
    assert sampling == SamplingOptions(stop=["a", "b"], seed=5)


def test_server_options_become_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}
    monkeypatch.setattr("ringcast.frontend.cli.serve.serve", lambda args, **more: given.update(more))
    monkeypatch.setenv("RINGCAST_API_KEY", "from-env")
    result = CliRunner().invoke(main.app, ["serve", "--request-timeout", "5", "--allowed-origin", "https://a.example"])
    assert result.exit_code == 0, result.output
    assert given["settings"] == ServerSettings(
        api_keys=("from-env",), allowed_origins=("https://a.example",), request_timeout_s=5.0
    )
    CliRunner().invoke(main.app, ["serve", "--api-key", "a", "--api-key", "b", "--max-concurrent-requests", "0"])
    assert given["settings"] == ServerSettings(api_keys=("a", "b"), max_concurrent_requests=None)
    refused = CliRunner().invoke(main.app, ["serve", "--allowed-origin", "*", "--allow-credentials"])
    assert refused.exit_code == 1
    assert "allow_credentials needs allowed_origins" in refused.output


@pytest.fixture
def generated(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What `generate` is called with: arguments by position, then by name."""
    given: list[Any] = []
    monkeypatch.setattr("ringcast.frontend.cli.generate.generate", lambda *args, **named: given.extend([*args, named]))
    return given


def test_every_option_has_a_variable_of_one_prefix() -> None:
    command = typer.main.get_command(main.app)
    for name, sub in command.commands.items():  # type: ignore[attr-defined]
        for option in sub.params:
            if isinstance(option, typer.core.TyperOption) and option.name != "help":
                assert option.envvar == f"RINGCAST_{option.name.upper()}", (name, option.name)


def test_command_line_environment_file_default_in_that_order(generated: list[Any], tmp_path: Path) -> None:
    config = tmp_path / "c.yaml"
    config.write_text(
        "model: ./file.gguf\nmax-num-seqs: 5\nblock_size: 32\nseed: 7\nenable-prefix-caching: false\n"
        "generate:\n  stop: [a b, c]\n  max-tokens: 3\nserve:\n  port: 1\n"
    )
    result = CliRunner().invoke(
        main.app,
        ["generate", "Hi", "--config", str(config), "--block-size", "48"],
        env={"RINGCAST_MAX_NUM_SEQS": "4", "RINGCAST_BLOCK_SIZE": "64", "RINGCAST_TOP_K": "2"},
    )
    assert result.exit_code == 0, result.output
    _, args, sampling, *_ = generated
    assert args == EngineArgs(model="./file.gguf", max_num_seqs=4, block_size=48, enable_prefix_caching=False)
    assert sampling == SamplingOptions(stop=["a b", "c"], seed=7, top_k=2, max_tokens=3)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("modell: x", "generate has no option 'modell'"),
        ("prompt: x", "generate has no option 'prompt'"),
        ("port: 80", "generate has no option 'port'"),
        ("max-num-seqs: many", "--max-num-seqs"),
        ("- model", "holds no options"),
        ("generate: 5", "below 'generate' there must be options"),
        ("a: [", "is not YAML"),
    ],
)
def test_a_wrong_config_is_refused_by_name(generated: list[Any], tmp_path: Path, text: str, said: str) -> None:
    config = tmp_path / "c.yaml"
    config.write_text(text)
    result = CliRunner().invoke(main.app, ["generate", "Hi", "-c", str(config)], env={"COLUMNS": "400"})
    assert result.exit_code == 2
    assert said in result.output
    assert generated == []


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("/nowhere.yaml", "there is no such file"),
        ("/", "it is a folder"),
        ("/proc/self/mem", "Input/output error"),
    ],
)
def test_a_config_that_cannot_be_read_is_told(generated: list[Any], path: str, why: str) -> None:
    result = CliRunner().invoke(main.app, ["generate", "Hi", "-c", path], env={"COLUMNS": "400"})
    assert result.exit_code == 2
    assert f"cannot read {path}: {why}" in result.output


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            ["Hi", "--output", "/no/such/folder/x"],
            "cannot write /no/such/folder/x: there is no folder /no/such/folder; ",
        ),
        (["Hi", "--output", "/proc/version/x"], "cannot write /proc/version/x: there is no folder /proc/version; "),
        (["Hi", "--output", "/tmp"], "cannot write /tmp: it is a folder; "),
        (["--output", "/no/such/x"], "cannot write /no/such/x: "),  # before stdin is read
        (["--file", "/no/such/file"], "cannot read /no/such/file: there is no such file; "),
        (["--file", "/tmp"], "cannot read /tmp: it is a folder; "),
        (["Hi", "--output", "/proc/x"], "/proc/x: No such file or directory"),  # nothing says so before it is tried
    ],
)
def test_a_path_that_cannot_be_used_is_one_line_before_anything_is_loaded(options: list[str], said: str) -> None:
    result = CliRunner().invoke(main.app, ["generate", "-m", "nosuch", *options])
    assert result.exit_code == 1
    assert result.output.startswith(f"ringcast: {said}")
    assert result.output.count("\n") == 1


def test_a_file_is_replaced_only_when_there_is_an_engine(tmp_path: Path, fake_engines: list[FakeEngine]) -> None:
    file = tmp_path / "out"
    file.write_text("answers that took a night")
    for wrong in (["-m", "./nosuch.gguf"], ["--max-tokens", "0"]):
        assert CliRunner().invoke(main.app, ["generate", "Hi", "-o", str(file), *wrong]).exit_code == 1
        assert file.read_text() == "answers that took a night"
    command = ["generate", "river stone", "-q", "--max-tokens", "2", "-o"]
    assert CliRunner().invoke(main.app, [*command, str(file)]).exit_code == 0
    assert file.read_text() == "river stone\n"
    assert CliRunner().invoke(main.app, [*command, "/dev/null"]).exit_code == 0


def test_a_path_that_may_not_be_used_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As somebody who is not root, to whom nothing is forbidden."""
    file = tmp_path / "file"
    file.write_text("kept")
    monkeypatch.setattr("os.access", lambda *_: False)
    for path in (file, tmp_path / "new"):
        with pytest.raises(PathUnusable, match=f"cannot write {path}: you may not; change the permissions"):
            check_writable(path, "--output")
    with pytest.raises(PathUnusable, match=f"cannot read {file}: you may not"):
        check_readable(file, "--file")
    assert file.read_text() == "kept"


def test_prompts_come_from_argument_file_or_stdin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "p.jsonl"
    chat = [{"role": "user", "content": "Hi"}]
    file.write_text(f'{{"prompt": "one\u2028"}}\n\n{json.dumps({"messages": chat})}\n"three"\n')
    assert read_prompts("Hi", None, jsonl=False) == ["Hi"]
    assert read_prompts(None, file, jsonl=False) == [file.read_text()]
    assert read_prompts(None, file, jsonl=True) == ["one\u2028", chat, "three"]
    monkeypatch.setattr("sys.stdin", io.StringIO('{"prompt": "piped"}'))
    assert read_prompts("-", None, jsonl=True) == ["piped"]


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ('{"prompt": "a"}\n{nope', "line 2 is not JSON"),
        ('{"prompt": 5}', "line 1: give"),
        ('{"messages": []}', "line 1: give"),
        ("[1, 2]", "line 1: give"),
        ("\n", "has no prompts"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, lines: str, said: str) -> None:
    file = tmp_path / "p.jsonl"
    file.write_text(lines)
    with pytest.raises(InvalidRequest, match=said):
        read_prompts(None, file, jsonl=True)


@pytest.fixture
def fake_engines(monkeypatch: pytest.MonkeyPatch, smollm2: Tokenizer) -> list[FakeEngine]:
    """What commands ran instead of a model: each says the prompt again."""
    engines: list[FakeEngine] = []

    def make(args: EngineArgs) -> AsyncLLM:
        engines.append(FakeEngine())
        return AsyncLLM.from_parts(args, engines[-1], smollm2)

    monkeypatch.setattr("ringcast.frontend.cli.session.AsyncLLM", make)
    return engines


def test_many_prompts_are_answered_in_their_order_and_a_refused_one_is_told(
    tmp_path: Path, fake_engines: list[FakeEngine]
) -> None:
    prompts = ["river stone market", "too long " * 60, "winter", *(f"letter {number}" for number in range(20))]
    (tmp_path / "in").write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts))
    command = ["generate", "--jsonl", "-f", str(tmp_path / "in"), "-o", str(tmp_path / "out"), "--max-tokens", "3"]
    result = CliRunner().invoke(main.app, command)
    lines = [json.loads(line) for line in (tmp_path / "out").read_text().splitlines()]
    assert [line["index"] for line in lines] == list(range(len(prompts)))
    assert [line["prompt"] for line in lines] == prompts
    assert "but the context holds 64" in lines[1]["error"]
    for line in (lines[0], *lines[2:]):
        assert line["completion_tokens"] == 3
        assert line["finish_reason"] == "length"
    assert lines[0]["text"] == "river stone market"
    assert result.exit_code == 1
    assert "1 of 23 prompts failed" in result.output
    assert [engine.closed for engine in fake_engines] == [True]


def test_one_prompt_is_text_unless_json_is_asked_for(fake_engines: list[FakeEngine]) -> None:
    command = ["generate", "river stone", "--max-tokens", "2", "-q"]
    assert CliRunner().invoke(main.app, command).output == "river stone\n"
    (line,) = CliRunner().invoke(main.app, [*command, "--format", "jsonl"]).output.splitlines()
    assert json.loads(line)["text"] == "river stone"


@pytest.mark.parametrize("wrong", [["Hi", "--file", __file__], ["Hi", "--jsonl"], ["Hi", "--format", "xml"]])
def test_options_that_do_not_go_together_are_wrong_usage(wrong: list[str]) -> None:
    assert CliRunner().invoke(main.app, ["generate", *wrong]).exit_code == 2


def test_collect_env_tells_versions_and_no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    result = CliRunner().invoke(
        main.app, ["collect-env"], env={"RINGCAST_API_KEY": "hush", "RINGCAST_MODEL": "./x.gguf"}
    )
    assert result.exit_code == 0
    lines = dict(line.split(": ", 1) for line in result.output.splitlines())
    assert lines["RINGCAST_API_KEY"] == "(set)"
    assert lines["RINGCAST_MODEL"] == "./x.gguf"
    assert "hush" not in result.output
    assert lines["ringcast"] == ringcast.__version__
    assert {"python", "processor", "memory", "/dev/shm", "torch"} <= set(lines)


def test_bench_fails_with_one_line_where_there_is_no_server() -> None:
    result = CliRunner().invoke(main.app, ["bench", "http://127.0.0.1:9"])
    assert result.exit_code == 1
    assert "give the URL of a running server" in result.output


def test_a_message_may_have_several_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = iter(['"""first', "  second", '"""', '"""one line"""', "/exit"])
    monkeypatch.setattr("builtins.input", lambda _: next(lines))
    session = FakeSession()
    chat_command._converse(session, [], SamplingParams(), is_terminal=False)  # type: ignore[arg-type]
    assert [messages[-1]["content"] for messages in session.asked] == ["first\n  second", "one line"]


def test_an_input_that_ends_inside_a_message_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO('"""first\nsecond\n'))
    with pytest.raises(InvalidRequest, match='ends inside a message: end it with """'):
        chat_command._converse(FakeSession(), [], SamplingParams(), is_terminal=False)  # type: ignore[arg-type]
    monkeypatch.setattr("sys.stdin", io.StringIO('"""first\nsecond\n'))  # at a terminal Ctrl-D leaves
    chat_command._converse(FakeSession(), [], SamplingParams(), is_terminal=True)  # type: ignore[arg-type]


def test_typed_lines_are_kept_for_the_user_only(tmp_path: Path) -> None:
    code = (
        "import readline; from ringcast.frontend.cli.history import history_path, typed_lines\n"
        "with typed_lines(True):\n"
        "    print([readline.get_history_item(i + 1) for i in range(readline.get_current_history_length())])\n"
        "    readline.add_history('typed')\n"
        "print(oct(history_path().stat().st_mode & 0o777))"
    )
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path)}
    runs = [
        subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
        for _ in range(2)
    ]
    assert [run.stdout.splitlines() for run in runs] == [["[]", "0o600"], ["['typed']", "0o600"]]


def test_sampling_is_greedy_unless_the_model_or_the_user_says_otherwise() -> None:
    assert SamplingOptions().params({}, 128).temperature == 0.0
    assert SamplingOptions().params({"temperature": 0.6}, 128).temperature == 0.6
    assert SamplingOptions(temperature=0.9).params({"temperature": 0.6}, 128).temperature == 0.9
    assert SamplingOptions().params({}, 128).max_tokens == 128
    assert SamplingOptions(max_tokens=5).params({}, 128).max_tokens == 5


def test_missing_packages_name_the_extra() -> None:
    assert missing(("json", "no_such_package_here")) == ["no_such_package_here"]
    line = missing_line(["torch", "tokenizers"])
    assert line == (
        "this command needs packages that are not installed (torch, tokenizers): pip install 'ringcast[llm]'"
    )


@pytest.mark.parametrize("package", ["typer", "torch", "fastapi"])
def test_without_the_extra_a_command_says_what_to_install(package: str) -> None:
    # A finder that hides one package stands for an environment without it.
    code = (
        "import sys, importlib.abc\n"
        "class Hide(importlib.abc.MetaPathFinder):\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name.partition('.')[0] == {package!r}: raise ModuleNotFoundError(name=name)\n"
        "sys.meta_path.insert(0, Hide())\n"
        "import importlib.util\n"
        "real = importlib.util.find_spec\n"
        f"importlib.util.find_spec = lambda name, *a: None if name == {package!r} else real(name, *a)\n"
        "sys.argv = ['ringcast', 'serve']\n"
        "from ringcast.__main__ import main\n"
        "main()\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert result.returncode == 1
    assert result.stderr == (
        f"ringcast: this command needs packages that are not installed ({package}): pip install 'ringcast[llm]'\n"
    )


def test_figures_are_one_line() -> None:
    answer = Answer()
    answer.num_tokens = 50
    answer.metrics = RequestMetrics(100.0, 100.25, 102.0)
    line = answer.figures(RingFigures(messages=130, overflows=2), 1.04)
    assert line == (
        "50 tokens, 25.0 tokens/s, first token after 0.250 s (engine ready after 1.0 s), 130 ring messages, 2 overflows"
    )


class FakeSession:
    """Answers with the number of messages it was given; interrupts or refuses on demand."""

    def __init__(self) -> None:
        self.asked: list[list[dict[str, str]]] = []

    def say(self, messages: Sequence[dict[str, str]], params: SamplingParams) -> Answer:
        self.asked.append(list(messages))
        if messages[-1]["content"] == "stop me":
            raise KeyboardInterrupt
        if messages[-1]["content"] == "too long":
            raise InvalidRequest("messages has 99 tokens", "messages")
        answer = Answer()
        answer.text = f"answer {len(messages)}"
        return answer


def test_the_chat_remembers_finished_turns_only(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = iter(["one", "stop me", "too long", "two", "/what", "/clear", "three", "/exit"])
    monkeypatch.setattr("builtins.input", lambda _: next(lines))
    session = FakeSession()
    opening = [{"role": "system", "content": "Be brief."}]
    chat_command._converse(session, opening, SamplingParams(), is_terminal=True)  # type: ignore[arg-type]
    contents = [[message["content"] for message in messages] for messages in session.asked]
    assert contents == [
        ["Be brief.", "one"],
        ["Be brief.", "one", "answer 2", "stop me"],
        ["Be brief.", "one", "answer 2", "too long"],
        ["Be brief.", "one", "answer 2", "two"],
        ["Be brief.", "three"],
    ]
    stderr = capsys.readouterr().err
    assert "(stopped)" in stderr
    assert "messages has 99 tokens (/clear starts a new conversation)" in stderr


@pytest.mark.parametrize("leave", ["/exit", "/quit"])
def test_ctrl_c_drops_the_line_and_only_twice_at_an_empty_prompt_leaves(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], leave: str
) -> None:
    """Lines that begin with ^ are typed and then interrupted."""

    def converse(*typed: str, is_terminal: bool = True) -> list[str]:
        left = iter(typed)
        buffer = ""

        def line(_: str) -> str:
            nonlocal buffer
            buffer = next(left)
            if buffer.startswith("^"):
                buffer = buffer[1:]
                raise KeyboardInterrupt
            return buffer

        monkeypatch.setattr("builtins.input", line)
        monkeypatch.setattr("readline.get_line_buffer", lambda: buffer)
        session = FakeSession()
        chat_command._converse(session, [], SamplingParams(), is_terminal=is_terminal)  # type: ignore[arg-type]
        return [messages[-1]["content"] for messages in session.asked]

    assert converse("^", "one", "^", "^typed", "^", '"""two', "^", "^", "two", "^", "stop me", "^", leave) == [
        "one", "two", "stop me"
    ]  # fmt: skip
    assert capsys.readouterr().err.count("Ctrl-D, /exit or /quit leaves; so does a second Ctrl-C") == 8
    with pytest.raises(KeyboardInterrupt):
        converse("one", "^", "^", "never asked")
    for lines in (["one", "^"], ["stop me", "two"]):
        with pytest.raises(KeyboardInterrupt):
            converse(*lines, is_terminal=False)


def test_importing_ringcast_stays_small() -> None:
    code = (
        "import sys, ringcast; heavy = ('torch', 'numpy', 'fastapi', 'typer', 'tokenizers', 'asyncio', 'msgpack');"
        "print([name for name in heavy if name in sys.modules]); ringcast.SamplingParams();"
        "print([name for name in heavy[:5] if name in sys.modules], ringcast.__version__)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30)
    assert result.stdout.splitlines() == ["[]", "[] 0.1.0"]


def test_public_names_exist() -> None:
    import ringcast

    for name in ringcast.__all__:
        assert getattr(ringcast, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = ringcast.Nothing


@pytest.mark.parametrize("command", ["generate", "chat", "serve"])
def test_an_absurd_size_is_one_line_before_anything_is_loaded(command: str) -> None:
    result = CliRunner().invoke(main.app, [command, "-m", "nosuch", "--max-num-seqs", "1000000000000"], input="")
    assert result.exit_code == 1
    assert result.output == "ringcast: max_num_seqs=1000000000000: give a whole number from 1 to 65536\n"
