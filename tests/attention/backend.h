// Where a test program runs the attention: on the host, or on the current CUDA device. The same programs prove both.
//
// Memory comes as regions. A region is as large as the largest operand of its kind and an operand lies at its *end*;
// with fences on, the page after it is not mapped, so that one element too many is a fault at once, on the device too
// (CUDA's virtual-memory API; allocators round sizes up and hide small overruns).
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include <onelane/attention.h>

namespace onelane::attention_test {

// Everything enqueued on the backend happens in order; download() and synchronize() wait for it.
class Backend {
 public:
  // A recorded run of enqueued work: a CUDA graph. On the host, the recorded calls themselves.
  class Recording {
   public:
    virtual ~Recording() = default;
    virtual void replay() = 0;
  };

  virtual ~Backend() = default;
  virtual std::string name() const = 0;
  virtual onelane_attention_device device() const = 0;

  // Failures below end the program with a sentence: there is nothing to test without a working device.
  virtual void* allocate(size_t bytes, bool fenced) = 0;  // fenced: the end is what is aligned, to 16 bytes
  virtual void release(void* memory) = 0;
  virtual void upload(void* to, const void* from, size_t bytes) = 0;  // enqueued; `from` may go when it returns
  virtual void download(void* to, const void* from, size_t bytes) = 0;
  virtual void fill(void* memory, int byte, size_t bytes) = 0;
  virtual void synchronize() = 0;

  // Enqueues one call of the library; its status.
  virtual int run(const onelane_attention_plan& plan, const onelane_attention_args& args) = 0;
  // Enqueues out[row] = sum of in[row][0..parts) with a kernel whose last block to arrive adds up, counted in
  // `counter` (rows uint32), which must be zero at its start and is not zero after it.
  virtual void count_and_sum(const float* in, int rows, int parts, float* out, unsigned* counter) = 0;
  virtual std::unique_ptr<Recording> record(const std::function<void()>& enqueue) = 0;
};

std::unique_ptr<Backend> make_host_backend(int threads);
// Null, with a reason, when the program was built without CUDA or finds no device.
std::unique_ptr<Backend> make_cuda_backend(std::string* why_not);
// By name, "cuda" or "cpu"; ends the program with a sentence when there is none. "cpu" takes every processor.
std::unique_ptr<Backend> make_backend(const std::string& name);

// Prints the sentence with the program's name in front, and exits with 1.
[[noreturn]] void die(const std::string& sentence);

// Dies with the library's message unless `status` is 0.
void check_status(int status, const std::string& what);

// Memory for operands of one kind, of changing sizes.
class Region {
 public:
  Region(Backend& backend, bool fenced) : backend_(&backend), fenced_(fenced) {}
  Region(Region&& other) noexcept;
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;
  ~Region();

  // Grows to at least `bytes`. Earlier pointers are then void.
  void reserve(size_t bytes);
  // The operand of `bytes` that ends where the region ends, its start aligned to `alignment` (16 at most).
  void* tail(size_t bytes, size_t alignment) const;
  size_t capacity() const { return capacity_; }
  void fill(int byte) const;

 private:
  Backend* backend_;
  bool fenced_;
  void* memory_ = nullptr;
  size_t capacity_ = 0;
};

}  // namespace onelane::attention_test
