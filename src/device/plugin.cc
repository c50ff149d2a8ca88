#include "device/plugin.h"

#include <cstdlib>
#include <filesystem>

#include <dlfcn.h>

#include "base/program.h"

namespace onelane {
namespace {

namespace fs = std::filesystem;

std::string id_text(const char* id) { return id == nullptr ? "none" : id; }

Error refuse(ErrorCode code, const std::string& path, const std::string& why) { return {code, path + ": " + why}; }

// Only struct_size and what stands before it may be read of a table that is not ours.
Result<void> check_table(const std::string& path, const onelane_plugin_table* table) {
  if (table == nullptr) return refuse(ErrorCode::kCorrupt, path, "the plugin gives no table");
  if (table->version != ONELANE_PLUGIN_VERSION) {
    return refuse(ErrorCode::kUnsupported, path,
                  "the plugin speaks interface version " + std::to_string(table->version) + ", this program " +
                      std::to_string(ONELANE_PLUGIN_VERSION) + "; install the two of one release");
  }
  if (table->struct_size != static_cast<int32_t>(sizeof(onelane_plugin_table))) {
    return refuse(ErrorCode::kUnsupported, path,
                  "the plugin's table has " + std::to_string(table->struct_size) + " bytes, this program's " +
                      std::to_string(sizeof(onelane_plugin_table)) + "; install the two of one release");
  }
  if (table->build_id == nullptr || std::string(table->build_id) != build_id()) {
    return refuse(ErrorCode::kUnsupported, path,
                  "the plugin has build id " + id_text(table->build_id) + ", this program " + id_text(build_id()) +
                      "; install the two of one build");
  }
  return {};
}

Result<Plugin> open_plugin(const std::string& path) {
  void* library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* why = ::dlerror();
    return refuse(ErrorCode::kCorrupt, path, "cannot be loaded: " + std::string(why == nullptr ? "?" : why));
  }
  const auto entry = reinterpret_cast<onelane_plugin_entry>(::dlsym(library, ONELANE_PLUGIN_SYMBOL));
  if (entry == nullptr) {
    return refuse(ErrorCode::kCorrupt, path, "is no plugin of onelane: it has no symbol " ONELANE_PLUGIN_SYMBOL);
  }
  const onelane_plugin_table* table = entry();
  ONELANE_TRY(check_table(path, table));
  return Plugin{path, table};
}

}  // namespace

const char* build_id() { return ONELANE_BUILD_ID; }

std::vector<std::string> plugin_folders() {
  std::vector<std::string> folders;
  const fs::path executable = program_path();
  if (!executable.empty()) {
    const fs::path folder = executable.parent_path();
    folders.push_back(folder.string());
    folders.push_back((folder.parent_path() / "lib" / "onelane").string());
  }
  const char* named = std::getenv("ONELANE_PLUGIN_DIR");
  if (named != nullptr && *named != '\0') folders.emplace_back(named);
  return folders;
}

Result<Plugin> load_plugin(const std::vector<std::string>& folders) {
  std::string tried;
  for (const std::string& folder : folders) {
    const fs::path path = fs::path(folder) / ONELANE_PLUGIN_FILE;
    std::error_code failed;
    if (fs::exists(path, failed)) return open_plugin(path.string());
    tried += (tried.empty() ? "" : ", ") + folder;
  }
  return Error{ErrorCode::kNotFound, "no " ONELANE_PLUGIN_FILE " in " + (tried.empty() ? "any folder" : tried)};
}

}  // namespace onelane
