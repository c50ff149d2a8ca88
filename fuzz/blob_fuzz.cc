// Any bytes as a file of the disk cache: refused with a message, or exactly what encoding its content gives.
#include <algorithm>
#include <cstdlib>

#include "cache/blob_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace onelane;
  const auto file = std::as_bytes(std::span(data, size));
  const std::string_view name(reinterpret_cast<const char*>(data), size);
  if (const auto id = parse_blob_file_name(name); id && blob_file_name(*id) != name) std::abort();

  const auto header = parse_blob_header(file, size);
  if (!header) {
    if (header.error().message.empty()) std::abort();
    return 0;
  }
  const auto payload = file.subspan(kBlobHeaderBytes);
  if (payload.size() != header->payload_bytes) std::abort();
  // A damaged checksum is refused; a repaired one is accepted, and gives the same header again.
  const BlobHeaderBytes repaired = encode_blob_header(*header, payload);
  const bool intact = std::ranges::equal(repaired, file.first(kBlobHeaderBytes));
  if (check_blob(file, payload).has_value() != intact) std::abort();
  if (!check_blob(repaired, payload)) std::abort();
  const auto again = parse_blob_header(repaired, size);
  if (!again || !(*again == *header) || !(again->id() == header->id())) std::abort();
  return 0;
}
