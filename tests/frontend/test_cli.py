"""The command line without an engine: options, defaults, messages about what is missing, the chat's memory."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import pytest
from typer.testing import CliRunner

from ringcast.frontend.cli import chat as chat_command
from ringcast.frontend.cli import main, options
from ringcast.frontend.cli.options import SamplingOptions
from ringcast.frontend.cli.requirements import missing, missing_line
from ringcast.frontend.cli.session import Answer
from ringcast.frontend.engine_args import EngineArgs
from ringcast.frontend.engine_client import RingFigures
from ringcast.frontend.errors import InvalidRequest
from ringcast.frontend.outputs import RequestMetrics
from ringcast.frontend.sampling_params import SamplingParams
from ringcast.frontend.server.settings import ServerSettings


def test_every_engine_argument_and_sampling_option_is_an_option() -> None:
    assert set(options._ENGINE) == {item.name for item in fields(EngineArgs)}
    assert set(options._SAMPLING) == {item.name for item in fields(SamplingOptions)}


def test_options_become_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []
    monkeypatch.setattr("ringcast.frontend.cli.generate.generate", lambda *args: given.extend(args))
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
    chat_command._converse(session, opening, SamplingParams())  # type: ignore[arg-type]
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
