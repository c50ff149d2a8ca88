// What a grammar costs: compiling it, and each token of an answer that follows it (mask, logits, accept).
//   grammar_bench [TOKENIZER_JSON]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include "grammar/compiler.h"

namespace {

using namespace onelane;
using Clock = std::chrono::steady_clock;
using Kind = GrammarSource::Kind;

constexpr int32_t kEnd = 1;
constexpr int kRepeats = 50;

double microseconds_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
}

struct Shape {
  const char* name;
  GrammarSource source;
  std::string text;  // an answer that fits
};

std::vector<Shape> shapes() {
  const char* person =
      R"({"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0,
      "maximum": 150}, "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}}, "at": {"type": "object",
      "properties": {"lat": {"type": "number"}, "lon": {"type": "number"}}, "required": ["lat", "lon"]},
      "notes": {"type": "string"}}, "required": ["name", "age", "tags", "at", "notes"]})";
  const std::string answer =
      R"({"name": "Zoë Lindqvist", "age": 41, "tags": ["red", "blue"], "at": {"lat": 59.913, "lon": 10.752}, "notes": )"
      R"("Lives by the harbour, prefers the early train, and asked to be called on weekdays only."})";
  return {
      {"JSON schema", {.kind = Kind::kJsonSchema, .texts = {person}, .field = "schema"}, answer},
      {"any JSON object", {.kind = Kind::kJsonObject, .texts = {}, .field = "object"}, answer},
      {"regex",
       {.kind = Kind::kRegex, .texts = {R"([A-Z]{2}-\d{4}( [a-z]+){0,20})"}, .field = "regex"},
       "AB-1234 one two three four five six"},
      {"choice", {.kind = Kind::kChoice, .texts = {"yes, of course", "no, never"}, .field = "choice"}, "no, never"}};
}

void measure(GrammarCompiler& compiler, const Tokenizer& tokenizer, const Shape& shape) {
  Clock::time_point begin = Clock::now();
  std::shared_ptr<const Grammar> grammar;
  std::atomic<bool> done = false;
  compiler.compile(shape.source, [&](Result<std::shared_ptr<const Grammar>> compiled) {
    if (compiled) grammar = *compiled;
    done = true;
    done.notify_one();
  });
  done.wait(false);
  const double compile_us = microseconds_since(begin);
  if (!grammar) return;
  std::vector<int32_t> tokens = tokenizer.encode(shape.text).value();
  tokens.push_back(kEnd);
  std::vector<float> logits(static_cast<size_t>(tokenizer.size()));
  std::vector<double> costs;
  for (int repeat = 0; repeat < kRepeats; ++repeat) {
    const auto filter = grammar->filter();
    for (const int32_t token : tokens) {
      std::fill(logits.begin(), logits.end(), 0.0f);
      begin = Clock::now();
      filter->apply(logits);
      filter->accept(token);
      costs.push_back(microseconds_since(begin));
      if (logits[static_cast<size_t>(token)] != 0.0f) std::printf("  the answer does not fit\n");
    }
  }
  double sum = 0;
  for (const double cost : costs) sum += cost;
  std::sort(costs.begin(), costs.end());
  std::printf("%-16s %9.1f %9.1f %9.1f %9.1f %9.2f\n", shape.name, compile_us / 1e3,
              sum / static_cast<double>(costs.size()), costs[costs.size() / 2], costs[costs.size() * 99 / 100],
              static_cast<double>(grammar->bytes()) / 1e6);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string path = argc > 1 ? argv[1] : "models/mini-v41/tokenizer.json";
  const auto tokenizer = Tokenizer::load(path);
  if (!tokenizer) {
    std::fprintf(stderr, "grammar_bench: %s\n", tokenizer.error().message.c_str());
    return 1;
  }
  GrammarCompiler compiler(*tokenizer, tokenizer->size(), kEnd);
  std::printf("%d tokens; us a token: mask, logits, accept\n", tokenizer->size());
  std::printf("%-16s %9s %9s %9s %9s %9s\n", "shape", "compile/ms", "mean", "median", "99 %", "MB");
  for (const Shape& shape : shapes()) measure(compiler, *tokenizer, shape);
  return 0;
}
