// The door to the CUDA plugin's stages.
#include "device/plugin.h"
#include "kernels/kernels.h"

namespace onelane {

Result<std::unique_ptr<Kernels>> make_cuda_kernels(const Plugin& plugin, int device) {
  char reason[256] = "";
  void* made = plugin.table->make_kernels(device, reason);
  if (made == nullptr) return Error{ErrorCode::kUnsupported, plugin.path + ": " + reason};
  return std::unique_ptr<Kernels>(static_cast<Kernels*>(made));
}

}  // namespace onelane
