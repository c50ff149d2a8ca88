// Ties the page together: the composer, the answer under way, and the measurements once a second.
import { Charts } from "./charts.js";
import { Answer, Conversation } from "./chat.js";
import { figures, parse } from "./metrics.js";
import { firstModel, hasKey, metricsText, setKey } from "./server.js";
import { checkTools, settings } from "./settings.js";
import { AnswerView, showUser } from "./view.js";

const $ = (id) => document.getElementById(id);
const log = $("log");
const conversation = new Conversation();
let view = null;     // of the last answer
let running = null;  // AbortController of the answer under way
let model = null;

function announce(text) {
  $("announce").textContent = text;
}

function refresh() {
  $("stop").hidden = !running;
  $("send").hidden = Boolean(running);
  $("send").textContent = conversation.openCalls.length && !running ? "Send results" : "Send";
  $("again").disabled = Boolean(running) || conversation.empty;
  $("clear").disabled = conversation.empty;
  $("hint").hidden = !conversation.empty;
}

// Keeps the end in sight, unless the reader has scrolled away from it.
function following() {
  const near = log.scrollHeight - log.scrollTop - log.clientHeight < 60;
  return () => {
    if (near) log.scrollTop = log.scrollHeight;
  };
}

function askForKey() {
  $("key-field").hidden = false;
  showPanel(true);
  $("key").focus();
}

async function loadModel() {
  model = await firstModel();
  $("model").textContent = model.id;
  if (model.max_model_len) $("context").textContent = `${model.max_model_len.toLocaleString("en")} tokens`;
}

async function answer() {
  const follow = following();
  const controller = (running = new AbortController());
  view = new AnswerView(log);
  const answerView = view;
  const current = new Answer(answerView);
  let error = "";
  refresh();
  announce("Answering");
  log.scrollTop = log.scrollHeight;
  try {
    if (!model) await loadModel();
    await conversation.answer(model.id, settings(), current, controller.signal, () => {
      const keep = following();
      answerView.note.textContent = current.figures();
      keep();
    });
  } catch (problem) {
    if (problem.name !== "AbortError") error = problem.message;
    if (problem.status === 401) askForKey();
  }
  const stopped = controller.signal.aborted;
  answerView.finish([current.figures(), stopped && "stopped"].filter(Boolean).join(" · "), error);
  if (running === controller) {
    running = null;
    announce(stopped ? "Stopped" : error ? "" : "Answer complete");
    refresh();
    follow();
  }
}

function send() {
  const text = $("prompt").value.trim();
  const open = conversation.openCalls.length > 0;
  if (running || (!text && !open) || !$("settings").reportValidity()) return;
  if (open) conversation.giveResults(view.takeResults());
  if (text) {
    conversation.say(text);
    showUser(log, text);
  }
  $("prompt").value = "";
  grow();
  answer();
}

function stop() {
  running?.abort();
}

function regenerate() {
  if (running || !$("settings").reportValidity()) return;
  view?.root.remove();
  if (conversation.forgetAnswer()) answer();
}

function clear() {
  if (running) {
    running.signal.discard = true;
    stop();
    running = null;
  }
  conversation.clear();
  view = null;
  log.querySelectorAll("article").forEach((article) => article.remove());
  announce("Conversation cleared");
  refresh();
  $("prompt").focus();
}

// The message field is as high as its text, up to a limit of the style sheet.
function grow() {
  $("prompt").style.height = "auto";
  $("prompt").style.height = `${$("prompt").scrollHeight + 2}px`;
}

function showPanel(open) {
  $("panel").hidden = !open;
  $("toggle").setAttribute("aria-expanded", String(open));
}

$("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  send();
});
$("prompt").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  send();
});
$("prompt").addEventListener("input", grow);
$("stop").addEventListener("click", () => {
  stop();
  $("prompt").focus();
});
$("again").addEventListener("click", regenerate);
$("clear").addEventListener("click", clear);
$("toggle").addEventListener("click", () => showPanel($("panel").hidden));
$("tools").addEventListener("input", checkTools);
$("settings").addEventListener("submit", (event) => event.preventDefault());
$("key").addEventListener("change", () => {
  setKey($("key").value);
  loadModel().catch(() => {});
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && running) stop();
});

const charts = new Charts($("charts"));
let before = null;

async function measure() {
  let state = "idle";
  let text = "idle";
  try {
    const now = { seconds: performance.now() / 1000, values: parse(await metricsText()) };
    charts.add(now.seconds, figures(now, before));
    before = now;
    const requests = now.values.get("vllm:num_requests_running") ?? 0;
    const waiting = now.values.get("vllm:num_requests_waiting") ?? 0;
    if (requests + waiting) state = "busy";
    if (state === "busy") text = `${requests} running${waiting ? `, ${waiting} waiting` : ""}`;
  } catch (error) {
    before = null;
    state = "off";
    text = error.status === 401 ? "needs a key" : error.status === 0 ? "not reachable" : "no measurements";
    if (error.status === 401) $("key-field").hidden = false;
  }
  $("status").dataset.state = state;
  if ($("status").textContent !== text) $("status").textContent = text;
}

async function measureForever() {
  for (;;) {
    const pause = new Promise((resolve) => setTimeout(resolve, 1000));
    if (!document.hidden) await measure();
    await pause;
  }
}

if (matchMedia("(max-width: 56rem)").matches) showPanel(false);
$("key-field").hidden = !hasKey();
checkTools();
refresh();
loadModel().catch(() => {});  // asked again with the first message
measureForever();
