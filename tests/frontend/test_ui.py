"""The page at /ui/ in a headless Chromium: over the real engine, whose worker is killed, and over a fake one."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import httpx
import pytest
from chromium import chromium
from frontend_fakes import FakeEngine
from server_fixture import ServerThread

from ringcast.frontend.async_llm import AsyncLLM
from ringcast.frontend.engine_args import EngineArgs
from ringcast.frontend.engine_client import Health
from ringcast.frontend.server.settings import ServerSettings
from ringcast.frontend.server.ui import FILES
from ringcast.frontend.tokenizer import Tokenizer

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

WAIT_MS = 60_000
_STORY = "Write a very long story about a dragon, with many chapters."  # 900 tokens are not enough for it
_LONGER_BY_20 = "n => document.querySelector('.message.assistant').textContent.length > n + 20"


@pytest.fixture(scope="module")
def engine() -> FakeEngine:
    return FakeEngine(max_model_len=512)


@pytest.fixture(scope="module")
def server(engine: FakeEngine, smollm2: Tokenizer) -> Iterator[ServerThread]:
    with ServerThread(AsyncLLM.from_parts(EngineArgs(model="smollm2"), engine, smollm2)) as server:
        yield server


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A page of its own; nothing may go wrong in its scripts, and it may ask nobody but its server."""
    context = browser.new_context()
    page = context.new_page()
    page.set_default_timeout(WAIT_MS)
    errors: list[str] = []
    hosts: set[str] = set()
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("request", lambda request: hosts.add(httpx.URL(request.url).host))
    yield page
    context.close()
    assert errors == []
    assert hosts == {"127.0.0.1"}


def _cell(page: Page, actor: str, column: int) -> str:
    return page.inner_text(f"#actors tr[data-actor='{actor}'] > :nth-child({column})")


def _until(page: Page, expression: str, *arguments: object) -> None:
    """Wait for it to hold. (playwright's own way evaluates strings in the page, which the page's policy forbids.)"""
    deadline = time.monotonic() + WAIT_MS / 1000
    while not page.evaluate(expression, *arguments):
        assert time.monotonic() < deadline, f"still not: {expression}; the page says: {page.inner_text('body')}"
        page.wait_for_timeout(50)


def _until_empty(page: Page, engine: FakeEngine) -> None:
    deadline = time.monotonic() + WAIT_MS / 1000
    while engine.running:
        assert time.monotonic() < deadline, "the engine still runs what was stopped"
        page.wait_for_timeout(20)


def _ask(page: Page, text: str) -> None:
    page.fill("#question", text)
    page.press("#question", "Enter")


def test_every_file_is_served_with_a_policy_that_runs_nothing_else(server: ServerThread) -> None:
    with httpx.Client(base_url=server.url) as client:
        assert client.get("/ui").headers["location"] == "ui/"
        assert client.get("/ui", follow_redirects=True).text.startswith("<!doctype html>")
        for name in FILES:
            answer = client.get(f"/ui/{name}")
            assert answer.status_code == 200
            policy = answer.headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
            assert "http:" not in answer.text.replace("http://www.w3.org", "")
            assert "innerHTML" not in answer.text


def test_the_state_tells_the_truth_whatever_the_engine_does(server: ServerThread, engine: FakeEngine) -> None:
    state = httpx.get(f"{server.url}/ui/state").json()
    assert state["model"] == "smollm2"
    assert state["health"] == {"state": "ready", "detail": ""}
    assert state["engine"]["max_model_len"] == 512
    assert state["scheduler"]["num_free_blocks"] == 64
    engine.state = Health("restarting", "the worker died: signal 9")
    try:
        state = httpx.get(f"{server.url}/ui/state").json()
    finally:
        engine.state = Health("ready")
    assert state["health"] == {"state": "restarting", "detail": "the worker died: signal 9"}
    assert state["engine"] is None


@pytest.mark.browser
def test_what_a_model_says_is_shown_as_text(
    page: Page, server: ServerThread, engine: FakeEngine, smollm2: Tokenizer
) -> None:
    said = '<img src=x onerror="document.title=1"><script>document.title=2</script> & <b>Hi</b>\n\nbye 🌊'
    engine.script = lambda request: [*smollm2.encode(said), 2]
    page.goto(f"{server.url}/ui/")
    page.wait_for_selector("#health.ready")
    _ask(page, "<i>Hello</i>")
    page.wait_for_selector(".message.assistant:not([aria-busy])")
    assert page.text_content(".message.assistant") == said
    assert page.text_content(".message.user") == "<i>Hello</i>"
    assert page.locator("#talk :is(img, script, b, i)").count() == 0
    assert page.title() == "ringcast"
    # The next turn carries this one.
    _ask(page, "again")
    _until(page, "document.querySelectorAll('.message.assistant:not([aria-busy])').length === 2")
    prompt = smollm2.decode(engine.added[-1].prompt_token_ids, skip_special_tokens=False)
    assert said.strip() in prompt
    assert "<i>Hello</i>" in prompt


@pytest.mark.browser
def test_escape_stops_an_answer_and_errors_are_shown(page: Page, server: ServerThread, engine: FakeEngine) -> None:
    engine.script = lambda request: [28120] * request.stop.max_tokens
    engine.step_s = 0.05
    try:
        page.goto(f"{server.url}/ui/")
        page.wait_for_selector("#health.ready")
        _ask(page, "Count")
        _until(page, "document.querySelector('.message.assistant')?.textContent.length > 3")
        page.keyboard.press("Escape")
        page.wait_for_selector("#stop:disabled")
    finally:
        engine.step_s = 0.0
    assert page.inner_text(".message.assistant").endswith("(stopped)")
    _until_empty(page, engine)
    page.fill("#max-tokens", "100000")
    _ask(page, "More")
    page.wait_for_selector(".message.error")
    assert "max_tokens is 100000" in page.inner_text(".message.error")


@pytest.mark.browser
def test_a_server_with_a_key_is_asked_with_the_key(page: Page, smollm2: Tokenizer) -> None:
    llm = AsyncLLM.from_parts(EngineArgs(model="smollm2"), FakeEngine(max_model_len=512), smollm2)
    with ServerThread(llm, settings=ServerSettings(api_keys=("secret",))) as server:
        assert httpx.get(f"{server.url}/ui/state").status_code == 401
        page.goto(f"{server.url}/ui/")
        for key in ("wrong", "secret"):
            page.wait_for_selector("#key-form:not([hidden])")
            assert page.evaluate("document.activeElement.id") == "key"
            page.fill("#key", key)
            page.press("#key", "Enter")
        page.wait_for_selector("#health.ready")
        assert page.is_hidden("#key-form")
        page.fill("#max-tokens", "3")
        _ask(page, "Hi")
        page.wait_for_selector(".message.assistant:not([aria-busy])")
        assert page.text_content(".message.assistant")


@pytest.mark.browser
def test_every_control_has_a_name_and_both_schemes_have_contrast(page: Page, server: ServerThread) -> None:
    page.goto(f"{server.url}/ui/")
    page.wait_for_selector("#health.ready")
    unnamed = "[...document.querySelectorAll('input, textarea, meter')].filter(e => !e.labels.length).map(e => e.id)"
    assert page.evaluate(unnamed) == []
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        for selector in ("body", "#model", ".quiet", "#health", "th", "#send"):
            assert page.evaluate(_CONTRAST, selector) >= 4.5, (scheme, selector)


# WCAG's contrast ratio of an element's text and the nearest opaque ground behind it.
_CONTRAST = """(selector) => {
  const parts = (color) => color.match(/[\\d.]+/g).map(Number);
  const light = (color) => {
    const [r, g, b] = parts(color).map((v) => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  let element = document.querySelector(selector);
  const text = light(getComputedStyle(element).color);
  while (parts(getComputedStyle(element).backgroundColor)[3] === 0) element = element.parentElement;
  const ground = light(getComputedStyle(element).backgroundColor);
  return (Math.max(text, ground) + 0.05) / (Math.min(text, ground) + 0.05);
}"""


@pytest.mark.browser
@pytest.mark.timeout(180)
def test_tokens_arrive_and_a_killed_worker_is_seen_to_restart(page: Page) -> None:
    llm = AsyncLLM(EngineArgs(model="smollm2", max_model_len=1024, num_kv_blocks=64))
    with ServerThread(llm, model="talker") as server:
        page.goto(f"{server.url}/ui/")
        page.wait_for_selector("#health.ready")
        assert page.inner_text("#model").startswith("talker, context of 1,024 tokens")
        page.fill("#max-tokens", "900")
        page.fill("#temperature", "0")
        _ask(page, _STORY)
        _until(page, "document.querySelector('.message.assistant')?.textContent.length > 20")
        assert page.locator(".message.assistant[aria-busy]").count() == 1  # tokens arrived while it goes on
        _until(page, "document.getElementById('running').textContent === '1'")
        _until(page, "Number(document.getElementById('rate').textContent) > 0")
        assert not page.inner_text("#kv-text").startswith("0 of")
        before = page.inner_text(".message.assistant")
        pid = int(_cell(page, "worker-0", 8))
        os.kill(pid, signal.SIGKILL)
        _until(page, "[...document.querySelectorAll('#actors tr')].some("
                               "r => r.dataset.actor === 'worker-0' && Number(r.children[2].textContent) >= 1"
                               " && r.children[1].textContent.startsWith('ready'))")  # fmt: skip
        assert int(_cell(page, "worker-0", 8)) != pid
        assert _cell(page, "engine-core", 3) == "0"
        assert "worker-0" in page.inner_text("#events li:last-child")
        page.wait_for_selector("#health.ready")
        _until(page, _LONGER_BY_20, len(before))
        assert page.inner_text(".message.assistant").startswith(before)
        folder = os.environ.get("RINGCAST_SCREENSHOTS")
        if folder:  # how docs/ui.png was made
            page.set_viewport_size({"width": 1280, "height": 860})
            page.wait_for_timeout(3000)
            page.evaluate("window.scrollTo(0, 0)")
            page.screenshot(path=f"{folder}/ui.png")
            page.emulate_media(color_scheme="dark")
            page.screenshot(path=f"{folder}/ui-dark.png")
