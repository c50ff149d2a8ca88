// The routes of the server, by file.
#pragma once

#include "api/json_fields.h"
#include "api/router.h"
#include "api/services.h"

namespace onelane {

void add_chat_routes(Router& router, Services& services);        // chat.cc
void add_completion_routes(Router& router, Services& services);  // completions.cc
void add_info_routes(Router& router, Services& services);        // info.cc
void add_messages_routes(Router& router, Services& services);    // messages.cc
void add_responses_routes(Router& router, Services& services);   // responses.cc

// Fields that would need a grammar engine, which this build does not have: structured output by response_format or by
// one of vLLM's names. Refused, because an answer that merely might follow the schema is worse than a clear no.
void refuse_structured_output(JsonFields& fields);

}  // namespace onelane
