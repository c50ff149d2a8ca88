#include "kernels/cpu/gather.h"

namespace onelane::cpu {
namespace {

enum : size_t { kRecordSlot, kListSlot, kPlaceSlot, kMapSlot };

int visible_entries(const StepRows& rows, const AttendArgs& args, int row) {
  return args.ratio == 0 ? 0 : (rows.position[row] + 1) / args.ratio;
}

int compressed_bound(const StepRows& rows, const AttendArgs& args, int row) {
  const int visible = visible_entries(rows, args, row);
  return args.picks == nullptr ? visible : std::min(visible, args.topk);
}

// Positions [begin, end) of a row's window.
struct Window {
  int begin;
  int end;
};
Window window_of(const AttendArgs& args, const RowRun& run, int position) {
  if (args.block_attention) return {std::max(0, run.first_position - kWindow), run.first_position + run.count};
  return {std::max(0, position - kWindow + 1), position + 1};
}

const RowRun& run_of(const StepRows& rows, int row) { return rows.runs[rows.run_of[row]]; }

// The last of the rows [row, end) that are of row's run.
int last_of_run(const StepRows& rows, int row, int end) {
  while (row + 1 < end && rows.run_of[row + 1] == rows.run_of[row]) ++row;
  return row;
}

class Gatherer {
 public:
  Gatherer(const StepRows& rows, const AttendArgs& args, RecordAddress* record, int32_t* place, RowList* list,
           int32_t* map)
      : rows_(rows), args_(args), record_(record), place_(place), list_(list), map_(map) {}

  // Rows [first, last] of one run; `list` numbers the first one's list.
  void add_run(int first, int last, int list) {
    const RowRun& run = run_of(rows_, first);
    const RecordBlock ring = args_.ring.block(run.slot);
    const Window begins = window_of(args_, run, rows_.position[first]);
    const Window ends = window_of(args_, run, rows_.position[last]);
    const int window_place = records_;
    for (int p = begins.begin; p < ends.end; ++p) {
      if (p < run.first_position) {
        add_record(ring, p % ring.capacity);
      } else {
        add_record(args_.kv, run.first_row + p - run.first_position);
      }
    }
    // Where an entry is among the records; one row names no entry twice.
    const int visible = visible_entries(rows_, args_, last);
    const bool shared = last > first;
    if (shared) std::fill(map_, map_ + visible, -1);
    for (int row = first; row <= last; ++row) {
      const int begin = listed_;
      const Window window = window_of(args_, run, rows_.position[row]);
      for (int p = window.begin; p < window.end; ++p) place_[listed_++] = window_place + p - begins.begin;
      add_compressed(row, run.slot, shared);
      list_[list + row - first] = {begin, listed_ - begin};
      longest_ = std::max(longest_, listed_ - begin);
    }
  }

  Gathered result() const { return {record_, records_, list_, place_, listed_, longest_}; }

 private:
  int add_record(const RecordBlock& block, int index) {
    record_[records_] = {block.data(index), block.scales(index), block.format};
    return records_++;
  }

  int place_of_entry(int entry, int slot, bool shared) {
    if (shared && map_[entry] >= 0) return map_[entry];
    const int page = entry / args_.entries.per_page;
    ONELANE_CHECK(page < rows_.pages_per_slot, "an entry beyond the sequence's page table");
    const int32_t number = rows_.page_table[offset(slot, rows_.pages_per_slot) + static_cast<size_t>(page)];
    const int place = add_record(args_.entries.block(number), entry % args_.entries.per_page);
    if (shared) map_[entry] = place;
    return place;
  }

  void add_compressed(int row, int slot, bool shared) {
    const int visible = visible_entries(rows_, args_, row);
    if (args_.ratio == 0) return;
    if (args_.picks == nullptr) {
      for (int entry = 0; entry < visible; ++entry) place_[listed_++] = place_of_entry(entry, slot, shared);
      return;
    }
    const int32_t* picks = args_.picks + offset(row, args_.topk);
    int before = -1;
    for (int i = 0; i < args_.topk; ++i) {
      if (picks[i] < 0) continue;
      ONELANE_CHECK(picks[i] > before && picks[i] < visible, "picks ascend and stay within what the row can see");
      before = picks[i];
      place_[listed_++] = place_of_entry(picks[i], slot, shared);
    }
  }

  const StepRows& rows_;
  const AttendArgs& args_;
  RecordAddress* record_;
  int32_t* place_;
  RowList* list_;
  int32_t* map_;
  int records_ = 0;
  int listed_ = 0;
  int longest_ = 0;
};

}  // namespace

void GatherBound::cover(const GatherBound& other) {
  records = std::max(records, other.records);
  listed = std::max(listed, other.listed);
  longest = std::max(longest, other.longest);
  visible = std::max(visible, other.visible);
  rows = std::max(rows, other.rows);
}

GatherBound gather_bound(const StepRows& rows, const AttendArgs& args, int first, int count) {
  GatherBound bound;
  bound.rows = count;
  for (int row = first; row < first + count;) {
    const RowRun& run = run_of(rows, row);
    const int last = last_of_run(rows, row, first + count);
    const int window_begin = window_of(args, run, rows.position[row]).begin;
    size_t compressed = 0;
    for (int r = row; r <= last; ++r) {
      const Window window = window_of(args, run, rows.position[r]);
      const int picked = compressed_bound(rows, args, r);
      compressed += static_cast<size_t>(picked);
      bound.longest = std::max(bound.longest, window.end - window.begin + picked);
      bound.listed += static_cast<size_t>(window.end - window.begin + picked);
    }
    const int visible = visible_entries(rows, args, last);
    bound.visible = std::max(bound.visible, visible);
    bound.records += static_cast<size_t>(window_of(args, run, rows.position[last]).end - window_begin) +
                     std::min(compressed, static_cast<size_t>(visible));
    row = last + 1;
  }
  return bound;
}

GatherSpace::GatherSpace(Context& context, const GatherBound& bound, int shares) : bound_(bound) {
  const auto copies = static_cast<size_t>(shares);
  record_ = context.scratch<RecordAddress>(kRecordSlot, bound.records * copies);
  place_ = context.scratch<int32_t>(kPlaceSlot, bound.listed * copies);
  list_ = context.scratch<RowList>(kListSlot, static_cast<size_t>(bound.rows) * copies);
  map_ = context.scratch<int32_t>(kMapSlot, static_cast<size_t>(bound.visible) * copies);
}

Gathered GatherSpace::gather(const StepRows& rows, const AttendArgs& args, int first, int count, int share) const {
  const auto copy = static_cast<size_t>(share);
  Gatherer gatherer(rows, args, record_ + copy * bound_.records, place_ + copy * bound_.listed,
                    list_ + copy * static_cast<size_t>(bound_.rows), map_ + copy * static_cast<size_t>(bound_.visible));
  for (int row = first; row < first + count;) {
    const int last = last_of_run(rows, row, first + count);
    gatherer.add_run(row, last, row - first);
    row = last + 1;
  }
  return gatherer.result();
}

}  // namespace onelane::cpu
