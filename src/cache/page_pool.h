// PagePool: which pages of a KvStore are free, and how many users the others have.
#pragma once

#include <optional>
#include <vector>

namespace onelane {

class PagePool {
 public:
  explicit PagePool(int pages);

  int size() const { return static_cast<int>(references_.size()); }
  int free() const { return static_cast<int>(free_.size()); }
  // A free page, with one reference; nothing when all are in use.
  std::optional<int> take();
  void retain(int page);
  // Gives a reference back; true when the page became free.
  bool release(int page);
  int references(int page) const { return references_[static_cast<size_t>(page)]; }

 private:
  std::vector<int> references_;
  std::vector<int> free_;
};

}  // namespace onelane
