#include "grammar/compiler.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <list>
#include <mutex>
#include <numeric>
#include <optional>
#include <utility>

#include <pthread.h>
#include <sys/resource.h>
#include <xgrammar/tokenizer_info.h>

#include "base/format.h"

namespace onelane {
namespace {

// XGrammar goes down a source by recursion: 256 levels of JSON, 1,000 of brackets, a chain of all the rules that fit.
constexpr size_t kStackBytes = 256 << 20;
constexpr int kNiceness = 10;

using Compiled = std::shared_ptr<const Grammar>;

std::vector<std::string> token_bytes(const Tokenizer& tokenizer, int vocab) {
  std::vector<std::string> bytes;
  for (int32_t id = 0; id < std::min(vocab, tokenizer.size()); ++id) {
    // Without bytes a token is one that a grammar never takes. The text of a tag inside a string would be read as a
    // tag.
    bytes.emplace_back(tokenizer.is_added(id) ? std::string_view() : tokenizer.bytes(id));
  }
  return bytes;
}

}  // namespace

struct GrammarCompiler::State {
  struct Job {
    GrammarSource source;
    Done done;
  };
  struct Kept {
    GrammarSource source;
    Compiled grammar;
  };

  const GrammarLimits limits;
  std::vector<std::string> vocabulary;  // until the thread has made it XGrammar's
  const int vocab;
  const int32_t end;
  pthread_t thread{};

  std::mutex mutex;
  std::condition_variable wake;
  std::deque<Job> jobs;
  std::list<Kept> kept;  // the one used last comes first
  size_t kept_bytes = 0;
  std::atomic<bool> stop = false;

  // The mutex is held.
  Compiled find(const GrammarSource& source) {
    const auto at = std::find_if(kept.begin(), kept.end(), [&](const Kept& one) { return one.source == source; });
    if (at == kept.end()) return nullptr;
    kept.splice(kept.begin(), kept, at);
    return at->grammar;
  }

  // The mutex is held.
  void keep(GrammarSource source, const Compiled& grammar) {
    kept_bytes += grammar->bytes();
    kept.push_front({std::move(source), grammar});
    while (kept_bytes > limits.cache_bytes) {
      kept_bytes -= kept.back().grammar->bytes();
      kept.pop_back();
    }
  }

  void run() {
    setpriority(PRIO_PROCESS, 0, kNiceness);  // of this thread; running answers go first
    const xgrammar::TokenizerInfo tokenizer(std::exchange(vocabulary, {}), xgrammar::VocabType::RAW, vocab,
                                            std::vector<int32_t>{std::max(end, 0)});
    std::unique_lock lock(mutex);
    while (true) {
      wake.wait(lock, [&] { return stop || !jobs.empty(); });
      if (stop) return;
      Job job = std::move(jobs.front());
      jobs.pop_front();
      Result<Compiled> grammar = find(job.source);  // the same may have waited before it
      if (*grammar == nullptr) {
        lock.unlock();
        grammar = Grammar::compile(job.source, tokenizer, limits.compile_seconds, &stop);
        lock.lock();
        if (grammar) keep(std::move(job.source), *grammar);
      }
      lock.unlock();
      // Moved, so that nothing of the caller's is let go of in this thread.
      std::exchange(job.done, nullptr)(std::move(grammar));
      lock.lock();
    }
  }
};

GrammarCompiler::GrammarCompiler(const Tokenizer& tokenizer, int vocab, int32_t end, const GrammarLimits& limits)
    : state_(new State{.limits = limits, .vocabulary = token_bytes(tokenizer, vocab), .vocab = vocab, .end = end}) {
  pthread_attr_t attributes;
  ONELANE_CHECK(pthread_attr_init(&attributes) == 0, "attributes of a thread");
  ONELANE_CHECK(pthread_attr_setstacksize(&attributes, kStackBytes) == 0, "a stack of the size wanted");
  const auto run = [](void* state) -> void* {
    static_cast<State*>(state)->run();
    return nullptr;
  };
  ONELANE_CHECK(pthread_create(&state_->thread, &attributes, run, state_.get()) == 0, "a thread for grammars");
  pthread_attr_destroy(&attributes);
}

GrammarCompiler::~GrammarCompiler() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->stop = true;
  }
  state_->wake.notify_one();
  pthread_join(state_->thread, nullptr);
}

void GrammarCompiler::compile(GrammarSource source, Done done) {
  const size_t bytes = std::accumulate(source.texts.begin(), source.texts.end(), size_t{0},
                                       [](size_t sum, const std::string& text) { return sum + text.size(); });
  const bool flat = source.kind == GrammarSource::Kind::kJsonSchema || source.kind == GrammarSource::Kind::kChoice;
  const size_t most = flat ? state_->limits.schema_bytes : state_->limits.grammar_bytes;
  if (bytes > most) {
    return done(Error{ErrorCode::kInvalidArgument,
                      format("{}: has {} bytes, at most {} are compiled", source.field, bytes, most)});
  }
  if (state_->end < 0) {
    return done(
        Error{ErrorCode::kUnsupported,
              format("{}: the model's config.json names no eos_token_id, so no answer could end", source.field)});
  }
  Result<Compiled> known = Compiled();
  {
    const std::lock_guard lock(state_->mutex);
    known = state_->find(source);
    if (*known == nullptr) {
      if (state_->jobs.size() < state_->limits.waiting) {
        state_->jobs.push_back({std::move(source), std::move(done)});
        state_->wake.notify_one();
        return;
      }
      known = Error{ErrorCode::kResourceExhausted,
                    format("{}: {} grammars wait to be compiled, try again", source.field, state_->jobs.size())};
    }
  }
  done(std::move(known));
}

}  // namespace onelane
