// What the operating system says of this process: for /metrics, so that leaks and restarts can be seen from outside.
#pragma once

namespace onelane {

struct ProcessStats {
  double resident_bytes = 0;
  double open_files = 0;
  double threads = 0;
  double start_seconds = 0;  // since the epoch; another value is another process
};

// Reads /proc/self. What cannot be read stays 0.
ProcessStats read_process_stats();

}  // namespace onelane
