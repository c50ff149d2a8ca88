#include "cli/step_meter.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/format.h"

namespace onelane {
namespace {

StageEntry& entry_of(std::vector<StageEntry>& entries, const std::string& part, const std::string& stage) {
  const auto found = std::find_if(entries.begin(), entries.end(),
                                  [&](const StageEntry& entry) { return entry.part == part && entry.stage == stage; });
  return found != entries.end() ? *found : entries.emplace_back(StageEntry{.part = part, .stage = stage});
}

// With what it makes for compress and index.
std::string label_of(const QkvArgs& args) {
  std::string label = args.wq_a ? "project_qkv" : "project_qkv, kv alone";
  if (args.of_x[0].weights) label += ", pooled";
  if (args.of_qr.weights) label += ", index";
  return label;
}

std::string label_of(const IndexArgs& args) {
  const char* mode = args.mode == IndexArgs::Candidates::kPublish ? ", publishes"
                     : args.mode == IndexArgs::Candidates::kApply ? ", candidates"
                                                                  : "";
  return format("index, ratio {}{}", args.ratio, mode);
}

std::string label_of(const ExpertsArgs& args) {
  if (args.router == nullptr) return "experts";
  return args.router->tid2eid != nullptr ? "route by hash, experts" : "route, experts";
}

std::string label_of(const AttendArgs& args) {
  if (args.block_attention) return "attend, block";
  if (args.ratio == 0) return "attend, window";
  return format("attend, ratio {}{}", args.ratio, args.picks != nullptr ? ", picks" : "");
}

}  // namespace

void StepMeter::drain() {
  if (labels_.empty()) return;
  const std::vector<double> us = inner_.marks_us();
  ONELANE_CHECK(us.size() == labels_.size(), "a mark for every label");
  for (size_t i = 1; i < us.size(); ++i) {
    StageEntry& entry = entry_of(entries_, labels_[i].part, labels_[i].stage);
    ++entry.calls;
    entry.us += us[i] - us[i - 1];
  }
  labels_.clear();
}

std::vector<StageEntry> StepMeter::take() {
  drain();
  return std::exchange(entries_, {});
}

void StepMeter::mark(std::string_view stage) {
  into_->push_back({part_, std::string(stage)});
  inner_.mark();
}

void StepMeter::run(const void* owner, uint64_t key, const std::function<void()>& stages) {
  switch (mode_) {
    case Mode::kOff:
      return inner_.run(owner, key, stages);
    case Mode::kParts:
      mark(kBetween);
      inner_.run(owner, key, stages);
      return mark(kWhole);
    case Mode::kCosts:
      return stages();
    case Mode::kStages:
      break;
  }
  // Where a recording is repeated, nobody calls the stages: their labels are those of the recording. Those with marks
  // inside are the meter's own.
  std::vector<Label>& labels = recorded_[key];
  inner_.run(this, key, [&] {
    labels.clear();
    into_ = &labels;
    mark(kBetween);
    mark(kMarkAlone);
    stages();
    into_ = &labels_;
  });
  labels_.insert(labels_.end(), labels.begin(), labels.end());
}

void StepMeter::forget(const void* owner) {
  inner_.forget(owner);
  inner_.forget(this);
}

template <class Call, class Cost>
void StepMeter::note(std::string_view stage, const Call& call, const Cost& cost) {
  call();
  if (mode_ == Mode::kStages) mark(stage);
  if (mode_ != Mode::kCosts) return;
  StageEntry& entry = entry_of(entries_, part_, std::string(stage));
  ++entry.calls;
  entry.cost += cost();
}

std::vector<int32_t> StepMeter::read(const int32_t* from, size_t count) {
  std::vector<int32_t> numbers(count);
  if (from == nullptr) return {};
  inner_.finish();
  inner_.memory().copy(numbers.data(), from, count * sizeof(int32_t));
  return numbers;
}

void StepMeter::embed(const StepRows& rows, const EmbedArgs& args) {
  note("embed", [&] { inner_.embed(rows, args); }, [&] { return cost_of(rows, args); });
}
void StepMeter::mix_streams(const StepRows& rows, const MixArgs& args) {
  note("mix_streams", [&] { inner_.mix_streams(rows, args); }, [&] { return cost_of(rows, args); });
}
void StepMeter::expand_streams(const StepRows& rows, const ExpandArgs& args) {
  note("expand_streams", [&] { inner_.expand_streams(rows, args); }, [&] { return cost_of(rows, args); });
}
void StepMeter::tap(const StepRows& rows, const TapArgs& args) {
  note("tap", [&] { inner_.tap(rows, args); }, [&] { return cost_of(rows, args); });
}
void StepMeter::project_qkv(const StepRows& rows, const QkvArgs& args) {
  note(label_of(args), [&] { inner_.project_qkv(rows, args); }, [&] { return cost_of(rows, args); });
}
void StepMeter::compress(const StepRows& rows, const CompressArgs& args) {
  note(
      format("compress, ratio {}", args.ratio), [&] { inner_.compress(rows, args); },
      [&] { return cost_of(rows, args); });
}
void StepMeter::index(const StepRows& rows, const IndexArgs& args) {
  note(label_of(args), [&] { inner_.index(rows, args); }, [&] { return cost_of(rows, args); });
}
void StepMeter::attend(const StepRows& rows, const AttendArgs& args) {
  note(
      label_of(args), [&] { inner_.attend(rows, args); },
      [&] { return cost_of(rows, args, read(args.picks, static_cast<size_t>(rows.count * args.topk))); });
}
void StepMeter::commit(const StepRows& rows, const CommitArgs& args) {
  note("commit", [&] { inner_.commit(rows, args); }, [&] { return cost_of(rows, args); });
}
void StepMeter::project_out(const StepRows& rows, const ProjectOutArgs& args) {
  note("project_out", [&] { inner_.project_out(rows, args); }, [&] { return cost_of(rows, args); });
}
void StepMeter::experts(const StepRows& rows, const ExpertsArgs& args) {
  note(
      label_of(args), [&] { inner_.experts(rows, args); },
      [&] { return cost_of(rows, args, read(args.ids, static_cast<size_t>(rows.count * args.topk))); });
}
void StepMeter::engram(const StepRows& rows, const EngramArgs& args) {
  note("engram", [&] { inner_.engram(rows, args); }, [&] { return cost_of(rows, args); });
}
void StepMeter::head(const StepRows& rows, const HeadArgs& args) {
  note("head", [&] { inner_.head(rows, args); }, [&] { return cost_of(rows, args); });
}
void StepMeter::main_input(const StepRows& rows, const MainInputArgs& args) {
  note("main_input", [&] { inner_.main_input(rows, args); }, [&] { return cost_of(rows, args); });
}

void StepMeter::markov(const StepRows& rows, const MarkovArgs& args) {
  note("markov", [&] { inner_.markov(rows, args); }, [&] { return cost_of(args); });
}
void StepMeter::choose(const StepRows& rows, const ChooseArgs& args) {
  note("choose", [&] { inner_.choose(rows, args); }, [&] { return cost_of(args); });
}

}  // namespace onelane
