// Prometheus text to numbers, and two samples of them to the figures of the charts.

// Name -> value, summed over labels. Lines that are not samples are passed over.
export function parse(text) {
  const values = new Map();
  for (const line of text.split("\n")) {
    const match = /^([a-zA-Z_:][\w:]*)(?:\{.*\})?\s+(\S+)/.exec(line);
    const value = match ? Number(match[2]) : NaN;  // NaN and +Inf are not shown either
    if (Number.isFinite(value)) values.set(match[1], (values.get(match[1]) ?? 0) + value);
  }
  return values;
}

// `now` and `before`: {seconds, values}. A figure is null when nothing happened in between (or a counter went back: the
// server was restarted) and undefined when the server does not report it.
export function figures(now, before) {
  const grown = (name) => {
    if (!now.values.has(name)) return undefined;
    const growth = now.values.get(name) - (before?.values.get(name) ?? NaN);
    return growth >= 0 ? growth : null;
  };
  const ratio = (top, bottom, finish = (x) => x) => {
    if (top === undefined || bottom === undefined) return undefined;
    return top === null || !bottom ? null : finish(top / bottom);
  };
  return {
    rate: ratio(grown("vllm:generation_tokens_total"), before ? now.seconds - before.seconds : null),
    accept: ratio(grown("vllm:spec_decode_num_accepted_tokens_total"), grown("vllm:spec_decode_num_drafts_total"),
      (x) => x + 1),
    step: ratio(grown("onelane_step_seconds_total"), grown("onelane_steps_total"), (x) => x * 1000),
    hits: ratio(grown("vllm:prefix_cache_hits_total"), grown("vllm:prefix_cache_queries_total"), (x) => x * 100),
    kv: ratio(now.values.get("vllm:kv_cache_usage_perc"), 1, (x) => x * 100),
  };
}
