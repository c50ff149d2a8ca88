#include "lane/needle.h"

#include <algorithm>
#include <array>
#include <memory>
#include <set>
#include <utility>

#include "base/format.h"
#include "lane/hay.h"
#include "lane/stats.h"

namespace onelane {
namespace {

constexpr const char* kTransport = "transport";
constexpr const char* kCold = "cold";
constexpr const char* kWarm = "warm";
constexpr const char* kDecoy = "decoy";
constexpr const char* kLength = "length";

constexpr std::array<int, 8> kDepths = {10, 100, 250, 500, 750, 900, 990, 1000};  // permille
constexpr std::array<const char*, 24> kAdjectives = {"Amber",  "Ancient", "Bitter",  "Bold",   "Bronze", "Calm",
                                                     "Clever", "Copper",  "Crimson", "Dusty",  "Fierce", "Gentle",
                                                     "Golden", "Hidden",  "Hollow",  "Ivory",  "Lonely", "Marble",
                                                     "Misty",  "Narrow",  "Purple",  "Silent", "Velvet", "Young"};
constexpr std::array<const char*, 24> kNouns = {"Anchor", "Arrow",  "Badger",  "Basket", "Beacon", "Bridge",
                                                "Candle", "Castle", "Comet",   "Dragon", "Falcon", "Feather",
                                                "Garden", "Hammer", "Harbor",  "Island", "Jacket", "Lantern",
                                                "Meadow", "Needle", "Orchard", "Palace", "Rocket", "Temple"};

template <class T, size_t N>
std::vector<T> draw(SeededIntegers& numbers, const std::array<T, N>& list, size_t count) {
  std::vector<T> all(list.begin(), list.end());
  for (size_t i = 0; i < count; ++i) std::swap(all[i], all[i + numbers.below(all.size() - i)]);
  all.resize(count);
  return all;
}

struct Fact {
  std::string key, code;
};

struct NeedlePrompt {
  std::string text;  // hay with its facts, without a question
  std::vector<Fact> facts;
  int64_t tokens = 0;  // with a question, as the server counts, or as estimated where it does not
};

NeedlePrompt make_prompt(const GateProfile& profile, uint64_t seed, size_t characters) {
  SeededIntegers numbers(seed);
  NeedlePrompt prompt;
  const auto adjectives = draw(numbers, kAdjectives, kDepths.size());
  const auto nouns = draw(numbers, kNouns, kDepths.size());
  HaySpec hay{.seed = seed, .characters = characters, .facts = {}};
  for (size_t i = 0; i < kDepths.size(); ++i) {
    std::string code = format("{}", 1 + numbers.below(9));
    while (code.size() < static_cast<size_t>(profile.code_digits)) code += static_cast<char>('0' + numbers.below(10));
    prompt.facts.push_back({format("{} {}", adjectives[i], nouns[i]), code});
    hay.facts.push_back({kDepths[i], format("The code of {} is {}.", prompt.facts[i].key, code)});
  }
  prompt.text = "Read the text and remember the codes.\n" + make_hay(hay);
  return prompt;
}

GateJson messages_of(const NeedlePrompt& prompt, const std::string& question) {
  return GateJson::array({{{"role", "user"}, {"content", prompt.text + question}}});
}

std::string question_of(const Fact& fact) { return format("What is the code of {}?", fact.key); }

// A prompt of nearly `tokens` tokens, never more, where the server counts them.
NeedlePrompt fit_prompt(GateServer& server, const GateProfile& profile, uint64_t seed, int64_t tokens) {
  const double target = 0.97 * static_cast<double>(tokens);
  double characters = target * (profile.mini_tasks ? 2.6 : 4.2);
  NeedlePrompt prompt;
  for (int attempt = 0; attempt < 4; ++attempt) {
    prompt = make_prompt(profile, seed, static_cast<size_t>(std::max(characters, 0.0)));
    const auto counted = server.count_tokens(messages_of(prompt, question_of(prompt.facts[0])));
    prompt.tokens = counted.value_or(tokens);
    if (!counted || (*counted <= tokens && *counted * 20 >= tokens * 19)) return prompt;
    const double per_token = static_cast<double>(prompt.text.size()) / static_cast<double>(*counted);
    characters += (target - static_cast<double>(*counted)) * per_token;
  }
  return prompt;
}

class NeedleRun {
 public:
  NeedleRun(GateServer& server, const GatePlan& plan, GateArm& arm) : server_(server), plan_(plan), arm_(arm) {
    for (const char* check : {kTransport, kCold, kWarm, kDecoy, kLength}) arm.define(check);
  }

  // Asks for the facts of one prompt, beginning with number `first`; `few`: two of them alone.
  void prompt(int64_t rung, size_t index, size_t first, bool few) {
    const NeedlePrompt prompt =
        fit_prompt(server_, plan_.profile, plan_.seed * 7919 + index * 104729 + uint64_t(rung), rung);
    longest_ = std::max(longest_, prompt.tokens);
    if (prompt.tokens > rung || prompt.tokens * 10 < rung * 8) {
      arm_.find(kLength, format("a prompt of {} tokens became one of {}", rung, prompt.tokens));
    }
    for (size_t i = 0; i < (few ? 2 : prompt.facts.size()); ++i) {
      if (server_.lost()) return;
      const size_t depth = (first + i) % prompt.facts.size();
      ask(rung, index, prompt, depth, i == 0);
    }
    if (!few && plan_.profile.composed_needles) ask_in_order(rung, index, prompt);
  }

  int64_t asked = 0, right = 0, longest_ = 0;

 private:
  // Three times what the pace so far predicts; a client's patience must not decide.
  double patience(int64_t tokens) const {
    return std::max(120.0, 3 * slowest_s_per_token_ * static_cast<double>(tokens));
  }

  GateAnswer send(const NeedlePrompt& prompt, const std::string& question, bool cold) {
    GateJson request;
    request["messages"] = messages_of(prompt, question);
    request["max_tokens"] = 64 + 5 * plan_.profile.code_digits;
    request["chat_template_kwargs"] = {{"thinking", false}};
    GateAnswer answer = server_.ask(std::move(request), {.seconds = patience(prompt.tokens)});
    if (cold && answer.chat.first_text_s) {
      const double pace = *answer.chat.first_text_s / static_cast<double>(std::max<int64_t>(prompt.tokens, 1));
      slowest_s_per_token_ = std::max(slowest_s_per_token_, pace);
      arm_.samples["cold_ttft_s"].push_back(*answer.chat.first_text_s);
    } else if (answer.chat.first_text_s) {
      arm_.samples["warm_ttft_s"].push_back(*answer.chat.first_text_s);
    }
    if (answer.chat.cached_tokens) {
      arm_.observed[cold ? "cold_cached_tokens" : "warm_cached_tokens"] +=
          static_cast<double>(*answer.chat.cached_tokens);
    }
    return answer;
  }

  void ask(int64_t rung, size_t index, const NeedlePrompt& prompt, size_t depth, bool cold) {
    const Fact& fact = prompt.facts[depth];
    const std::string id = format("{}@{:.0f}%/{}{}", rung, kDepths[depth] / 10.0, index, cold ? "/cold" : "");
    const GateAnswer answer = send(prompt, question_of(fact), cold);
    ++asked;
    arm_.answers[id] = answer.text();
    if (!answer.transport_ok()) return arm_.find(kTransport, format("{}: {}", id, answer.chat.problem));
    const std::string& said = answer.chat.content;
    for (const Fact& other : prompt.facts) {
      if (other.code == fact.code || said.find(other.code) == std::string::npos) continue;
      arm_.items.push_back({id, "decoy", said});
      return arm_.find(kDecoy, format("{}: says the code of {}", id, other.key));
    }
    const bool found = said.find(fact.code) != std::string::npos;
    right += found;
    arm_.items.push_back({id, found ? "right" : "wrong", found ? "" : said});
    if (!found) arm_.find(cold ? kCold : kWarm, format("{}: says \"{}\", not {}", id, said, fact.code));
  }

  // Five codes at once: recall that also keeps an order.
  void ask_in_order(int64_t rung, size_t index, const NeedlePrompt& prompt) {
    constexpr size_t kOrdered = 5;
    std::vector<std::string> keys, codes;
    for (size_t i = 0; i < kOrdered; ++i) {
      const Fact& fact = prompt.facts[(index + 3 * i) % prompt.facts.size()];
      keys.push_back(fact.key);
      codes.push_back(fact.code);
    }
    const std::string id = format("{} in order/{}", rung, index);
    const GateAnswer answer = send(
        prompt, format("Give the codes of {}, in this order, separated by spaces and nothing else.", join(keys, ", ")),
        false);
    ++asked;
    arm_.answers[id] = answer.text();
    if (!answer.transport_ok()) return arm_.find(kTransport, format("{}: {}", id, answer.chat.problem));
    const bool found = answer.chat.content.find(format("{}", join(codes, " "))) != std::string::npos;
    right += found;
    arm_.items.push_back({id, found ? "right" : "wrong", found ? "" : answer.chat.content});
    if (!found) arm_.find(kWarm, format("{}: says \"{}\"", id, answer.chat.content));
  }

  GateServer& server_;
  const GatePlan& plan_;
  GateArm& arm_;
  double slowest_s_per_token_ = 0;
};

// Rungs that the server has room for, with their answers.
std::vector<int64_t> rungs_of(const GateServer& server, const GatePlan& plan) {
  constexpr int64_t kAnswerRoom = 256;
  std::vector<int64_t> rungs = plan.quick ? plan.profile.quick_needle_tokens : plan.profile.needle_tokens;
  std::erase_if(
      rungs, [&](int64_t rung) { return rung + kAnswerRoom > server.info().max_model_len_tokens.value_or(INT64_MAX); });
  return rungs;
}

GateArm run_needle(GateServer& server, const GatePlan& plan, ArmKind kind) {
  GateArm arm;
  NeedleRun run(server, plan, arm);
  std::vector<int64_t> rungs = rungs_of(server, plan);
  if (kind != ArmKind::kClean) rungs.resize(1);
  const int cold = kind == ArmKind::kPlanted ? 1
                   : plan.quick              ? plan.profile.quick_cold_prompts
                                             : plan.profile.cold_prompts;
  for (const int64_t rung : rungs) {
    for (int i = 0; i < cold && !server.lost(); ++i) {
      if (kind == ArmKind::kClean) plan.progress(format("needle: {} tokens, prompt {} of {}", rung, i + 1, cold));
      // The cold question goes to another depth each time, evenly over all.
      const size_t first = static_cast<size_t>(i) * kDepths.size() / static_cast<size_t>(cold);
      run.prompt(rung, static_cast<size_t>(i), first, kind == ArmKind::kPlanted);
    }
  }
  arm.observed["asked"] = static_cast<double>(run.asked);
  arm.observed["right"] = static_cast<double>(run.right);
  const std::vector<int64_t>& all = plan.quick ? plan.profile.quick_needle_tokens : plan.profile.needle_tokens;
  std::string short_of;
  if (rungs.size() < all.size() && kind == ArmKind::kClean) {
    short_of = format("; longer ones do not fit into the server's {} tokens", *server.info().max_model_len_tokens);
  }
  arm.range = format(
      "prompts of {} tokens (the longest has {}){}; {} cold prompts a length, each asked for 8 depths; {} of {} "
      "right",
      join(rungs, ", "), run.longest_, short_of, cold, run.right, run.asked);
  return arm;
}

std::vector<GateFault> faults() {
  // The prompt of a request tells which codes it holds.
  const auto other_code = [](const GateJson& request, const std::string& not_this) -> std::string {
    const std::string text = request.at("messages").at(0).at("content");
    for (size_t at = 0; (at = text.find("The code of ", at)) != std::string::npos; ++at) {
      const size_t code = text.find(" is ", at) + 4;
      std::string found = text.substr(code, text.find('.', code) - code);
      if (not_this.find(found) == std::string::npos) return found;
    }
    return "";
  };
  return {
      {.name = "another fact's code",
       .check = kDecoy,
       .in_answer = [other_code](
                        const GateJson& request,
                        GateAnswer& answer) { answer.chat.content = other_code(request, answer.chat.content); }},
      {.name = "a digit less in cold answers",
       .check = kCold,
       .in_answer =
           [](const GateJson&, GateAnswer& answer) {
             const size_t digit = answer.chat.content.find_last_of("0123456789");
             if (digit != std::string::npos) answer.chat.content.erase(digit, 1);
           }},
      {.name = "stale answers from the cache",
       .check = kWarm,
       .in_answer = [asked = std::make_shared<std::set<std::string>>()](const GateJson& request, GateAnswer& answer) {
         constexpr size_t kHead = 400;  // prompts differ from their second line on
         const std::string text = request.at("messages").at(0).at("content");
         if (!asked->insert(text.substr(0, kHead)).second) answer.chat.content = "The text does not say.";
       }}};
}

}  // namespace

Gate needle_gate() {
  return {.name = "needle",
          .id = "needle/1",
          .about = "facts at every depth of long prompts, cold and cached",
          .missing = [](const GateServer& server, const GatePlan& plan) -> std::string {
            if (!rungs_of(server, plan).empty()) return "";
            return format(
                "the server's longest sequence has {} tokens, too few for the shortest prompt of this profile",
                server.info().max_model_len_tokens.value_or(0));
          },
          .run = run_needle,
          .faults = faults};
}

}  // namespace onelane
