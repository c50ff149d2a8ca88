// The conversation: what was said, and one answer from request to figures. Knows views but no page.
import { chat } from "./server.js";

// Sums up the chunks of a stream into `message`, telling `view` on the way.
export class Answer {
  message = { role: "assistant", content: "" };
  finish = null;
  usage = null;
  #chunks = 0;  // that brought something
  #started = performance.now();
  #first = null;  // {time, tokens} of the first of them
  #last = null;
  #calls = [];

  constructor(view) {
    this.view = view;
  }

  take(chunk) {
    this.usage = chunk.usage ?? this.usage;
    const choice = chunk.choices?.[0];
    if (!choice) return;
    const { content, tool_calls: calls, ...delta } = choice.delta ?? {};
    const reasoning = delta.reasoning_content ?? delta.reasoning;
    if (content || reasoning || calls?.length) this.#tick();
    if (reasoning) {
      this.message.reasoning_content = (this.message.reasoning_content ?? "") + reasoning;
      this.view.reason(reasoning);
    }
    if (content || calls?.length) this.#reasoned();
    if (content) {
      this.message.content += content;
      this.view.say(content);
    }
    for (const call of calls ?? []) this.#call(call);
    this.finish = choice.finish_reason ?? this.finish;
  }

  // Whatever is complete enough to be sent back as history; null if nothing is.
  history() {
    const calls = this.#calls.filter(Boolean);
    if (this.finish && calls.length) this.message.tool_calls = calls;
    return this.message.content || this.message.tool_calls ? this.message : null;
  }

  // "42 tokens · 31.5 tokens/s · first after 0.12 s · 128 of 512 prompt tokens cached"
  figures() {
    if (!this.#last) return "";
    const { tokens, time } = this.#last;
    const parts = [`${this.usage?.completion_tokens ?? tokens} tokens`];
    if (time > this.#first.time) {
      parts.push(`${(((tokens - this.#first.tokens) * 1000) / (time - this.#first.time)).toFixed(1)} tokens/s`);
    }
    parts.push(`first after ${((this.#first.time - this.#started) / 1000).toFixed(2)} s`);
    const cached = this.usage?.prompt_tokens_details?.cached_tokens;
    const prompt = this.usage?.prompt_tokens;
    if (prompt) parts.push(cached ? `${cached} of ${prompt} prompt tokens cached` : `${prompt} prompt tokens`);
    if (this.finish === "length") parts.push("cut at the token limit");
    return parts.join(" · ");
  }

  // Tokens are counted by the server where it says so in every chunk, otherwise by chunks.
  #tick() {
    this.#chunks += 1;
    this.#last = { time: performance.now(), tokens: this.usage?.completion_tokens ?? this.#chunks };
    this.#first ??= this.#last;
  }

  #reasoned() {
    if (!this.message.reasoning_content || this.message.content || this.#calls.length) return;
    this.view.thought((performance.now() - this.#first.time) / 1000);
  }

  #call({ index = 0, id, function: part = {} }) {
    const call = (this.#calls[index] ??= { id: "", type: "function", function: { name: "", arguments: "" } });
    if (id) call.id = id;
    call.function.name += part.name ?? "";
    call.function.arguments += part.arguments ?? "";
    this.view.call(index, call.function);
  }
}

export class Conversation {
  #messages = [];

  get empty() {
    return this.#messages.length === 0;
  }

  // Calls of the last answer that wait for their results.
  get openCalls() {
    return this.#messages.at(-1)?.tool_calls ?? [];
  }

  say(text) {
    this.#messages.push({ role: "user", content: text });
  }

  // Results of the open calls, in their order.
  giveResults(results) {
    this.openCalls.forEach((call, i) =>
      this.#messages.push({ role: "tool", tool_call_id: call.id, content: results[i] ?? "" }));
  }

  // Back to before the last answer; false when there is nothing to answer.
  forgetAnswer() {
    if (this.#messages.at(-1)?.role === "assistant") this.#messages.pop();
    return !this.empty;
  }

  clear() {
    this.#messages = [];
  }

  // One answer to what was said. `settings`: see settings.js. Resolves when the stream is over; throws what broke it.
  // What arrived until then is kept either way.
  async answer(model, settings, answer, signal, progress) {
    const messages = this.#messages;  // clear() makes a new list
    const { system, ...options } = settings;
    const request = {
      model,
      messages: [...(system ? [{ role: "system", content: system }] : []), ...messages],
      stream: true,
      stream_options: { include_usage: true, continuous_usage_stats: true },
      ...options,
    };
    try {
      for await (const chunk of chat(request, signal)) {
        answer.take(chunk);
        progress();
      }
    } finally {
      const message = answer.history();
      if (message) messages.push(message);
    }
  }
}
