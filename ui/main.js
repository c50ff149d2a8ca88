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

// The end of the log is kept in sight until the reader scrolls up, and again once they are back.
let pinned = true;
let scrolled = 0;
function noteScroll() {
  const below = log.scrollHeight - log.scrollTop - log.clientHeight;
  if (log.scrollTop < scrolled) pinned = below < 1;
  else if (log.scrollTop > scrolled && below < 40) pinned = true;
  scrolled = log.scrollTop;
}

// Known before the scroll event: scrolling from here would end the reader's own, smooth one.
function noteIntent({ deltaY, key }) {
  if (log.scrollTop > 0 && (deltaY < 0 || ["ArrowUp", "PageUp", "Home"].includes(key))) pinned = false;
  if (key === "End") pinned = true;
}

function follow() {
  if (!pinned) return;
  log.scrollTop = log.scrollHeight;
  scrolled = log.scrollTop;  // what moves from here is the reader
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
  const controller = (running = new AbortController());
  view = new AnswerView(log);
  const answerView = view;
  const current = new Answer(answerView);
  let error = "";
  refresh();
  announce("Answering");
  pinned = true;
  follow();
  try {
    if (!model) await loadModel();
    await conversation.answer(model.id, settings(), current, controller.signal, () => {
      answerView.note.textContent = current.figures();
      follow();
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
  if (running || (!text && !open) || !settingsAreFine()) return;
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
  if (running || !settingsAreFine()) return;
  view?.root.remove();
  if (conversation.forgetAnswer()) answer();
}

function clear() {
  stop();
  running = null;
  conversation.clear();
  view = null;
  log.querySelectorAll("article").forEach((article) => article.remove());
  announce("Conversation cleared");
  refresh();
  $("prompt").focus();
}

// Shows what is wrong with the settings, if anything is.
function settingsAreFine() {
  if (!$("settings").checkValidity()) showPanel(true);
  return $("settings").reportValidity();
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
log.addEventListener("scroll", noteScroll);
log.addEventListener("wheel", noteIntent, { passive: true });
log.addEventListener("keydown", noteIntent);
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
  locked = false;
  loadModel().catch(() => {});
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && running) stop();
});

const charts = new Charts($("charts"));
let before = null;
let locked = false;  // not asked again before there is another key

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
    locked = error.status === 401;
  }
  $("status").dataset.state = state;
  if ($("status").textContent !== text) $("status").textContent = text;
}

async function measureForever() {
  for (;;) {
    const pause = new Promise((resolve) => setTimeout(resolve, 1000));
    if (!document.hidden && !locked) await measure();
    await pause;
  }
}

if (matchMedia("(max-width: 56rem)").matches) showPanel(false);
$("key-field").hidden = !hasKey();
checkTools();
refresh();
loadModel().catch(() => {});  // asked again with the first message
measureForever();
