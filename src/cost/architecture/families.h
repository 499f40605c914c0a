// SPDX-License-Identifier: Apache-2.0
// How each family of models writes its shape into a configuration.
#pragma once

#include <span>
#include <string_view>

#include "cost/architecture/config_keys.h"
#include "routepack/model_cost.h"

namespace routepack {

/// Fills in what the family says; `shape` already has widths and as many layers as the configuration names.
using ReadFamily = void (*)(ConfigKeys& keys, ModelShape& shape);

struct Family {
  std::string_view model_type;    ///< as the files spell it, without «_text» behind it
  std::string_view architecture;  ///< beginning of an entry of `architectures`, for files without a model_type
  ReadFamily read;
};

std::span<const Family> families();

}  // namespace routepack
