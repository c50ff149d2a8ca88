// The routes of the server, by file.
#pragma once

#include "api/router.h"
#include "api/services.h"

namespace onelane {

void add_chat_routes(Router& router, Services& services);        // chat.cc
void add_completion_routes(Router& router, Services& services);  // completions.cc
void add_info_routes(Router& router, Services& services);        // info.cc
void add_messages_routes(Router& router, Services& services);    // messages.cc
void add_responses_routes(Router& router, Services& services);   // responses.cc

}  // namespace onelane
