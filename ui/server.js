// The few requests that the page makes, relative to where it is served.
import { events } from "./stream.js";

export class ServerError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

let key = sessionStorage.getItem("onelane-key") ?? "";

export const hasKey = () => key !== "";

export function setKey(value) {
  key = value.trim();
  if (key) sessionStorage.setItem("onelane-key", key);
  else sessionStorage.removeItem("onelane-key");
}

// The message of an OpenAI-shaped error, or the body itself.
function reason(status, body) {
  try {
    const { error } = JSON.parse(body);
    return error.param ? `${error.message} (${error.param})` : error.message;
  } catch {
    return `The server answered ${status}: ${body.slice(0, 300) || "no body"}`;
  }
}

async function ask(path, options = {}) {
  const headers = { "content-type": "application/json", ...(key && { authorization: `Bearer ${key}` }) };
  let response;
  try {
    response = await fetch(path, { cache: "no-store", ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ServerError(0, "The server cannot be reached.");
  }
  if (!response.ok) throw new ServerError(response.status, reason(response.status, await response.text()));
  return response;
}

export const metricsText = async () => (await ask("metrics")).text();

export async function firstModel() {
  const { data } = await (await ask("v1/models")).json();
  return data[0];
}

// The chunks of a streamed chat completion, as objects.
export async function* chat(request, signal) {
  const response = await ask("v1/chat/completions", { method: "POST", body: JSON.stringify(request), signal });
  try {
    for await (const data of events(response.body)) {
      if (data === "[DONE]") return;
      const chunk = JSON.parse(data);
      if (chunk.error) throw new ServerError(response.status, chunk.error.message ?? String(chunk.error));
      yield chunk;
    }
  } catch (error) {
    if (error.name === "AbortError" || error instanceof ServerError) throw error;
    throw new ServerError(0, "The connection broke before the answer was complete.");
  }
  throw new ServerError(0, "The answer ended before it was complete.");
}
