// What must not leave a machine in a receipt: keys, host names, addresses.
#pragma once

#include <string>
#include <string_view>

namespace onelane {

// `text` with bearer tokens and keys ("sk-...", "hf_...") replaced by "[key]", IPv4 and IPv6 addresses other than
// loopback and unspecified ones by "[address]", and `host` (when not empty) as a whole word by "[host]".
std::string scrub(std::string_view text, std::string_view host);

// The name of this machine, empty when the system does not say.
std::string host_name();

// Whether a setting of this name holds a secret ("api_key", "password", ...), whatever its value looks like.
bool is_secret_name(std::string_view name);

}  // namespace onelane
