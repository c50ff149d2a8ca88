#include "grammar/compiler.h"

#include <atomic>
#include <future>
#include <optional>
#include <thread>

#include <gmock/gmock.h>

#include "grammar_support.h"

namespace onelane {
namespace {

using ::testing::HasSubstr;
using Kind = GrammarSource::Kind;
using Outcome = Result<std::shared_ptr<const Grammar>>;

Outcome compile(GrammarCompiler& compiler, GrammarSource source) {
  std::promise<Outcome> promise;
  auto future = promise.get_future();
  compiler.compile(std::move(source), [&](Outcome outcome) { promise.set_value(std::move(outcome)); });
  return future.get();
}

GrammarSource choice(int number) { return source_of(Kind::kChoice, {"choice " + std::to_string(number)}); }

// Compiling it takes seconds at least.
GrammarSource endless() {
  std::string schema = R"({"type": "object", "properties": {)";
  for (int i = 0; i < 1500; ++i)
    schema += (i > 0 ? ", " : "") + ("\"p" + std::to_string(i)) + R"(": {"type": "string"})";
  return schema_of(schema + "}}");
}

TEST(GrammarCompiler, CompilesOnceAndKnowsItAgainAtOnce) {
  GrammarCompiler compiler(mini_tokenizer(), mini_tokenizer().size(), kEnd);
  const Outcome first = compile(compiler, choice(1));
  ASSERT_TRUE(first) << first.error().message;
  EXPECT_TRUE(fits(**first, "choice 1"));
  GrammarSource elsewhere = choice(1);
  elsewhere.field = "another_field";
  bool told = false;
  compiler.compile(elsewhere, [&](const Outcome& outcome) {
    told = true;
    EXPECT_EQ(*outcome, *first);
  });
  EXPECT_TRUE(told) << "what is known is told before compile() returns";
}

TEST(GrammarCompiler, RefusalsNameTheFieldOfWhoAsks) {
  GrammarCompiler compiler(mini_tokenizer(), mini_tokenizer().size(), kEnd, {.schema_bytes = 100, .grammar_bytes = 50});
  GrammarSource bad = source_of(Kind::kRegex, {"(a"});
  for (const char* field : {"guided_regex", "structured_outputs.regex"}) {
    bad.field = field;
    const Outcome outcome = compile(compiler, bad);
    ASSERT_FALSE(outcome);
    EXPECT_THAT(outcome.error().message, ::testing::StartsWith(std::string(field) + ": "));
  }
  const Outcome large = compile(compiler, source_of(Kind::kChoice, {std::string(60, 'a'), std::string(60, 'b')}));
  ASSERT_FALSE(large);
  EXPECT_THAT(large.error().message, HasSubstr("the_field: has 120 bytes, at most 100"));
  const Outcome regex = compile(compiler, source_of(Kind::kRegex, {std::string(60, 'a')}));
  ASSERT_FALSE(regex);
  EXPECT_THAT(regex.error().message, HasSubstr("the_field: has 60 bytes, at most 50"));
}

TEST(GrammarCompiler, WithoutAnEndTokenNothingIsCompiled) {
  GrammarCompiler compiler(mini_tokenizer(), mini_tokenizer().size(), -1);
  const Outcome outcome = compile(compiler, choice(1));
  ASSERT_FALSE(outcome);
  EXPECT_THAT(outcome.error().message, HasSubstr("eos_token_id"));
}

TEST(GrammarCompiler, TheModelMayHaveMoreOrFewerTokensThanTheTokenizer) {
  for (const int vocab : {mini_tokenizer().size() + 100, mini_tokenizer().size() - 100}) {
    GrammarCompiler compiler(mini_tokenizer(), vocab, kEnd);
    const auto filter = compile(compiler, source_of(Kind::kRegex, {".*"})).value()->filter();
    std::vector<float> logits(static_cast<size_t>(vocab), 0.0f);
    filter->apply(logits);
    for (int id = mini_tokenizer().size(); id < vocab; ++id)
      EXPECT_FALSE(std::isfinite(logits[static_cast<size_t>(id)]));
    EXPECT_TRUE(std::isfinite(logits[static_cast<size_t>(mini_tokenizer().token_to_id("a").value())]));
  }
}

TEST(GrammarCompiler, RemembersNoMoreThanItMay) {
  const size_t bytes = (*Grammar::compile(choice(0), mini_vocabulary()))->bytes();
  GrammarCompiler compiler(mini_tokenizer(), mini_tokenizer().size(), kEnd, {.cache_bytes = 2 * bytes + bytes / 2});
  const auto first = compile(compiler, choice(1)).value();
  compile(compiler, choice(2)).value();
  EXPECT_EQ(compile(compiler, choice(1)).value(), first) << "both fit";
  compile(compiler, choice(3)).value();  // puts out 2, which was used longest ago
  EXPECT_EQ(compile(compiler, choice(1)).value(), first);
  std::weak_ptr<const Grammar> third = compile(compiler, choice(3)).value();
  compile(compiler, choice(4)).value();
  compile(compiler, choice(5)).value();
  EXPECT_TRUE(third.expired());
  EXPECT_TRUE(fits(*first, "choice 1")) << "whoever holds a grammar keeps it";
}

TEST(GrammarCompiler, ManyThreadsAskForTheSameAndForOthers) {
  GrammarCompiler compiler(mini_tokenizer(), mini_tokenizer().size(), kEnd, {.waiting = 1000});
  std::vector<std::thread> threads;
  std::atomic<int> good = 0;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 12; ++i) {
        const int number = (t + i) % 5;
        const Outcome outcome = compile(compiler, choice(number));
        good += outcome && fits(**outcome, "choice " + std::to_string(number));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(good, 8 * 12);
}

TEST(GrammarCompiler, SaysSoWhenTooManyWaitAndEndsWhatItIsAt) {
  std::atomic<int> ended = 0;
  {
    GrammarCompiler compiler(mini_tokenizer(), mini_tokenizer().size(), kEnd, {.compile_seconds = 1e9, .waiting = 2});
    // One is being compiled, two wait; the thread may take a moment to begin.
    std::optional<Error> refused;
    int taken = 0;
    while (!refused) {
      GrammarSource source = endless();
      source.texts.front() += std::string(static_cast<size_t>(++taken), ' ');
      compiler.compile(source, [&, asker = std::this_thread::get_id()](const Outcome& outcome) {
        if (std::this_thread::get_id() == asker) {
          refused = outcome.error();
        } else {
          ++ended;
        }
      });
    }
    EXPECT_LE(taken, 4);
    EXPECT_EQ(refused->code, ErrorCode::kResourceExhausted);
    EXPECT_THAT(refused->message, HasSubstr("the_field: 2 grammars wait"));
  }
  EXPECT_LE(ended, 1) << "what waited is forgotten; what was being compiled is told of its end";
}

}  // namespace
}  // namespace onelane
