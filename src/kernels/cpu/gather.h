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

// At most this for rows [first, first + count).
struct GatherBound {
  size_t records = 0;
  size_t listed = 0;
  int longest = 0;  // list
  int visible = 0;  // compressed entries
  int rows = 0;

  void cover(const GatherBound& other);
};
GatherBound gather_bound(const StepRows& rows, const AttendArgs& args, int first, int count);

// Memory for lists within `bound`, once for each of `shares`.
class GatherSpace {
 public:
  GatherSpace(Context& context, const GatherBound& bound, int shares = 1);
  // For rows [first, first + count). Valid until the share's next call.
  Gathered gather(const StepRows& rows, const AttendArgs& args, int first, int count, int share = 0) const;

 private:
  GatherBound bound_;
  RecordAddress* record_;
  int32_t* place_;
  RowList* list_;
  int32_t* map_;
};

}  // namespace onelane::cpu
