// What the conversation looks like. Model text reaches the document as text nodes only, never as markup.
import { node } from "./charts.js";

// Text that grows. Fenced code becomes <pre>; everything else stays as it was written.
class GrowingText {
  #rest = "";  // the line that has no end yet
  #fence = "";
  #lines = null;  // text node of finished lines, followed by #open
  #open = document.createTextNode("");

  constructor(parent) {
    this.parent = parent;
  }

  append(text) {
    const lines = (this.#rest + text).split("\n");
    this.#rest = lines.pop();
    for (const line of lines) this.#line(line);
    // What may yet turn out to be a fence waits for the end of its line.
    this.#open.data = /^ {0,3}(?:`{1,2}$|~{1,2}$|`{3}[^`]*$|~{3})/.test(this.#rest) ? "" : this.#rest;
    if (this.#open.data) this.#block().after(this.#open);
  }

  finish() {
    if (this.#rest) this.#line(this.#rest);
    this.#rest = this.#open.data = "";
    this.#trim();
  }

  // Empty lines at the end of a block: margins keep the distance.
  #trim() {
    if (this.#lines) this.#lines.data = this.#lines.data.replace(/\n+$/, "");
  }

  #line(line) {
    this.#open.data = "";
    const [, mark, language] = /^ {0,3}(`{3,}|~{3,})([^`]*)$/.exec(line) ?? [];
    if (!this.#fence && mark) {
      this.#fence = mark;
      this.#trim();
      const pre = node("pre", { tabindex: "0" });
      if (language.trim()) pre.dataset.language = language.trim().split(/\s/)[0];
      this.parent.append(pre);
      pre.append(this.#lines = document.createTextNode(""));
    } else if (this.#fence && mark?.startsWith(this.#fence) && !language.trim()) {
      this.#fence = "";
      this.#trim();
      this.#lines = null;
    } else if (this.#lines || line) {
      this.#block().appendData(`${line}\n`);
    }
  }

  #block() {
    if (!this.#lines) {
      const block = node("div", { class: "text" });
      this.parent.append(block);
      block.append(this.#lines = document.createTextNode(""));
    }
    return this.#lines;
  }
}

// JSON laid out, otherwise as the model wrote it: numbers keep their digits, keys their order. Anything else stays.
export function pretty(json) {
  try {
    JSON.parse(json);
  } catch {
    return json;
  }
  let depth = 0;
  const line = () => `\n${"  ".repeat(depth)}`;
  return json.replace(/"(?:[^"\\]|\\.)*"|[[{]\s*[\]}]|[[{\]},:]|\s+/g, (token) => {
    if (token[0] === '"') return token;
    if (!token.trim()) return "";
    if (/^[[{]./s.test(token)) return token[0] + token.at(-1);
    if (token === ":") return ": ";
    if (token === ",") return token + line();
    depth += /[[{]/.test(token) ? 1 : -1;
    return /[[{]/.test(token) ? token + line() : line() + token;
  });
}

export function showUser(log, text) {
  log.append(node("article", { class: "user", "aria-label": "You" }, text));
}

// One answer while it arrives and afterwards.
export class AnswerView {
  #content = null;
  #reasoning = null;
  #thought = null;
  #calls = [];

  constructor(log) {
    this.root = node("article", { class: "answer", "aria-label": "Answer", "aria-busy": "true" });
    this.note = node("footer");
    this.root.append(this.note);
    log.append(this.root);
  }

  reason(text) {
    if (!this.#reasoning) {
      const body = node("div", { class: "body" });
      this.#thought = node("details", { class: "thinking" }, node("summary", {}, "Thinking …"), body);
      this.note.before(this.#thought);
      this.#reasoning = new GrowingText(body);
    }
    this.#reasoning.append(text);
  }

  say(text) {
    if (!this.#content) {
      const body = node("div", { class: "body" });
      this.note.before(body);
      this.#content = new GrowingText(body);
    }
    this.#content.append(text);
  }

  thought(seconds) {
    if (!this.#thought) return;
    const summary = this.#thought.firstChild;
    if (seconds !== undefined) summary.textContent = `Thought for ${seconds.toFixed(1)} s`;
    else if (summary.textContent.endsWith("…")) summary.textContent = "Thinking";
  }

  // `call`: {id, name, arguments} so far.
  call(index, call) {
    if (!this.#calls[index]) {
      const name = node("code");
      const json = node("pre", { tabindex: "0" });
      const result = node("textarea",
        { rows: "1", "aria-label": "Result of the call", placeholder: "Its result, to hand back" });
      this.note.before(node("details", { class: "call", open: "" }, node("summary", {}, "Call ", name), json, result));
      this.#calls[index] = { name, json, result };
    }
    this.#calls[index].name.textContent = call.name;
    this.#calls[index].json.textContent = pretty(call.arguments);
  }

  // What was typed as results; from then on they can no longer be changed.
  takeResults() {
    return this.#calls.map(({ result }) => {
      result.readOnly = true;
      return result.value;
    });
  }

  finish(note, error) {
    this.#reasoning?.finish();
    this.#content?.finish();
    this.thought();
    this.note.textContent = note;
    if (error) this.note.before(node("p", { class: "error", role: "alert" }, error));
    this.root.setAttribute("aria-busy", "false");
  }
}
