// What a quoted number needs beside it: the device, its driver and clocks, and every figure of the run, as JSON.
#pragma once

#include <string>
#include <vector>

#include <onelane/attention.h>

namespace onelane::bench {

struct Clocks {
  unsigned sm_mhz = 0, memory_mhz = 0, temperature_c = 0, power_mw = 0;  // 0: not known
};

struct DeviceFacts {
  std::string name;
  int arch = 0, processors = 0, driver = 0, runtime = 0, l2_bytes = 0;
  size_t memory_bytes = 0;
};
DeviceFacts read_device();

// As the driver's management library reads them now; zeros where there is none. Nothing is set.
Clocks read_clocks();

// One line of the table. Times in microseconds of a graph node; negative: not measured.
struct Line {
  onelane_attention_shape shape{};
  onelane_attention_plan plan{};
  int sets = 0, nodes = 0;
  double bytes = 0, floor_us = 0;
  double warm_us = -1, warm_unsplit_us = -1, cold_us = -1, cold_unsplit_us = -1;
  double baseline_us = -1;
};

struct Receipt {
  DeviceFacts device;
  Clocks before, after;
  double empty_node_us = 0, copy_bytes_per_second = 0;
  std::vector<Line> lines;
};
// Whether the file could be written.
bool write_receipt(const Receipt& receipt, const std::string& path);

std::string widths_name(const onelane_attention_shape& shape);   // "128+512"
std::string formats_name(const onelane_attention_shape& shape);  // "v4", "v41", "bf16" or "a+b"
const char* output_name(onelane_attention_output output);
const char* path_name(onelane_attention_path path);

}  // namespace onelane::bench
