// The page: documents to choose from, questions, answers as they come, and the pages that they stand on.

import * as api from "/page/api.js";
import * as reader from "/page/reader.js";

const byId = (id) => document.getElementById(id);
const select = byId("documents"), question = byId("question"), status = byId("status"), door = byId("door");
let files = [], going = null;

function tell(text, bad = false) {
  status.textContent = text;
  status.classList.toggle("bad", bad);
}

// Do something that may need a token, which is asked for.
async function attempt(work) {
  try {
    return await work();
  } catch (fault) {
    if (fault.status === 401) {
      byId("wrong").textContent = door.returnValue ? fault.message : "";
      if (!door.open) door.showModal();
    } else if (fault.name !== "AbortError") {
      tell(fault.message, true);
    }
  }
}

door.addEventListener("close", () => {
  door.returnValue = "tried";
  api.setToken(byId("token").value);
  attempt(start);
});

const chosen = () => files.find((file) => file.id === select.value);

async function refresh(id) {
  files = await api.listFiles();
  select.replaceChildren(...files.map((file) => new Option(`${file.filename} (${file.hip.pages} pages)`, file.id)));
  select.disabled = !files.length;
  if (!files.length) select.append(new Option("none yet: add one", ""));
  if (id) select.value = id;
  await choose();
}

async function choose() {
  const file = chosen();
  byId("remove").hidden = !file || file.hip.given;
  byId("send").disabled = !file;
  document.title = file ? `${file.filename} · hip` : "hip";
  await reader.open(file);
}

async function start() {
  const { model } = await api.health();
  byId("model").textContent = model;
  await refresh();
}

select.addEventListener("change", () => attempt(choose));

byId("file").addEventListener("change", async (event) => {
  const [file] = event.target.files;
  if (!file) return;
  tell(`Reading ${file.name} …`);
  await attempt(async () => {
    const added = await api.addFile(file);
    await refresh(added.id);
    tell(added.hip.warnings.length ? added.hip.warnings.join(" ") : `${added.filename} is ready: ${added.hip.pages} pages`);
    question.focus();
  });
  event.target.value = "";
});

byId("remove").addEventListener("click", () => attempt(async () => {
  const file = chosen();
  if (!confirm(`Remove ${file.filename} from the server?`)) return;
  await api.removeFile(file.id);
  await refresh();
  tell(`${file.filename} is removed`);
}));

question.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    byId("ask").requestSubmit();
  }
});

byId("stop").addEventListener("click", () => going?.abort());

byId("ask").addEventListener("submit", async (event) => {
  event.preventDefault();
  const file = chosen(), asked = question.value.trim();
  if (going || !file || !asked) return;
  const { article, words } = card(asked);
  going = new AbortController();
  busy(true, words);
  tell("Waiting …");
  await attempt(async () => {
    const found = await api.ask(file.id, asked, {
      signal: going.signal,
      onProgress: (text) => tell(text === "waiting" ? "Waiting …" : `${text[0].toUpperCase()}${text.slice(1)} …`),
      onText: (text) => { words.textContent += text; tell("Answering …"); },
    });
    tell(found.ended === "length" ? "The answer was cut at its longest" : "");
    question.value = "";
    cite(article, found, file);
  });
  if (going.signal.aborted) tell("Stopped");
  if (!words.textContent) article.remove();
  going = null;
  busy(false, words);
});

function busy(is, words) {
  words.classList.toggle("busy", is);
  // who reads on meanwhile is left where they are
  const here = [byId("stop"), byId("send"), question, document.body].includes(document.activeElement);
  byId("send").hidden = is;
  byId("stop").hidden = !is;
  if (here) (is ? byId("stop") : question).focus();
}

function element(name, text = "", kind = "") {
  const made = document.createElement(name);
  made.textContent = text;
  made.className = kind;
  return made;
}

function card(asked) {
  const article = element("article"), words = element("p", "", "answer");
  words.setAttribute("aria-live", "polite");
  article.append(element("h3", asked), words);
  byId("answers").prepend(article);
  return { article, words };
}

function cite(article, found, file) {
  const { citations } = found;
  if (!citations.length) {
    article.append(element("p", "No page holds words of question or answer: the document does not seem to say this.", "note"));
  } else if (found.supported === false) {
    article.append(element("p", "The document does not seem to say this. The nearest passages:", "note"));
  }
  const list = element("ol", "", "cited");
  list.append(...citations.map((citation) => {
    const item = element("li"), button = element("button", citation.place);
    button.type = "button";
    button.append(element("q", citation.quote));
    button.addEventListener("click", () => attempt(() => go(button, citation, found, file)));
    item.append(button);
    return item;
  }));
  article.append(list);
  if (chosen() !== file) return;
  reader.draw(found.map || null, citations.map((citation) => citation.index));
  if (citations.length) attempt(() => reader.show(citations[0].index, citations[0]));
}

// Land on the page of a citation.
async function go(button, citation, found, file) {
  if (chosen()?.id !== file.id) {
    select.value = file.id;
    await choose();
  }
  document.querySelectorAll(".cited button").forEach((other) => other.setAttribute("aria-current", other === button));
  reader.draw(found.map || null, found.citations.map((other) => other.index));
  await reader.show(citation.index, citation);
  byId("place").focus({ preventScroll: true });
  // beside the answer it is in view already
  if (matchMedia("(width < 60rem)").matches) byId("reader").scrollIntoView();
}

attempt(start);
