#include "lane/hay.h"

#include <algorithm>
#include <iterator>
#include <string_view>

#include "base/check.h"

namespace onelane {
namespace {

// A sentence is one of the forms with every letter in braces replaced by a word of its list.
constexpr std::string_view kForms[] = {
    "In {m} the {a} {n} near the {p} was {v} by {w}.",
    "{W} said that the {a} {n} had been {v} before the {p} closed.",
    "Nobody at the {p} remembered who had {v} the {a} {n}.",
    "The {n} and the {a} {n} were {v} on the same afternoon in {m}.",
    "Every {d} the {w} walked from the {p} to the {p} and counted the {a} {n}s.",
    "A {a} {n} stood beside the {p} until {m}, when {w} took it away.",
    "It rained on {d}, so the {w} kept the {n} under the roof of the {p}.",
    "Whoever {v} the {n} must have known the way behind the {p}.",
    "Between the {p} and the {p} there is a {a} path that few use in {m}.",
    "The {w} wrote a letter about the {a} {n} and left it at the {p}.",
    "On {d} the {p} opens late, and the {w} waits with the {n}.",
    "Some say the {n} was {v} twice; the {w} says it was never {a}.",
};
constexpr std::string_view kMonths[] = {"January", "February", "March",     "April",   "May",      "June",
                                        "July",    "August",   "September", "October", "November", "December"};
constexpr std::string_view kDays[] = {"Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"};
constexpr std::string_view kAdjectives[] = {"narrow", "green",  "wooden", "quiet", "borrowed", "heavy", "pale",
                                            "broken", "second", "round",  "early", "painted",  "small", "crooked",
                                            "damp",   "sturdy", "empty",  "old",   "polished", "loose"};
constexpr std::string_view kNouns[] = {"ladder", "basket", "wheel",  "lamp",   "boat",   "table", "chest",
                                       "rope",   "kettle", "map",    "saddle", "window", "chair", "crate",
                                       "bell",   "cart",   "mirror", "shovel", "clock",  "bench"};
constexpr std::string_view kPlaces[] = {"harbour", "mill",    "market",  "chapel",    "station", "orchard", "bridge",
                                        "quarry",  "school",  "bakery",  "lockhouse", "inn",     "garden",  "workshop",
                                        "library", "sawmill", "terrace", "stables",   "pier",    "granary"};
constexpr std::string_view kVerbs[] = {"repaired", "carried", "forgotten", "sold",    "painted", "measured", "hidden",
                                       "returned", "cleaned", "moved",     "weighed", "found",   "lent",     "counted"};
constexpr std::string_view kPeople[] = {"teacher", "carpenter", "ferryman", "baker",   "gardener",
                                        "postman", "widow",     "painter",  "clerk",   "miller",
                                        "sexton",  "captain",   "weaver",   "surveyor"};

template <size_t N>
std::string_view pick(SeededIntegers& numbers, const std::string_view (&list)[N]) {
  return list[numbers.below(N)];
}

std::string_view word(SeededIntegers& numbers, char kind) {
  switch (kind) {
    case 'm':
      return pick(numbers, kMonths);
    case 'd':
      return pick(numbers, kDays);
    case 'a':
      return pick(numbers, kAdjectives);
    case 'n':
      return pick(numbers, kNouns);
    case 'p':
      return pick(numbers, kPlaces);
    case 'v':
      return pick(numbers, kVerbs);
    case 'w':
      return pick(numbers, kPeople);
    default:
      ONELANE_CHECK(false, "a form names a list that is there");
      return {};
  }
}

void append_sentence(std::string& out, SeededIntegers& numbers) {
  const std::string_view form = pick(numbers, kForms);
  for (size_t i = 0; i < form.size(); ++i) {
    if (form[i] != '{') {
      out += form[i];
    } else if (form[i + 1] == 'W') {
      out.append("The ").append(word(numbers, 'w'));
      i += 2;
    } else {
      // "by the baker", but "the baker" where the form has its own article.
      if (form[i + 1] == 'w' && !out.ends_with("he ")) out += "the ";
      out += word(numbers, form[i + 1]);
      i += 2;
    }
  }
}

}  // namespace

size_t SeededIntegers::below(size_t count) {
  ONELANE_CHECK(count >= 1 && count <= UINT32_MAX, "a range of 1 to 2^32 - 1");
  return static_cast<size_t>(((next() >> 32) * count) >> 32);
}

std::string make_hay(const HaySpec& spec) {
  SeededIntegers numbers(spec.seed);
  std::vector<HayFact> facts = spec.facts;
  std::stable_sort(facts.begin(), facts.end(),
                   [](const HayFact& a, const HayFact& b) { return a.at_permille < b.at_permille; });
  std::string out, line;
  size_t hay = 0;  // characters without facts
  auto fact = facts.begin();
  while (true) {
    line.clear();
    append_sentence(line, numbers);
    line += '\n';
    const bool last = hay + line.size() > spec.characters;
    for (; fact != facts.end(); ++fact) {
      if (!last && static_cast<size_t>(fact->at_permille) * spec.characters > hay * 1000) break;
      out.append(fact->text) += '\n';
    }
    if (last) return out;
    out += line;
    hay += line.size();
  }
}

}  // namespace onelane
