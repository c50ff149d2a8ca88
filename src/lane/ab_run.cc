#include "lane/ab_run.h"

#include <chrono>
#include <cmath>
#include <filesystem>

#include "base/format.h"
#include "base/mapped_file.h"
#include "lane/ab_fields.h"
#include "lane/command.h"
#include "lane/sha256.h"

namespace onelane {

struct CampaignBlock {
  ArmRole role = ArmRole::kControl;
  std::string file;                   // in the campaign's folder; empty: it left no receipt
  std::optional<std::string> digest;  // of the receipt
  std::vector<std::string> faults;    // what the runner saw
};
struct Campaign {
  std::vector<CampaignBlock> blocks;
};

template <class V>
void visit(V& v, Some<CampaignBlock> auto& x) {
  v("role", x.role);
  v("file", x.file);
  v("digest", x.digest);
  v("faults", x.faults);
}
template <class V>
void visit(V& v, Some<Campaign> auto& x) {
  v("blocks", x.blocks);
}

namespace {

namespace fs = std::filesystem;

constexpr double kClockStepSeconds = 0.5;

struct Measured {
  AbBlock block;
  CampaignBlock entry;
};

std::string arm_command(const AbArm& arm, const std::string& self) {
  if (!arm.command.starts_with("http://")) return arm.command;
  return format("{} bench serve {} --receipt {{receipt}}", shell_quoted(self), shell_quoted(arm.command));
}

// Two clocks that disagree about how long a block took: somebody set one of them.
class ClockWatch {
 public:
  bool stepped() const {
    const std::chrono::duration<double> wall = Wall::now() - wall_, steady = Steady::now() - steady_;
    return std::abs(wall.count() - steady.count()) > kClockStepSeconds;
  }
  double seconds() const { return std::chrono::duration<double>(Steady::now() - steady_).count(); }

 private:
  using Wall = std::chrono::system_clock;
  using Steady = std::chrono::steady_clock;
  Wall::time_point wall_ = Wall::now();
  Steady::time_point steady_ = Steady::now();
};

Result<Measured> measure(const AbPlan& plan, const AbRunOptions& options, size_t index) {
  Measured out;
  const ArmRole role = out.block.role = out.entry.role = plan.order[index];
  const AbArm& arm = role == ArmRole::kCandidate ? plan.candidate : plan.control;
  const std::string stem = format("block-{:02}-{}", index + 1, name_of(role)), name = stem + ".json";
  const fs::path folder(options.folder), file = folder / name, log = folder / (stem + ".log");
  const std::string command =
      fill_command(arm_command(arm, options.self), {{"onelane", options.self},
                                                    {"receipt", fs::absolute(file).string()},
                                                    {"role", std::string(name_of(role))},
                                                    {"block", format("{}", index / blocks_per_group(plan) + 1)},
                                                    {"order", format("{}", index + 1)}});
  const ClockWatch clock;
  ONELANE_ASSIGN(const CommandEnd end, run_command(command, log.string(), static_cast<double>(plan.block_timeout_s)));
  std::vector<std::string>& faults = out.entry.faults;
  if (clock.stepped()) faults.push_back("the system clock was set while it ran");
  if (end.timed_out) faults.push_back(format("the command was ended after {} s", plan.block_timeout_s));
  auto receipt = load_receipt(file.string());
  if (receipt) {
    out.entry.file = name;
    ONELANE_ASSIGN(const std::string text, read_file(file.string()));
    out.entry.digest = receipt_digest(text);
    out.block.receipt = *std::move(receipt);
  } else {
    faults.push_back(format("no receipt ({}); the command exited with {} and last said: {}", receipt.error().message,
                            end.exit_code, last_line(log.string())));
  }
  out.block.faults = faults;
  options.progress(format("block {} of {}, {}: {:.0f} s, {}", index + 1, plan.order.size(), name_of(role),
                          clock.seconds(), faults.empty() ? verdict_label(out.block.receipt.verdict) : faults.front()));
  return out;
}

// With the files of the run as artifacts.
Result<Receipt> full_receipt(const AbPlan& plan, const std::vector<AbBlock>& blocks, const AbComparison& comparison,
                             const Campaign& campaign, const fs::path& folder) {
  Receipt receipt = comparison_receipt(plan, blocks, comparison);
  std::vector<std::string> files = {"plan.json", "campaign.json"};
  for (const CampaignBlock& block : campaign.blocks) {
    if (!block.file.empty()) files.push_back(block.file);
  }
  for (const std::string& file : files) {
    ONELANE_ASSIGN(const std::string digest, sha256_file((folder / file).string()));
    receipt.artifacts.push_back({file, digest, static_cast<int64_t>(fs::file_size(folder / file))});
  }
  return receipt;
}

// Whether enough sound quads can still come.
bool hopeless(const AbPlan& plan, const std::vector<AbBlock>& blocks, size_t groups) {
  const size_t size = blocks_per_group(plan), done = blocks.size() / size;
  const size_t sound = compare_arms(plan, blocks).quads_used;
  return sound + (groups - done) < static_cast<size_t>(least_quads(plan));
}

}  // namespace

Result<void> prepare_run_folder(const std::string& folder) {
  std::error_code problem;
  fs::create_directories(folder, problem);
  if (problem) return Error{ErrorCode::kIo, format("{}: {}", folder, problem.message())};
  if (!fs::is_empty(folder, problem) || problem) {
    return Error{ErrorCode::kInvalidArgument, format("{}: must be empty: every run has a folder of its own", folder)};
  }
  return {};
}

Result<AbRun> run_plan(const AbPlan& plan, const AbRunOptions& options) {
  ONELANE_TRY(prepare_run_folder(options.folder));
  const fs::path folder(options.folder);
  ONELANE_TRY(write_file((folder / "plan.json").string(), plan_json(plan)));
  AbRun run{plan, {}, {}, {}};
  Campaign campaign;
  const size_t size = blocks_per_group(plan), all_groups = plan.order.size() / size;
  for (size_t group = 0; group < all_groups; ++group) {
    for (size_t i = 0; i < size; ++i) {
      ONELANE_ASSIGN(Measured measured, measure(plan, options, group * size + i));
      run.blocks.push_back(std::move(measured.block));
      campaign.blocks.push_back(std::move(measured.entry));
      ONELANE_TRY(write_file((folder / "campaign.json").string(), schema_json(kCampaignSchema, campaign)));
    }
    if (hopeless(plan, run.blocks, all_groups)) {
      options.progress("too few sound quads can be left: the run ends here");
      break;
    }
    if (group + 1 == static_cast<size_t>(plan.quads) && group + 1 < all_groups) {
      const AbComparison look = compare_arms(plan, run.blocks);
      if (look.verdict != Verdict::kVoid && !look.inconclusive) break;
      options.progress("inconclusive: the extension that the plan declares is run");
    }
  }
  run.comparison = compare_arms(plan, run.blocks);
  ONELANE_ASSIGN(run.receipt, full_receipt(plan, run.blocks, run.comparison, campaign, folder));
  run.receipt.run_id = new_run_id();
  ONELANE_TRY(save_receipt(run.receipt, (folder / "ab.json").string()));
  return run;
}

Result<AbRun> read_run(const std::string& folder_name) {
  const fs::path folder(folder_name);
  const auto path = [&](const std::string& name) { return (folder / name).string(); };
  ONELANE_ASSIGN(const std::string plan_text, read_file(path("plan.json")));
  auto plan = parse_plan(plan_text);
  if (!plan) return std::move(plan).error().in(path("plan.json"));
  ONELANE_ASSIGN(const std::string campaign_text, read_file(path("campaign.json")));
  auto campaign = parse_schema_json<Campaign>(campaign_text, kCampaignSchema);
  if (!campaign) return std::move(campaign).error().in(path("campaign.json"));
  AbRun run{*std::move(plan), {}, {}, {}};
  if (campaign->blocks.size() > run.plan.order.size()) {
    return Error{ErrorCode::kCorrupt, format("{}: has more blocks than the plan", path("campaign.json"))};
  }
  for (size_t i = 0; i < campaign->blocks.size(); ++i) {
    const CampaignBlock& entry = campaign->blocks[i];
    if (entry.role != run.plan.order[i]) {
      return Error{ErrorCode::kCorrupt, format("{}: blocks[{}].role: is not the plan's", path("campaign.json"), i)};
    }
    AbBlock block{entry.role, {}, entry.faults};
    if (!entry.file.empty()) {
      if (fs::path(entry.file).filename() != entry.file) {
        return Error{ErrorCode::kCorrupt, format("{}: blocks[{}].file: must be a name", path("campaign.json"), i)};
      }
      ONELANE_ASSIGN(block.receipt, load_receipt(path(entry.file)));
      ONELANE_ASSIGN(const std::string text, read_file(path(entry.file)));
      if (receipt_digest(text) != entry.digest) {
        return Error{ErrorCode::kCorrupt, format("{}: is not the receipt of the run", path(entry.file))};
      }
    }
    run.blocks.push_back(std::move(block));
  }
  run.comparison = compare_arms(run.plan, run.blocks);
  ONELANE_ASSIGN(run.receipt, full_receipt(run.plan, run.blocks, run.comparison, *campaign, folder));
  ONELANE_ASSIGN(const Receipt stored, load_receipt(path("ab.json")));
  run.receipt.run_id = stored.run_id;
  ONELANE_ASSIGN(const std::string now, receipt_json(run.receipt));
  ONELANE_ASSIGN(const std::string then, receipt_json(stored));
  if (now != then) {
    return Error{ErrorCode::kCorrupt, format("{}: does not follow from the blocks beside it", path("ab.json"))};
  }
  return run;
}

}  // namespace onelane
