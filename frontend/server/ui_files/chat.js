// The chat box: streams /v1/chat/completions. What a model says goes in as text (textContent), never as HTML.
"use strict";

let messages = [];
let running = null; // the AbortController of the answer that comes

function bubble(who, text) {
  const box = document.createElement("div");
  box.className = `message ${who}`;
  box.dataset.who = { user: "You", assistant: "Model", error: "Error" }[who];
  box.textContent = text;
  byId("talk").append(box);
  byId("talk").scrollTop = byId("talk").scrollHeight;
  return box;
}

// The data of server-sent events, one string each.
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const blocks = (rest + value).split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      if (block.startsWith("data: ")) yield block.slice("data: ".length);
    }
  }
}

async function answer(box, signal) {
  const temperature = byId("temperature").value;
  const response = await fetch("../v1/chat/completions", {
    method: "POST",
    headers: { "content-type": "application/json", ...access.headers() },
    signal,
    body: JSON.stringify({
      model, messages, stream: true, max_tokens: Number(byId("max-tokens").value),
      ...(temperature === "" ? {} : { temperature: Number(temperature) }),
    }),
  });
  if (response.status === 401) access.ask();
  if (!response.ok) throw new Error((await response.json()).error.message);
  let text = "";
  for await (const data of events(response.body)) {
    if (data === "[DONE]") return text;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new Error(chunk.error.message);
    const piece = chunk.choices[0]?.delta?.content;
    if (!piece) continue;
    text += piece;
    const talk = byId("talk");
    const follows = talk.scrollHeight - talk.scrollTop - talk.clientHeight < 40;
    box.append(piece); // appends a text node
    if (follows) talk.scrollTop = talk.scrollHeight;
  }
  throw new Error("the answer broke off: the server is gone");
}

async function send() {
  const text = byId("question").value.trim();
  if (!text || running || !byId("chat-form").reportValidity()) return;
  running = new AbortController();
  byId("question").value = "";
  byId("send").disabled = true;
  byId("stop").disabled = false;
  const before = messages;
  messages = [...before, { role: "user", content: text }];
  bubble("user", text);
  const box = bubble("assistant", "");
  box.setAttribute("aria-busy", "true");
  try {
    const said = await answer(box, running.signal);
    messages = [...messages, { role: "assistant", content: said }];
  } catch (error) {
    // A turn that did not come to its end is forgotten, as in `ringcast chat`.
    messages = before;
    if (error.name === "AbortError") box.append(" (stopped)");
    else bubble("error", error.message);
  } finally {
    box.removeAttribute("aria-busy");
    running = null;
    byId("send").disabled = false;
    byId("stop").disabled = true;
  }
}

byId("chat-form").addEventListener("submit", (event) => {
  event.preventDefault();
  send();
});
byId("question").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    send();
  }
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") running?.abort();
});
byId("stop").addEventListener("click", () => running?.abort());
byId("clear").addEventListener("click", () => {
  running?.abort();
  messages = [];
  byId("talk").replaceChildren();
  byId("question").focus();
});
