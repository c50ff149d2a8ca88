// The attention core of the CPU kernels for lists that somebody else made: what the attention library runs on.
//
// The stage `attend` makes its lists from rings and pages, rounds probabilities and outputs as the model does, and
// keeps bits apart from shares; a library call comes with lists, any scale, and wants outputs unrounded. Both run the
// same products, exponentials and sums (attend-inl.h).
#pragma once

#include <cstdint>

#include "kernels/cpu/context.h"
#include "kernels/cpu/gather.h"

namespace onelane::cpu {

struct RowRecords {
  const RecordAddress* record;  // [count]; without scales: 512 bf16
  int count;
  const bf16* q;  // [heads, 512]
};

// Receives a head of a row, once each, from any thread: 512 outputs, which it may change, and the natural log of the
// sum of the exponentials. For a row without records 0 and +inf.
struct ListSink {
  void (*store)(void* context, int row, int head, float* values, double lse);
  void* context;
};

// out[r][h] = sum_t softmax(scale * q[h] . record[t])[t] * record[t], for `heads` heads, a multiple of 4. Without a
// sink: given the log of the sum, it is a factor. Scores and their sums in double, the weighted sums in float over
// blocks of entries. A row's bits do not depend on the rows beside it or on threads.
void attend_lists(Context& context, const RowRecords* rows, int count, int heads, double scale, const ListSink& sink);

}  // namespace onelane::cpu
