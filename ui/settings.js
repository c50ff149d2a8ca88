// The settings form as fields of a chat request.
const field = (id) => document.getElementById(id);

function tools() {
  const text = field("tools").value.trim();
  if (!text) return undefined;
  const list = JSON.parse(text);
  if (!Array.isArray(list)) throw new SyntaxError("an array of tools was expected");
  return list.length ? list : undefined;
}

// Says beside the field what is wrong with it; true if nothing is.
export function checkTools() {
  let problem = "";
  try {
    tools();
  } catch (error) {
    problem = `Not usable: ${error.message}`;
  }
  field("tools-error").textContent = problem;
  field("tools").setCustomValidity(problem);
  return !problem;
}

// Only what was filled in: the server has defaults of its own.
export function settings() {
  const number = (id) => (field(id).value === "" ? undefined : field(id).valueAsNumber);
  const thinking = field("thinking").checked;
  const effort = field("effort").value.trim();
  return {
    system: field("system").value.trim(),
    temperature: number("temperature"),
    top_p: number("top-p"),
    max_tokens: number("max-tokens"),
    seed: number("seed"),
    tools: tools(),
    chat_template_kwargs: { thinking },
    reasoning_effort: thinking && effort ? (/^\d+$/.test(effort) ? Number(effort) : effort) : undefined,
  };
}
