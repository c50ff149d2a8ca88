// Server-sent events from a fetch body. Chunks may end anywhere: inside a line, a CR LF pair or a character.

export class EventParser {
  #rest = "";
  #data = [];

  // Takes more text; gives the data of every event that is now complete.
  push(text) {
    const events = [];
    this.#rest += text;
    // A CR at the end may be half of a CR LF: wait for what follows.
    const lines = this.#rest.split(/\r\n|\n|\r(?!$)/);
    this.#rest = lines.pop();
    for (const line of lines) {
      if (line === "") {
        if (this.#data.length) events.push(this.#data.join("\n"));
        this.#data = [];
      } else if (line.startsWith("data:")) {
        this.#data.push(line.slice(line[5] === " " ? 6 : 5));
      }  // comments (keep-alives) and other fields say nothing here
    }
    return events;
  }
}

export async function* events(body) {
  const parser = new EventParser();
  const decoder = new TextDecoder();
  const reader = body.getReader();
  for (;;) {
    const { done, value } = await reader.read();
    yield* parser.push(done ? decoder.decode() : decoder.decode(value, { stream: true }));
    if (done) return;
  }
}
