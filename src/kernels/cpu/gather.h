// Which records a group of rows attends to, and where each row finds them.
#pragma once

#include "kernels/cpu/context.h"
#include "kernels/kernels.h"

namespace onelane::cpu {

inline constexpr int kGatheredRows = 16;    // bounds the decoded records
inline constexpr size_t kGatherSlots = 10;  // the lists lie in scratch slots below this one

struct RecordAddress {
  const uint8_t* data;
  const uint8_t* scales;
  RecordFormat format;
};

// A row's entries: places [begin, begin + count) of Gathered::places.
struct RowList {
  int begin;
  int count;
};

struct Gathered {
  const RecordAddress* record;  // [records], each once for rows of the same run
  int records;
  const RowList* list;    // [rows of the group]
  const int32_t* places;  // [listed] indices into record: window by position, then compressed by entry number
  int listed;
  int longest;  // list
};

// For rows [first, first + count). Valid until the next call.
Gathered gather_entries(Context& context, const StepRows& rows, const AttendArgs& args, int first, int count);

}  // namespace onelane::cpu
