// What tells one program, and one run of it, from another.
#pragma once

#include <string>
#include <vector>

namespace onelane {

// The linker's build id of the running program: a hash of what it was linked from, in hexadecimal. Empty where the
// program has none.
std::string program_build_id();

// How it was called, its name included. Empty if the system does not say.
std::vector<std::string> program_arguments();

// The file that runs. Empty if the system does not say.
std::string program_path();

}  // namespace onelane
