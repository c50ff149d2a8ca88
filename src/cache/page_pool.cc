#include "cache/page_pool.h"

#include <numeric>

#include "base/check.h"

namespace onelane {

PagePool::PagePool(int pages) : references_(static_cast<size_t>(pages)), free_(static_cast<size_t>(pages)) {
  std::iota(free_.rbegin(), free_.rend(), 0);  // page 0 goes first
}

std::optional<int> PagePool::take() {
  if (free_.empty()) return std::nullopt;
  const int page = free_.back();
  free_.pop_back();
  references_[static_cast<size_t>(page)] = 1;
  return page;
}

void PagePool::retain(int page) {
  ONELANE_CHECK(references(page) > 0, "a free page has no users to join");
  ++references_[static_cast<size_t>(page)];
}

bool PagePool::release(int page) {
  ONELANE_CHECK(references(page) > 0, "a page is given back once");
  if (--references_[static_cast<size_t>(page)] > 0) return false;
  free_.push_back(page);
  return true;
}

}  // namespace onelane
