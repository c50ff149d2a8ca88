#include "base/program.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <system_error>

#include <link.h>

#include "base/format.h"

namespace onelane {
namespace {

constexpr size_t padded(size_t bytes) { return (bytes + 3) & ~size_t{3}; }

// Notes are {name size, description size, type} and both texts, padded to four bytes.
std::string build_id_in(std::string_view notes) {
  while (notes.size() >= sizeof(ElfW(Nhdr))) {
    ElfW(Nhdr) head;
    std::memcpy(&head, notes.data(), sizeof(head));
    const size_t id_at = sizeof(head) + padded(head.n_namesz), end = id_at + padded(head.n_descsz);
    if (end > notes.size()) return "";
    const std::string_view name = notes.substr(sizeof(head), head.n_namesz);
    if (head.n_type == NT_GNU_BUILD_ID && name == std::string_view("GNU", 4)) {
      std::string hex;
      for (const char c : notes.substr(id_at, head.n_descsz)) hex += format("{:02x}", static_cast<uint8_t>(c));
      return hex;
    }
    notes.remove_prefix(end);
  }
  return "";
}

// The first object that is listed is the program itself.
int read_program(dl_phdr_info* info, size_t, void* out) {
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const ElfW(Phdr)& part = info->dlpi_phdr[i];
    if (part.p_type != PT_NOTE) continue;
    const auto* at = reinterpret_cast<const char*>(info->dlpi_addr + part.p_vaddr);
    const std::string id = build_id_in({at, part.p_memsz});
    if (!id.empty()) *static_cast<std::string*>(out) = id;
  }
  return 1;
}

}  // namespace

std::vector<std::string> program_arguments() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::vector<std::string> arguments;
  for (std::string word; std::getline(file, word, '\0');) arguments.push_back(word);
  return arguments;
}

std::string program_path() {
  std::error_code failed;
  return std::filesystem::read_symlink("/proc/self/exe", failed).string();
}

std::string program_build_id() {
  std::string id;
  ::dl_iterate_phdr(read_program, &id);
  return id;
}

}  // namespace onelane
