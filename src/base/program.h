// What tells one program, and one run of it, from another.
#pragma once

#include <string>

namespace onelane {

// The linker's build id of the running program: a hash of what it was linked from, in hexadecimal. Empty where the
// program has none.
std::string program_build_id();

// The file that runs. Empty if the system does not say.
std::string program_path();

}  // namespace onelane
