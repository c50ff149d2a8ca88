// The identity of a loaded model, for what outlives the process.
#pragma once

#include <string>

#include "model/model.h"

namespace onelane {

// A hash of the spec's numbers and of samples of the weights: another checkpoint of the same shape gives another one.
std::string model_identity(const Model& model);

}  // namespace onelane
