// What happens to tokens, as it is for every implementation whose memory is the host's.
#include "kernels/tokens.h"

#include <cstring>

#include "base/check.h"

namespace onelane {

uint64_t Kernels::send(void* to, const void* from, size_t bytes) {
  std::memcpy(to, from, bytes);
  return 0;
}

void Kernels::address(const StepRows& rows, const AddressArgs& args) {
  ONELANE_CHECK(rows.before != nullptr && args.max_ngram <= kHistory + 1, "Engram looks at the tokens before a run");
  int32_t* out = args.table_rows;
  for (int row = 0; row < rows.count; ++row) {
    const int run = rows.run_of[row];
    const int in_run = row - rows.runs[run].first_row;
    const auto compressed = [&](int back) { return compressed_token(rows, args, run, in_run - back); };
    int64_t mixed = compressed(0) * args.multipliers[0];
    int64_t offset = 0;
    const int64_t* prime = args.primes;
    for (int order = 2; order <= args.max_ngram; ++order) {
      mixed ^= compressed(order - 1) * args.multipliers[order - 1];
      for (int head = 0; head < args.heads; ++head) {
        *out++ = static_cast<int32_t>(mixed % *prime + offset);
        offset += *prime++;
      }
    }
  }
}

void Kernels::verify(const StepRows& rows, const VerifyArgs& args) {
  ONELANE_CHECK(rows.before != nullptr, "a verdict goes on with the tokens before a run");
  for (int run = 0; run < rows.run_count; ++run) give_verdict(rows, args, run);
}

}  // namespace onelane
