// The server's API as this page uses it: requests with the token, and answers as they come.

const KEY = "hip-token";

export class Refused extends Error {
  constructor(status, message) { super(message); this.status = status; }
}

export function setToken(token) { sessionStorage.setItem(KEY, token); }

function headers(more = {}) {
  const token = sessionStorage.getItem(KEY);
  return token ? { ...more, Authorization: `Bearer ${token}` } : more;
}

async function checked(response) {
  if (response.ok) return response;
  let message = `the server answered ${response.status}`;
  try { message = (await response.json()).error.message; } catch { /* not JSON: the status must do */ }
  throw new Refused(response.status, message);
}

async function call(path, options = {}) {
  return checked(await fetch(path, { ...options, headers: headers(options.headers), cache: "no-store" }));
}

export const health = async () => (await call("/healthz")).json();
export const listFiles = async () => (await (await call("/v1/files")).json()).data;
export const listPages = async (id) => (await (await call(`/v1/files/${id}/pages`)).json()).data;
export const readPage = async (id, index) => (await call(`/v1/files/${id}/pages/${index}`)).json();
export const removeFile = (id) => call(`/v1/files/${id}`, { method: "DELETE" });

export async function addFile(file) {
  const form = new FormData();
  form.append("purpose", "user_data");
  form.append("file", file);
  return (await call("/v1/files", { method: "POST", body: form })).json();
}

// onText gets pieces of the answer, onProgress what happens meanwhile; gives the extension with the citations.
export async function ask(document, question, { signal, onText, onProgress }) {
  const body = { model: document, messages: [{ role: "user", content: question }], stream: true, hip: { map: true } };
  const response = await call("/v1/chat/completions", {
    method: "POST", body: JSON.stringify(body), signal, headers: { "Content-Type": "application/json" },
  });
  let found = null, ended = null;
  for await (const line of lines(response.body)) {
    if (line.startsWith(": ")) onProgress(line.slice(2));
    if (!line.startsWith("data: ") || line === "data: [DONE]") continue;
    const chunk = JSON.parse(line.slice(6));
    if (chunk.error) throw new Refused(500, chunk.error.message);
    const [choice] = chunk.choices;
    if (choice?.delta.content) onText(choice.delta.content);
    if (choice?.finish_reason) { found = chunk.hip; ended = choice.finish_reason; }
  }
  if (!ended) throw new Refused(500, "the answer broke off");
  return { ...found, ended };
}

async function* lines(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (held + value).split("\n");
    held = parts.pop();
    yield* parts;
  }
}
