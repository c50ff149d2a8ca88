// The fields of lane-ab-plan/1, listed once (struct_json.h).
#pragma once

#include "lane/ab_plan.h"
#include "lane/receipt_fields.h"

namespace onelane {

inline const EnumNames<AbQuestion>& names_of(AbQuestion) {
  static const EnumNames<AbQuestion> names = {{AbQuestion::kBroken, "broken"},
                                              {AbQuestion::kPromotion, "promotion"},
                                              {AbQuestion::kNonInferiority, "noninferiority"},
                                              {AbQuestion::kMicro, "micro"},
                                              {AbQuestion::kNull, "null"}};
  return names;
}

template <class V>
void visit(V& v, Some<AbArm> auto& x) {
  v("name", x.name);
  v("command", x.command);
}

template <class V>
void visit(V& v, Some<AbBars> auto& x) {
  v("broken_percent", x.broken_percent);
  v("promotion_percent", x.promotion_percent);
  v("worst_class_percent", x.worst_class_percent);
  v("noninferior_percent", x.noninferior_percent);
  v("tail_percent", x.tail_percent);
  v("tail_requests", x.tail_requests);
}

template <class V>
void visit(V& v, Some<AbVoidRules> auto& x) {
  v("controls_differ_percent", x.controls_differ_percent);
  v("client_lag_ms_p99", x.client_lag_ms_p99);
  v("least_token_share", x.least_token_share);
  v("start_temperature_c", x.start_temperature_c);
  v("drift_percent", x.drift_percent);
  v("accept_tolerance", x.accept_tolerance);
}

template <class V>
void visit(V& v, Some<AbPlan> auto& x) {
  v("title", x.title);
  v("question", x.question);
  v("control", x.control);
  v("candidate", x.candidate);
  v("metric", x.metric);
  v("quads", x.quads);
  v("extension_quads", x.extension_quads);
  v("seed", x.seed);
  v("order", x.order);
  v("inert_cells", x.inert_cells);
  v("may_differ", x.may_differ);
  v("may_be_worse", x.may_be_worse);
  v("registered_accept", x.registered_accept);
  v("null_percent", x.null_percent);
  v("null_quad_sd_percent", x.null_quad_sd_percent);
  v("null_run", x.null_run);
  v("block_timeout_s", x.block_timeout_s);
  v("bars", x.bars);
  v("voids", x.voids);
}

}  // namespace onelane
