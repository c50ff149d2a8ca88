// What tells one program, and one run of it, from another.
#pragma once

#include <string>

namespace onelane {

// The linker's build id of the running program: a hash of what it was linked from, in hexadecimal. Empty where the
// program has none.
std::string program_build_id();

}  // namespace onelane
