// What a receipt says of the server that was measured, whatever measured it.
#pragma once

#include <memory>
#include <string>

#include "lane/discovery.h"
#include "lane/environment.h"
#include "lane/receipt.h"

namespace onelane {

// Fills build, model name, boot id, the server's own settings ("server.NAME") and its longest sequence.
void name_server(const ServerInfo& server, Receipt& receipt);

// Watches this machine where `url` is of loopback; null for another machine, of which nothing is known. GPUs are watched
// unless the server says that it runs without.
std::unique_ptr<EnvironmentWatch> watch_server(const ServerInfo& server, const std::string& url);

}  // namespace onelane
